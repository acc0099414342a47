"""Comparisons: the same budget for all, choices on validation samples, and fresh seeds."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin import load, load_run
from fedkin.algorithms.search import Between, OneOf, Search, points
from fedkin.arena import Budget, compare
from fedkin.arena.comparison import FINALS, _works
from fedkin.arena.entrants import SEARCHED_STEP, entrants
from fedkin.arena.spaces import page_with_spaces
from fedkin.arena.trials import Trial, Trials, edges, rungs_of, sizes_of
from fedkin.errors import BadInput
from fedkin.reports.answer.contenders import field_of
from fedkin.reports.curves import curves
from fedkin.reports.report import write_section
from fedkin.reports.runs import collect
from fedkin.reports.selection import how_chosen
from fedkin.types import Record

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 20,
    "threads": 1,
    "partition": {"clients": 4, "kinds": 2},
    "local": {"epochs": 1, "batch_size": 32, "step_size": [0.03, 0.5]},
    "checkpoint_every": 100,
    "algorithm": [{"name": "fedprox"}, {"name": "fedavg"}],
}
SMALL = Budget(trials=3, seeds=2)


# -- search spaces -----------------------------------------------------------------------------------------------------


def test_points_lie_in_their_space_and_more_continue_fewer() -> None:
    space: dict[str, Search] = {"a": Between(1e-3, 1.0), "b": OneOf((1, 2, 5)), "c": Between(-1.0, 1.0, linear=True)}
    many = points(space, 64, seed=3)
    assert many[:5] == points(space, 5, seed=3)
    assert many != points(space, 64, seed=4)
    a, b, c = (np.array([point[name] for point in many]) for name in "abc")
    assert a.min() >= 1e-3
    assert a.max() <= 1.0
    assert np.abs(c).max() <= 1
    # quasi-random: a share of points near to the share of the space, closer than random points would be
    assert abs((a < 10**-1.5).mean() - 0.5) <= 1 / 32
    assert abs((c < 0).mean() - 0.5) <= 1 / 32
    assert [(b == value).sum() for value in (1, 2, 5)] == pytest.approx([64 / 3] * 3, abs=2)


def test_ranges_that_are_none_are_refused() -> None:
    with pytest.raises(BadInput, match="lower end first"):
        Between(1.0, 0.1)
    with pytest.raises(BadInput, match="begin above 0"):
        Between(0.0, 1.0)


# -- entrants ----------------------------------------------------------------------------------------------------------


def test_numbers_of_the_file_are_fixed_and_lists_are_searched() -> None:
    settings = {
        "local": {"step_size": [0.5, 0.01, 0.1]},
        "algorithm": [
            {"name": "fedprox", "alpha": 0.25},
            {"name": "ifca", "groups": [2, 3], "local": {"epochs": [1, 2]}},
        ],
    }
    found = {one.label: one for one in entrants(settings, [])}
    assert list(found) == ["Alone", "FedAvg", "FineTuned", "FedProx alpha=0.25", "IFCA", "FedAvg, pooled"]
    assert found["FedProx alpha=0.25"].search == {SEARCHED_STEP: Between(0.01, 0.5)}
    assert found["IFCA"].search == {
        SEARCHED_STEP: Between(0.01, 0.5), "groups": OneOf((2, 3)), "local.epochs": OneOf((1, 2)),
    }  # fmt: skip
    table = found["IFCA"].table({SEARCHED_STEP: 0.1, "groups": 3, "local.epochs": 2})
    assert table == {"name": "ifca", "groups": 3, "local": {"epochs": 2, "step_size": 0.1}}


def test_step_sizes_are_the_same_for_all_methods() -> None:
    found = entrants({}, ["fedprox", "ifca"])
    sizes = [[point[SEARCHED_STEP] for point in one.trials(8, 0)] for one in found]
    assert all(mine == sizes[0] for mine in sizes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": [2, 3]}, r"rounds has several values, and a comparison has one: choose it with --set rounds=…"),
        ({"partition": {"clients": [4, 5]}}, "partition.clients has several values"),
        ({"local": {"epochs": [1, 2]}}, "local.epochs has several values.*put the list there, as local.epochs"),
        ({"rounds": "abc"}, "rounds = 'abc' is not valid"),
        ({"rounds": 0}, "rounds = 0 is out of range"),
        ({"seed": "abc"}, "seed = 'abc' is not valid"),
        ({"seed": []}, "give at least one value in every list"),
        ({"local": 3}, r"\[local\] must be a table of keys, not 3"),
        ({"local": {"step_size": []}}, "give at least one value"),
        ({"partition": 5}, r"\[partition\] must be a table of keys, not 5"),
        ({"name": "../x"}, "usable as the name of a folder"),
        ({"algorithm": [{"name": "ditto", "local": 3}, {"name": "fedavg"}]}, "local of the algorithm 'ditto' must be"),
        ({"algorithm": [{"name": "fedprxo"}, {"name": "fedavg"}]}, "unknown algorithm 'fedprxo'"),
    ],
)
def test_what_is_no_comparison_is_refused_before_any_run(tmp_path: Path, change: Record, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        compare({**TINY, **change}, budget=SMALL, out=tmp_path, on="process")
    assert not list(tmp_path.iterdir())


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    compare(TINY, budget=SMALL, out=out, on="process")
    return out


def summaries(folder: Path) -> dict[str, Record]:
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/summary.json")}


def trials_of(out: Path) -> list[list[Record]]:
    """The trials in the file, of each method."""
    found: dict[str, list[Record]] = {}
    for one in json.loads((out / "tiny-compared-tuning" / "trials.json").read_text())["trials"]:
        found.setdefault(json.dumps(one["method"]), []).append(one)
    return list(found.values())


def comparison(out: Path) -> Record:
    found: Record = json.loads((out / "tiny-compared" / "comparison.json").read_text())
    return found


def test_all_methods_have_the_same_budget(compared: Path) -> None:
    record = comparison(compared)
    assert [entry["trials"] for entry in record["methods"]] == [3] * 5
    for each in trials_of(compared):
        assert len(each) == 3
        assert all("2" in one["losses"] for one in each)
        better = sorted(each, key=lambda one: one["losses"]["2"])[:2]  # after a tenth of the rounds; both go on
        assert [one for one in each if "20" in one["losses"]] == [one for one in each if one in better]
        assert all(one["losses"].keys() == {"2", "4", "10", "20"} for one in better)
    rounds = [run["rounds"] for run in summaries(compared / "tiny-compared-tuning").values()]
    assert sorted(set(rounds)) == [2, 20]
    assert rounds.count(20) == 5 * 2


def test_the_lowest_validation_loss_is_chosen_and_runs_on_fresh_seeds(compared: Path) -> None:
    for entry, each in zip(comparison(compared)["methods"], trials_of(compared), strict=True):
        best = min((one for one in each if "20" in one["losses"]), key=lambda one: one["losses"]["20"])
        assert entry["validation_loss"] == best["losses"]["20"]
        assert list(entry["chosen"].values()) == list(best["settings"].values())
    finals = summaries(compared / "tiny-compared")
    assert len(finals) == 5 * 2
    for name in finals:
        config = json.loads((compared / "tiny-compared" / name / "config.json").read_text())
        assert config["seed"] in (1, 2)  # the trials had seed 0
        assert config["partition"]["validation"] == 0.2


def test_other_methods_join_and_leave_without_repeating_trials(compared: Path, tmp_path: Path) -> None:
    """SCAFFOLD in place of FedProx, and back: what was done is not done again, and reports have who is compared."""

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("tiny-compared*/*/rounds.jsonl")}

    def labels() -> set[str]:
        return {one.label for one in field_of(collect(tmp_path / "tiny-compared")).contenders}

    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    before = written()
    compare(TINY, algorithms=["scaffold"], budget=SMALL, out=tmp_path, on="process")
    after = written()
    assert before.items() <= after.items()
    assert len(after) == len(before) + 3 + 2
    assert labels() == {"Alone", "FedAvg", "FineTuned", "SCAFFOLD", "FedAvg, pooled"}
    compare(TINY, budget=SMALL, out=tmp_path, on="process")
    assert written() == after
    assert labels() == {"Alone", "FedAvg", "FineTuned", "FedProx", "FedAvg, pooled"}


def test_steps_of_adam_are_searched_where_they_are_of_use() -> None:
    found = {one.label: one for one in entrants({"local": {"optimizer": "adam"}}, ["ditto"])}
    assert found["Ditto"].search[SEARCHED_STEP] == found["FedAvg"].search[SEARCHED_STEP] == Between(1e-4, 0.1)
    given = entrants({"local": {"optimizer": "adam", "step_size": [0.01, 1.0]}}, ["ditto"])
    assert {one.search[SEARCHED_STEP] for one in given} == {Between(0.01, 1.0)}


def test_the_best_run_has_the_models(compared: Path) -> None:
    """That of the best method on the first fresh seed, with the models that its clients use."""
    found = compare(TINY, budget=SMALL, out=compared, on="process")
    best = found.best_run
    assert best is not None
    assert found.answer.ranking is not None
    assert best.label.startswith(found.answer.ranking.best.label)
    assert best.settings["seed"] == 1
    result = load_run(best.folder)
    assert result.predict(load("digits").x_test[:2], client="0" if best.has_own_models else None).shape == (2,)


def test_an_algorithm_beside_the_file_can_be_named(tmp_path: Path) -> None:
    """Its module is found there by the command's option as by the file itself."""
    (tmp_path / "own_arena.py").write_text("from fedkin.algorithms import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    (tmp_path / "mine.toml").write_text("rounds = 2\npartition.clients = 4\nlocal.epochs = 1\n")
    found = compare(
        tmp_path / "mine.toml", algorithms=["own_arena:Mine"], budget=Budget(1, 1), out=tmp_path, on="process"
    )
    assert "Mine" in [entry.method.label for entry in found.entries]


def test_the_report_has_a_row_for_each_method_with_its_trials(compared: Path) -> None:
    field = field_of(collect(compared / "tiny-compared"))
    assert {one.label for one in field.contenders} == {
        "Alone",
        "FedAvg",
        "FineTuned",
        "FedProx",
        "FedAvg, pooled",
    }
    assert {one.tried for one in field.contenders} == {3}
    assert all("γ=" in one.setting and len(one.values) == 2 for one in field.contenders)
    assert {one.label for one in field.contenders if one.reference} == {"FedAvg, pooled"}


def test_the_page_says_how_settings_were_chosen(compared: Path) -> None:
    runs = collect(compared / "tiny-compared")
    assert how_chosen(runs).startswith(
        "Every method had 3 trials on one seed (after 2, 4 and 10 rounds the better half"
    )
    assert how_chosen([replace(runs[0], folder=compared / "x" / "y")]).startswith(
        "For each method and seed the setting"
    )


def test_a_section_of_a_page(compared: Path, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("before\n<!-- compare tiny-compared -->\nstale\n<!-- end tiny-compared -->\nafter\n")
    assert write_section(compared / "tiny-compared", page, "fedkin compare tiny.toml") == [page]
    text = page.read_text()
    assert text.startswith("before\n<!-- compare tiny-compared -->\n**")
    assert text.endswith("<!-- end tiny-compared -->\nafter\n")
    assert "stale" not in text
    assert "by `fedkin compare tiny.toml` on" in text
    assert text.count("| FedAvg, pooled") == 2  # in the table of results and in that of costs
    assert write_section(compared / "tiny-compared", None, "") == []


def test_trials_are_no_results(compared: Path) -> None:
    """Their test results are not read, not even by a report of all that is there."""
    assert {run.experiment for run in collect(compared)} == {"tiny-compared"}
    with pytest.raises(BadInput, match="no usable runs"):
        collect(compared / "tiny-compared-tuning")


def test_a_report_needs_no_training_loss(compared: Path) -> None:
    runs = [
        replace(run, rounds={k: v for k, v in run.rounds.items() if k != "train_loss"}) for run in collect(compared)
    ]
    assert [axes.get_ylabel() for axes in curves(runs).axes] == ["test accuracy of the clients' models"]


class Stopped(Exception):  # noqa: N818 - what it stands for is no error
    """As if the process had been killed."""


@pytest.mark.parametrize("after", [40, 280])
def test_an_interrupted_comparison_continues(compared: Path, tmp_path: Path, after: int) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Stopped

    with pytest.raises(Stopped):
        compare(TINY, budget=SMALL, out=tmp_path, show=stop, on="process")
    compare(TINY, budget=SMALL, out=tmp_path, on="process")
    mine, theirs = comparison(tmp_path), comparison(compared)
    assert mine == theirs
    for name, summary in summaries(compared / "tiny-compared").items():
        again = summaries(tmp_path / "tiny-compared")[name]
        assert again["final_validation_loss"] == summary["final_validation_loss"]


def test_of_several_seeds_the_first_is_for_trials(tmp_path: Path) -> None:
    few = {**TINY, "rounds": 2, "algorithm": "fedavg", "seed": [3, 9]}
    found = compare(few, algorithms=["fedavg"], budget=Budget(1, 2), out=tmp_path, on="process")
    assert comparison(tmp_path)["tuned_on_seed"] == 3
    assert {result.config["seed"] for result in found.results} == {4, 5}


def test_a_larger_budget_keeps_the_trials_of_a_smaller_one(tmp_path: Path) -> None:
    few = {**TINY, "algorithm": "fedavg"}
    compare(few, algorithms=["fedavg"], budget=Budget(2, 1), out=tmp_path, on="process")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("tiny-compared-tuning/*/summary.json")}
    compare(few, algorithms=["fedavg"], budget=Budget(3, 1), out=tmp_path, on="process")
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("tiny-compared-tuning/*/summary.json")}
    assert len(before) == 4 * 2
    assert len(after) == 4 * 3
    unchanged = [path for path in before if before[path] == after[path]]
    assert len(unchanged) >= len(before) - 4  # a method may let one more of its trials go on


# -- parts -------------------------------------------------------------------------------------------------------------


def test_rungs_and_sizes_by_hand() -> None:
    assert [rungs_of(rounds) for rounds in (3, 19, 20, 101)] == [[3], [19], [2, 4, 10, 20], [11, 21, 51, 101]]
    assert [sizes_of(trials, 4) for trials in (1, 4, 16, 64)] == [[1] * 4, [4, 2, 2, 2], [16, 8, 4, 2], [64, 32, 16, 8]]


def test_the_better_half_goes_on(tmp_path: Path) -> None:
    """Of five trials three go on, then two; what diverged does not, though it leaves one alone."""
    losses = [{2: 0.5, 4: 0.1}, {2: 0.1, 4: 0.3}, {2: 0.9}, {2: 0.2, 4: 0.2}, {2: math.inf}]
    every = {0: [Trial({"k": k}, own) for k, own in enumerate(losses)]}
    tuning = Trials(tmp_path / "trials.json", {}, [{"name": "a"}], every)
    assert tuning.going_on([]) == {0: [0, 1, 2, 3, 4]}
    assert tuning.going_on([2]) == {0: [1, 3, 0]}
    assert tuning.going_on([2, 4]) == {0: [0, 3]}
    tuning.learn([(0, 0), (0, 3)], [math.inf, 0.7], 8)
    best = tuning.best(0, 8)
    assert best is not None
    assert best.settings == {"k": 3}
    kept = Trials.of(tuning.path, {}, [{"name": "b"}, {"name": "a"}], [[{"k": 0}], [{"k": 0}, {"k": 7}]])
    assert [one.losses for one in (*kept.trials[0], *kept.trials[1])] == [{}, {2: 0.5, 4: 0.1, 8: math.inf}, {}]
    assert [one["settings"] for one in kept.others] == [{"k": 1}, {"k": 2}, {"k": 3}, {"k": 4}]
    assert Trials.of(tuning.path, {"rounds": 9}, [{"name": "a"}], [[{"k": 0}]]).trials[0][0].losses == {}


def test_edges_by_hand() -> None:
    trials = [Trial({"a": 1.0, "b": "x"}), Trial({"a": 3.0, "b": "x"}), Trial({"a": 2.0, "b": "y"})]
    space = {"a": Between(1.0, 3.0), "b": OneOf(("x", "y"))}
    assert edges(space, trials, trials[0]) == {"a": "smallest"}
    assert edges(space, trials, trials[1]) == {"a": "largest"}
    assert edges(space, trials, trials[2]) == {}


def test_works_of_a_budget() -> None:
    works = _works(12, Budget(16, 5), 50)
    assert [(work.runs, work.rounds) for work in works] == [(192, 5), (96, 5), (48, 15), (24, 25), (60, 50)]
    assert works[-1].name == FINALS
    assert math.isclose(sum(work.runs * work.rounds for work in works), 12 * 230 + 3000)


def test_the_page_has_the_search_spaces() -> None:
    """If it fails: python -m fedkin.arena.spaces docs/compare.md."""
    page = (Path(__file__).parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
    assert page == page_with_spaces(page)


def test_fresh_repeats_all_trials(tmp_path: Path) -> None:
    """Also those of few rounds, which are not judged twice."""
    few = {**TINY, "rounds": 2, "algorithm": "fedavg"}
    times: list[dict[Path, int]] = []
    for fresh in (False, True):
        compare(few, algorithms=["fedavg"], budget=Budget(1, 1), out=tmp_path, fresh=fresh, on="process")
        times.append({path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/summary.json")})
    assert len(times[0]) == 2 * 4
    assert all(times[1][path] > written for path, written in times[0].items())
