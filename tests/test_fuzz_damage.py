"""Random damage to the folders of runs: the same command ends with the same bits, or with one sentence."""

import json
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given, note
from hypothesis import strategies as st

from damage import Damage
from fedkin import run
from fedkin.errors import BadInput
from fedkin.experiments.results import Result
from fedkin.reports import report
from fedkin.reports.runs import collect
from fuzz import assert_sentence, examples
from test_experiment import Crash, crash_after, rounds

ONE: dict[str, Any] = {
    "name": "small",
    "rounds": 5,
    "checkpoint_every": 2,
    "take_part": 4,
    "partition": {"clients": 6, "class_imbalance": 1, "size_imbalance": 0.5},
    "local": {"step_size": 0.05, "epochs": 1, "batch_size": 64, "order": "shuffled"},
    "algorithm": {"name": "fedkin", "beta": 0.5, "absent": "last"},
}
# Three lanes, of which the second diverges.
GRID: dict[str, Any] = {
    **ONE,
    "local": {**ONE["local"], "step_size": [0.05, 1e7, 0.02]},
    "algorithm": {"name": "own_algorithms:Ditto", "pull": 0.1},
}
SETTINGS = {"one": ONE, "grid": GRID}


class Case:
    """An experiment: the results of an undisturbed run, and folders at several stages of it."""

    def __init__(self, settings: dict[str, Any], whole: list[Result], stages: dict[str, Path]) -> None:
        self.settings, self.whole, self.stages = settings, whole, stages


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root, made = tmp_path_factory.mktemp("cases"), {}
    for name, settings in SETTINGS.items():
        stages = {f"{done}": root / name / f"{done}" for done in (3, 4)}
        whole = run(settings, out=root / name / "finished")
        for done, out in stages.items():
            with pytest.MonkeyPatch.context() as patch:
                crash_after(patch, int(done))
                with pytest.raises(Crash):
                    run(settings, out=out)
        made[name] = Case(settings, whole, {**stages, "finished": root / name / "finished"})
    assert [result.summary["status"] for result in made["grid"].whole] == ["finished", "diverged", "finished"]
    assert 1 < len(made["grid"].whole[1].rounds) < 4
    # Runs with other settings, data or lanes, whose files get among those of the others.
    run({**ONE, "seed": 1}, out=root / "others" / "seed")
    run({**GRID, "local": {**GRID["local"], "step_size": [0.05, 0.02]}}, out=root / "others" / "lanes")
    made["others"] = Case({}, [], {"": root / "others"})
    return made


def bits(result: Result) -> tuple[Any, ...]:
    """Everything of a result that is the same whenever it is computed."""
    done = [{key: value for key, value in record.items() if key != "seconds"} for record in result.rounds]
    summary = {key: value for key, value in result.summary.items() if key not in ("seconds", "spaces")}
    return result.name, done, summary, result.model.view(torch.int32).tolist()


def assert_same(results: list[Result], whole: list[Result]) -> None:
    for one, other in zip(results, whole, strict=True):
        assert bits(one) == bits(other), one.name
        assert one.folder is not None
        assert other.folder is not None
        assert rounds(one.folder) == rounds(other.folder)
        assert json.loads((one.folder / "summary.json").read_text())["status"] == one.summary["status"]


def carry_out(case: Case, out: Path, fresh: bool = False) -> None:
    try:
        assert_same(run(case.settings, out=out, fresh=fresh), case.whole)
    except BadInput as error:
        assert_sentence(error)
        note(str(error))
        event("refused")
        if "--fresh" in str(error):
            assert not fresh, "the way out is none"
            carry_out(case, out, fresh=True)
    else:
        event("the same bits")
        assert_same(run(case.settings, out=out), case.whole)


STAGES = {
    "case": st.sampled_from(["one", "grid"]),
    "stage": st.sampled_from(["3", "4", "finished"]),
    "seed": st.integers(0, 2**32),
    "times": st.integers(1, 4),
}


@given(**STAGES)
@examples(30, shrink=False)
def test_the_same_bits(cases: dict[str, Case], case: str, stage: str, seed: int, times: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        shutil.copytree(cases[case].stages[stage], out)
        note(str(Damage(out, cases["others"].stages[""], random.Random(seed)).apply(times)))
        carry_out(cases[case], out)


@given(**STAGES)
@examples(20, shrink=False)
def test_reports_of_damaged_runs(cases: dict[str, Case], case: str, stage: str, seed: int, times: int) -> None:
    """Damaged runs are left out with a warning; a report of the others can be written."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = Path(folder) / "out"
        shutil.copytree(cases[case].stages[stage], out)
        note(str(Damage(out, cases["others"].stages[""], random.Random(seed)).apply(times)))
        try:
            found = collect(out)
            report.table(found).markdown()
            if seed % 10 == 0:  # curves take their time
                assert report.write(out)
        except BadInput as error:
            assert_sentence(error)
