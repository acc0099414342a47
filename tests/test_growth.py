"""Runs with more rounds than they were begun with: they continue, and their bits do not tell."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedkin import load_run, run
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments import model_files, seals
from test_experiment import SMALL, rounds
from test_origin import GRID, assert_same, crashed, first_round

# Measured in rounds 2, 5 and 7 (the last of eight); five rounds end with a measurement in round 4, which is no third.
SPARSE: dict[str, Any] = {**SMALL, "evaluate_every": 3}
ONCE = ("seconds", "check")  # what is of this one run
KIN: dict[str, Any] = {**SPARSE, "take_part": "all", "algorithm": "kin", "partition": {"clients": 6, "validation": 0.2}}


@pytest.mark.parametrize("settings", [SMALL, SPARSE, KIN, GRID], ids=["fedkin", "sparse", "kin", "grid"])
def test_five_rounds_and_then_eight_are_eight(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(settings, out=tmp_path / "whole")
    run({**settings, "rounds": 5}, out=tmp_path)
    assert first_round(settings, tmp_path, monkeypatch) == 5
    assert_same(tmp_path, tmp_path / "whole" / "small")
    for folder in (tmp_path / "small").glob("*/"):
        grown, whole = (
            {key: value for key, value in json.loads((at / "summary.json").read_text()).items() if key not in ONCE}
            for at in (folder, tmp_path / "whole" / "small" / folder.name)
        )
        assert grown == whole


@pytest.mark.parametrize("done", [5, 6, 7])
def test_a_run_that_grows_can_be_killed(done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(SPARSE, out=tmp_path / "whole")
    run({**SPARSE, "rounds": 5}, out=tmp_path)
    crashed(SPARSE, tmp_path, done, monkeypatch)
    (folder,) = (tmp_path / "small").glob("*/")
    assert not (folder / "summary.json").exists(), "reports do not show the former result as that of this run"
    run(SPARSE, out=tmp_path)
    assert_same(tmp_path, tmp_path / "whole" / "small")


def test_fewer_rounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(SMALL, out=tmp_path)
    with pytest.raises(BadInput, match=r"contains 8 rounds of this run, more than rounds = 7.*--fresh"):
        run({**SMALL, "rounds": 7}, out=tmp_path)
    monkeypatch.setattr(Simulation, "advance", None)
    run(SMALL, out=tmp_path)  # and nothing was lost


def test_an_interrupted_run_may_end_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(SMALL, tmp_path, 4, monkeypatch)
    (short,) = run({**SMALL, "rounds": 5}, out=tmp_path)
    (whole,) = run({**SMALL, "rounds": 5}, out=tmp_path / "whole")
    assert torch.equal(short.model, whole.model)


def test_without_its_checkpoint_a_run_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run({**SMALL, "rounds": 5, "keep": "model"}, out=tmp_path)
    (folder,) = (tmp_path / "small").glob("*/")
    assert not list(folder.glob("checkpoint*"))
    assert first_round(SMALL, tmp_path, monkeypatch) == 0
    run(SMALL, out=tmp_path / "whole")
    assert_same(tmp_path, tmp_path / "whole" / "small")


def test_large_checkpoints_are_not_kept_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "MOST_KEPT", 1000)
    (one,) = run(SMALL, out=tmp_path)
    (all_,) = run({**SMALL, "keep": "all"}, out=tmp_path / "all")
    assert one.folder is not None
    assert all_.folder is not None
    assert not list(one.folder.glob("checkpoint*"))
    assert [path.name for path in all_.folder.glob("checkpoint*")] == ["checkpoint-000008.safetensors"]


def test_runs_that_were_sealed_with_their_number_of_rounds_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions did, whose checkpoints are gone: with more rounds they begin again."""
    grows = seals.unusual
    with monkeypatch.context() as patch:

        def with_rounds(settings: Any, usual: Any) -> Any:
            return grows({**settings, "rounds": 8} if "seed" in settings else settings, usual)

        patch.setattr("fedkin.experiments.records.unusual", with_rounds)
        (before,) = run({**SMALL, "keep": "model"}, out=tmp_path)
    assert before.folder is not None
    assert load_run(before.folder).summary == before.summary
    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "advance", None)
        (kept,) = run(SMALL, out=tmp_path)
        assert kept.summary == before.summary
    (longer,) = run({**SMALL, "rounds": 9}, out=tmp_path)
    assert longer.test_loss[:8].tolist() == before.test_loss.tolist()
    assert len(load_file(before.folder / "model.safetensors")["model"]) == len(before.model)


def test_unmeasured_rounds_have_no_measurements(tmp_path: Path) -> None:
    (result,) = run(SPARSE, out=tmp_path)
    assert result.folder is not None
    measured = [set(record) >= {"train_loss", "test_accuracy"} for record in rounds(result.folder)]
    assert measured == [False, False, True, False, False, True, False, True]
    assert set(rounds(result.folder)[0]) == {"round", "sampled", "bytes_down", "bytes_up"}
    (every,) = run(SMALL, out=tmp_path / "every")
    assert result.test_accuracy[[2, 5, 7]].tolist() == every.test_accuracy[[2, 5, 7]].tolist()
    assert result.summary["best_test_accuracy"] == max(result.test_accuracy[[2, 5, 7]])


def test_only_testing_clients_are_measured(tmp_path: Path) -> None:
    (result,) = run({**SMALL, "evaluate": "test"}, out=tmp_path)
    (every,) = run(SMALL, out=tmp_path / "every")
    assert not hasattr(result, "train_loss")
    assert result.test_loss.tolist() == every.test_loss.tolist()


@pytest.mark.parametrize("evaluate", ["all", "test"])
def test_divergence_is_noticed_in_rounds_without_measurements(evaluate: str, tmp_path: Path) -> None:
    wild = {**GRID, "evaluate_every": 100, "evaluate": evaluate}
    results = run(wild, out=tmp_path)
    assert [result.summary["status"] for result in results] == ["finished", "diverged", "finished"]
    assert len(results[1].rounds) < 8
    counted = {"sampled", "bytes_down", "bytes_up"}
    assert set(results[0].rounds[-2]) == {"round", "seconds", *counted}, "lanes are measured when it is their turn"
