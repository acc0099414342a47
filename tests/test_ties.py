"""Methods that cannot be told apart: said in few words, with what speaks for one of them; by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.data.measure import ACCURACY
from fedkin.reports.answer.contenders import Contender, Field, field_of
from fedkin.reports.answer.scores import Score
from fedkin.reports.answer.sentences import Answer, answer_of
from fedkin.reports.runs import collect
from run_folders import write_run

DOWN = {
    "fedavg": 1,
    "ditto": 1,
    "scaffold": 2,
    "kin": 3,
    "finetuned": 1,
    "alone": 0,
    "ifca": 4,
}  # MB in a round, and 1 up


def of_runs(root: Path, values: Mapping[str, float]) -> Answer:
    """Two seeds of 30 rounds each. The second is 1 point worse, but for Kin, so that Kin has wide intervals."""
    for name, value in values.items():
        for seed in (0, 1):
            final = value - (0.01 if name != "kin" else 0.0) * seed
            traffic: dict[str, Any] = {"bytes_down": DOWN[name] * 1_000_000, "bytes_up": 1_000_000 * (name != "alone")}
            summed = {"final_validation_loss": 0.5}
            write_run(root, f"{name}-{seed}", {"name": name}, None, final, seed=seed, extra=traffic, summed=summed)
    return answer_of(field_of(collect(root)))


def among(said: Answer, words: str) -> list[str]:
    return [sentence for sentence in said.details if words in sentence]


def test_the_simplest_of_those_that_send_least(tmp_path: Path) -> None:
    """Kin has 80, 80 %; FedAvg 80, 79: differences of 0 and 1 point, a tie; 30 rounds of 1 + 1 MB."""
    said = of_runs(tmp_path, {"kin": 0.80, "fedavg": 0.80, "ditto": 0.80, "scaffold": 0.80, "ifca": 0.2})
    assert said.ranking is not None
    assert sorted(one.label for one in said.ranking.tied) == ["Ditto", "FedAvg", "SCAFFOLD"]
    assert among(said, "told apart") == [
        "Of the 4 federated methods that cannot be told apart, FedAvg is the simplest, and none sends less: 60 MB of a "
        "client in all rounds."
    ]


def test_without_fedavg_those_that_send_least_are_named(tmp_path: Path) -> None:
    said = of_runs(tmp_path, {"kin": 0.80, "ditto": 0.80, "scaffold": 0.80, "fedavg": 0.2})
    assert among(said, "told apart") == [
        "Of the 3 federated methods that cannot be told apart, Ditto sends least: 60 MB of a client in all rounds."
    ]


def test_all_that_send_the_same_have_no_sentence_and_a_winner_neither(tmp_path: Path) -> None:
    assert among(of_runs(tmp_path / "a", {"ditto": 0.80, "finetuned": 0.80}), "told apart") == []
    assert among(of_runs(tmp_path / "b", {"ditto": 0.80, "fedavg": 0.60}), "told apart") == []


def test_training_alone_that_is_tied_is_said_first(tmp_path: Path) -> None:
    """And in the first line, beside fine-tuned FedAvg: 0.5 points above each, in an interval of ±6.4."""
    said = of_runs(tmp_path, {"kin": 0.80, "finetuned": 0.80, "alone": 0.80, "fedavg": 0.5})
    assert said.headline.startswith("Nothing measurably beats fine-tuned FedAvg or training alone: Kin has accuracy")
    assert said.headline.endswith("0.5 and 0.5 points better, no measurable difference.")
    assert among(said, "told apart") == [
        "Training alone is among the methods that cannot be told apart: whether a federation pays is not decided here.",
        "Of the 2 federated methods that cannot be told apart, fine-tuned FedAvg sends least: 60 MB of a client in all "
        "rounds.",
    ]


def test_training_alone_that_is_best_needs_no_other(tmp_path: Path) -> None:
    said = of_runs(tmp_path, {"alone": 0.80, "finetuned": 0.799, "ditto": 0.799, "kin": 0.79})
    assert said.headline.startswith("Nothing beats training alone")
    assert among(said, "told apart") == []


def contender(label: str, values: list[float]) -> Contender:
    return Contender(label, label, "", {str(seed): value for seed, value in enumerate(values)})


def test_many_ties_are_one_sentence() -> None:
    """+1, −1 points from each other: 0 ± 12.7. The next and the baselines keep sentences of their own."""
    names = ["kin", "a", "b", "c", "d", "e", "fedavg"]
    values = {name: [0.80, 0.82] if name == "kin" else [0.81 - k / 1000, 0.80] for k, name in enumerate(names)}
    said = answer_of(Field((), tuple(contender(name, each) for name, each in values.items()), Score(ACCURACY), True))
    (sentence,) = among(said, "; 95 % intervals, paired over 2 seeds.")
    assert sentence.startswith("No measurable difference from kin: b with 80.4 % (")
    assert [name for name in names if f"{name} with" in sentence] == ["b", "c", "d", "e"]
    assert len(among(said, "no measurable difference from kin")) == 2  # a, which is next, and FedAvg
    few = answer_of(
        Field((), tuple(contender(n, values[n]) for n in ("kin", "a", "b", "c", "d")), Score(ACCURACY), True)
    )
    assert len(among(few, "no measurable difference from kin")) == 4
