"""The answer of an experiment: differences, ranking and conclusion, with numbers worked out by hand."""

import math
from collections.abc import Sequence

import pytest

from fedkin.data.measure import ACCURACY, MSE
from fedkin.reports.answer.contenders import Contender, Field
from fedkin.reports.answer.intervals import Difference, paired_difference
from fedkin.reports.answer.ranking import difference, ranked
from fedkin.reports.answer.scores import Score
from fedkin.reports.answer.sentences import Answer, answer_of
from fedkin.reports.answer.words import interval_text
from fedkin.reports.selection import Edge

ACCURACY_SCORE, ERROR = Score(ACCURACY), Score(MSE)


def method(
    label: str,
    algorithm: str,
    values: Sequence[float] = (),
    clients: Sequence[float] = (),
    samples: Sequence[float] = (),
    **more: object,
) -> Contender:
    """A contender with values of seeds 0, 1, …, or with clients a, b, … of one seed."""
    names = "abcdefghijklmnop"
    each = {"0": dict(zip(names, clients, strict=False))} if clients else {}
    sizes = {"0": dict(zip(names, samples, strict=False))} if samples else {}
    if clients and not values:
        weights = samples or [1.0] * len(clients)
        values = [sum(v * n for v, n in zip(clients, weights, strict=True)) / sum(weights)]
    by_seed = {str(seed): value for seed, value in enumerate(values)}
    return Contender(label, algorithm, "", by_seed, each, sizes, **more)  # type: ignore[arg-type]


def answer(*contenders: Contender, score: Score = ACCURACY_SCORE, validated: bool = True) -> Answer:
    return answer_of(Field((), contenders, score, validated))


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_an_interval_by_hand() -> None:
    """1, 2, 3: mean 2, deviation 1, error 1/√3, t(2) = 4.302653 at 97.5 %: 2 ± 2.484."""
    found = paired_difference([1, 2, 3], "seeds")
    assert (found.mean, found.pairs, found.over) == (2, 3, "seeds")
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert found.is_tie


def test_weights_by_hand() -> None:
    """Differences 0, 1 with weights 1, 3: mean 0.75, s² = 2 · 2 (0.25 · 0.75)² = 0.140625, t(1) = 12.7062."""
    found = paired_difference([0, 1], "clients", [1, 3])
    assert found.mean == 0.75
    assert found.high - found.mean == pytest.approx(12.7062 * 0.375, rel=1e-5)
    assert paired_difference([0, 1], "clients", [5, 5]) == paired_difference([0, 1], "clients")


def test_equal_differences_and_too_few() -> None:
    assert paired_difference([0.1, 0.1, 0.1], "seeds").is_better
    assert paired_difference([-0.1, -0.1], "seeds").is_worse
    assert paired_difference([0.0, 0.0], "seeds").is_tie
    one = paired_difference([0.1], "seeds")
    assert (one.mean, one.has_interval, one.is_tie, one.is_better) == (0.1, False, False, False)
    assert math.isnan(paired_difference([], "seeds").mean)


def test_differences_are_paired_by_seed_else_by_client() -> None:
    """Over seeds 0.1, 0.1; over clients 0.1, 0.3 with 10 and 30 samples: mean 0.25."""
    a, b = method("A", "kin", [0.5, 0.7]), method("B", "fedavg", [0.4, 0.6])
    over = difference(a, b, ACCURACY_SCORE)
    assert (over.over, over.pairs, round(over.mean, 12)) == ("seeds", 2, 0.1)
    a = method("A", "kin", clients=[0.5, 0.7], samples=[10, 30])
    b = method("B", "fedavg", clients=[0.4, 0.4], samples=[10, 30])
    over = difference(a, b, ACCURACY_SCORE)
    assert (over.over, over.pairs, round(over.mean, 12)) == ("clients", 2, 0.25)
    assert over.mean == pytest.approx(a.mean - b.mean)  # the weights are those of the score
    lone = difference(a, method("C", "fedavg", [0.3]), ACCURACY_SCORE)
    assert (round(lone.mean, 12), lone.has_interval) == (0.35, False)


def test_of_an_error_less_is_better() -> None:
    a, b = method("A", "kin", [0.2, 0.3]), method("B", "fedavg", [0.4, 0.5])
    assert difference(a, b, ERROR).is_better
    assert [round(value, 12) for value in difference(a, b, ERROR).seen_from_the_other(-1)] == [0.2, 0.2, 0.2]
    order = ranked(Field((), (b, a), ERROR, True))
    assert order is not None
    assert [one.label for one in order.order] == ["A", "B"]


# -- the headline ------------------------------------------------------------------------------------------------------

SEEDS = [0.80, 0.82, 0.81, 0.83, 0.79]


def lifted(by: Sequence[float]) -> list[float]:
    return [base + more for base, more in zip(SEEDS, by, strict=True)]


def test_a_planted_winner_is_named() -> None:
    """+9, +10, +11, +10, +10 points: mean 10, s² = 0.5, error √0.1 = 0.316, t(4) = 2.776: 9.1 to 10.9."""
    said = answer(
        method("FedAvg", "fedavg", SEEDS),
        method("Kin", "kin", lifted([0.09, 0.10, 0.11, 0.10, 0.10])),
        method("FineTuned", "finetuned", lifted([0.05, 0.05, 0.04, 0.06, 0.05])),
        method("Alone", "alone", lifted([-0.1, -0.11, -0.09, -0.1, -0.1])),
    )
    assert said.headline == (
        "Kin is best: accuracy 91.0 % of the global model on all test samples, "
        "5.0 points better than the next, fine-tuned FedAvg."
    )
    assert "FedAvg has 81.0 %: Kin is 10.0 points better (95 % interval 9.1 to 10.9 points, paired over 5 seeds)." in (
        said.details
    )
    assert said.cautions == ()


def test_two_equal_ones_are_a_tie() -> None:
    """Differences of +1, −1, +1, −1, 0 points."""
    said = answer(
        method("A", "kin", lifted([0.11, 0.09, 0.11, 0.09, 0.10])),
        method("B", "ifca", lifted([0.10, 0.10, 0.10, 0.10, 0.10])),
        method("FedAvg", "fedavg", SEEDS),
    )
    assert said.headline.startswith("A and B are tied for best: accuracy 91.0 % and 91.0 %")
    assert said.headline.endswith("no measurable difference.")


@pytest.mark.parametrize(("name", "words"), [("finetuned", "fine-tuned FedAvg"), ("alone", "training alone")])
def test_nothing_beats_the_baseline(name: str, words: str) -> None:
    label = {"finetuned": "FineTuned", "alone": "Alone"}[name]
    first = answer(method(label, name, lifted([0.1] * 5)), method("Kin", "kin", SEEDS))
    assert first.headline.startswith(f"Nothing beats {words}: accuracy 91.0 %")
    chance = [0.03, -0.02, 0.02, -0.02, 0.01]
    second = answer(method(label, name, SEEDS), method("Kin", "kin", lifted(chance)))
    assert second.headline.startswith(f"Nothing measurably beats {words}: Kin has accuracy 81.4 %")
    assert second.headline.endswith("0.4 points better, no measurable difference.")


def test_one_method_and_none() -> None:
    assert answer(method("Kin", "kin", [0.5])).headline.startswith("Only one method has finished, Kin: accuracy 50.0 %")
    assert answer().headline == "There is no answer yet: no run has finished (none has begun)."
    assert answer().ranking is None


def test_without_an_interval_nothing_is_claimed() -> None:
    said = answer(method("A", "kin", [0.9]), method("FedAvg", "fedavg", [0.5]))
    assert "which may be chance: there is no interval" in said.headline
    assert interval_text(Difference(0.1), ACCURACY_SCORE) in said.details[0]


def test_pooled_is_a_reference_and_never_the_winner() -> None:
    said = answer(
        method("FedAvg, pooled", "fedavg", lifted([0.15] * 5), reference=True),
        method("Kin", "kin", lifted([0.1] * 5)),
        method("FedAvg", "fedavg", SEEDS),
    )
    assert said.headline.startswith("Kin is best")
    assert said.details[-1].startswith("FedAvg, pooled, with all samples in one place, which no federation has")


def test_errors_in_words() -> None:
    said = answer(
        method("Kin", "kin", [0.01, 0.011, 0.012]), method("Alone", "alone", [0.03, 0.031, 0.032]), score=ERROR
    )
    assert said.headline.startswith("Kin is best: mean squared error 0.011")
    assert "0.02 better than the next, training alone" in said.headline


# -- who would be better off alone -------------------------------------------------------------------------------------


def test_clients_better_off_alone_are_named() -> None:
    """B and c lose, d is equal."""
    kin = method("Kin", "kin", clients=[0.9, 0.4, 0.5, 0.6])
    alone = method("Alone", "alone", clients=[0.5, 0.5, 0.6, 0.6])
    said = answer(kin, alone)
    assert "2 of 4 clients would be better off alone than with Kin: b, c." in said.details
    order = said.ranking
    assert order is not None
    found = order.better_alone(order.best)
    assert found is not None
    assert (found.by_client, found.share) == ({"b": 1, "c": 1}, 0.5)
    none = answer(method("Kin", "kin", clients=[0.9, 0.8]), method("Alone", "alone", clients=[0.5, 0.8]))
    assert "No client would be better off alone than with Kin." in none.details


def test_over_seeds_it_is_a_mean() -> None:
    """Seed 0: b; seed 1: a and b; seed 2: b. That is 4 pairs in 3 seeds, b in all of them."""
    alone = {str(seed): {"a": 0.5, "b": 0.5} for seed in range(3)}
    kin = {"0": {"a": 0.6, "b": 0.4}, "1": {"a": 0.4, "b": 0.4}, "2": {"a": 0.9, "b": 0.4}}
    one = Contender("Kin", "kin", "", {"0": 0.6, "1": 0.6, "2": 0.6}, kin)
    other = Contender("Alone", "alone", "", {"0": 0.5, "1": 0.5, "2": 0.5}, alone)
    said = answer(one, other)
    assert any("On average over 3 seeds, 1.33 of 2 clients" in s and "in most seeds: b." in s for s in said.details)


# -- cautions ----------------------------------------------------------------------------------------------------------


def test_what_could_change_the_answer() -> None:
    edge = (Edge("local.step_size", 1.0, True), Edge("algorithm.beta", 0.1, False))
    said = answer(
        method("Kin", "kin", clients=[0.9, 0.8], samples=[10, 50], tried=5, edges=edge),
        method("FedAvg", "fedavg", clients=[0.5, 0.6], samples=[10, 50], tried=9),
        validated=False,
    )
    cautions = " ".join(said.cautions)
    for words in (
        "No setting was chosen honestly",
        "There is one seed only: intervals show the spread over clients",
        "Kin: the best γ = 1 is the largest that was tried, at the edge of its grid. Try larger ones.",
        "Kin: the best β = 0.1 is the smallest that was tried",
        "rows that are missing here: finetuned, alone.",
        "different numbers of settings to choose from: Kin 5, FedAvg 9.",
        "1 of 2 clients has fewer than 30 test samples: at client a one sample of 10 is 10.0 points",
    ):
        assert words in cautions


def test_many_values_at_the_edge_are_one_sentence() -> None:
    step, pull = Edge("local.step_size", 2.0, True), Edge("algorithm.pull", 0.003, False)
    said = answer(
        method("Kin", "kin", [0.9, 0.91], edges=(step,)),
        method("Ditto", "ditto", [0.8, 0.81], edges=(step, pull)),
        method("FedAvg", "fedavg", [0.5, 0.52], edges=(Edge("local.step_size", 0.1, False),)),
    )
    assert (
        "Chosen at the edge of what was tried: γ = 2, the largest, of Kin and Ditto; pull = 0.003, the smallest, of "
        "Ditto; γ = 0.1, the smallest, of FedAvg. Try further values, or give more trials."
    ) in said.cautions


def test_few_and_unequal_seeds() -> None:
    said = answer(method("Kin", "kin", [0.9, 0.91, 0.92]), method("FedAvg", "fedavg", [0.5, 0.52]))
    cautions = " ".join(said.cautions)
    assert "There are 3 seeds only, so intervals are wide." in cautions
    assert "Not all methods have results of all 3 seeds: FedAvg has fewer." in cautions
