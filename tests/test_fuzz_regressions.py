"""What the fuzzers have found, each in its plainest form."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import small_federation, tensors_of
from fedkin import run
from fedkin.algorithms import Algorithm, Local
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments.tensor_files import read_tensors, write_tensors
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Softmax
from fedkin.reports.runs import collect
from fuzz import assert_sentence
from loops import played
from random_algorithms import Mixture, RandomAlgorithm, Recipe
from test_experiment import SMALL, Crash, crash_after, rounds

# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_penalty_beyond_single_precision_diverges(tmp_path: Path) -> None:
    """PyTorch refuses such a number as the factor of a sum."""
    settings = {**SMALL, "local": {"step_size": 0.05, "epochs": 1, "l2": 1e30}, "take_part": "all"}
    (result,) = run({**settings, "algorithm": "own_algorithms:PerFedAvg"}, out=tmp_path)
    assert result.summary["status"] == "diverged"


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({"name": "a\0b"}, []),
        ({"name": "two\nlines"}, []),
        ({"algorithm": {"name": "fedkin", "beta": 10**400}}, []),
        ({}, ["algorithm.name=fedkin", "algorithm.beta=-1180591620717411303424"]),
        ({"local": {"order": "x" * 5000}}, []),
        ({}, ["=None"]),
    ],
    ids=["nul", "line break", "huge number", "huge override", "long word", "no key"],
)
def test_odd_settings_are_refused(settings: dict[str, Any], overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        run({"rounds": 1, **settings}, overrides=overrides, out=tmp_path)
    assert_sentence(refused.value)


def test_messages_are_one_line_that_no_terminal_obeys() -> None:
    text = str(BadInput(f"unknown word '\x1b[31m\nred\ud800' {'x' * 1000}: choose another"))
    assert text.startswith(r"unknown word '\x1b[31m red\ud800' xxx")
    assert text.endswith("xxx: choose another")
    assert_sentence(BadInput(text))


GRID_RUN = "fedkin-beta=0.9"

# -- folders -----------------------------------------------------------------------------------------------------------


def test_rubbish_after_the_last_round_of_a_finished_run_goes(tmp_path: Path) -> None:
    (result,) = run(SMALL, out=tmp_path)
    assert result.folder is not None
    file = result.folder / "rounds.jsonl"
    before = file.read_bytes()
    file.write_bytes(before + b'{"round": 8, "train_loss": 0.1}\n{"rou')
    run(SMALL, out=tmp_path)
    assert file.read_bytes() == before
    assert len(rounds(result.folder)) == 8


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (result,) = run(SMALL, out=tmp_path)
    assert result.folder is not None
    (result.folder / "model.safetensors").unlink()
    (result.folder / "model.safetensors").mkdir()
    with pytest.raises(BadInput, match=r"model\.safetensors is a folder where a file should be.*--fresh"):
        run(SMALL, out=tmp_path)
    (again,) = run(SMALL, out=tmp_path, fresh=True)
    assert torch.equal(again.model, result.model)


@pytest.mark.parametrize("lanes", [5, "a", [[]], {"a": 1}, [GRID_RUN, GRID_RUN], ["other"]], ids=str)
def test_damaged_lanes_are_ignored(lanes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the group know it too."""
    grid = {**SMALL, "algorithm": {"name": "fedkin", "beta": [0.9, 0.5]}}
    whole = run(grid, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        crash_after(patch, 5)
        with pytest.raises(Crash):
            run(grid, out=tmp_path)
    file = tmp_path / "small" / GRID_RUN / "origin.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "lanes": lanes}))
    for one, other in zip(run(grid, out=tmp_path), whole, strict=True):
        assert torch.equal(one.model, other.model)
    assert json.loads(file.read_text())["lanes"] == [GRID_RUN, "fedkin-beta=0.5"]


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    (result,) = run(SMALL, out=tmp_path)
    assert result.folder is not None
    left, own = result.folder / ".checkpoint-000004.safetensors.764.tmp", result.folder / ".notes.tmp"
    for file in (left, own):
        file.write_bytes(b"half")
    run(SMALL, out=tmp_path)
    assert not left.exists()
    assert own.exists(), "nobody's but ours"


def test_tensors_from_files_begin_with_a_cache_line(tmp_path: Path) -> None:
    """With two threads, products of others had other bits: a continued run differed from an uninterrupted one."""
    for length in range(16):
        write_tensors(tmp_path / "file", {"model": torch.ones(650)}, {"origin": "x" * length})
        loaded = read_tensors(tmp_path / "file")
        assert loaded is not None
        assert loaded[0]["model"].data_ptr() % 64 == 0


def test_nested_brackets_do_not_end_a_report(tmp_path: Path) -> None:
    (result,) = run(SMALL, out=tmp_path)
    (tmp_path / "small" / "other").mkdir()
    (tmp_path / "small" / "other" / "config.json").write_text("[" * 100_000)
    with pytest.warns(UserWarning, match="left out"):
        assert [found.name for found in collect(tmp_path)] == [result.name]


# -- algorithms --------------------------------------------------------------------------------------------------------

NOWHERE: Mixture = (("w", 0.0, ""),)
STEP: Mixture = (("w", 1.0, ""), ("g0", -1.0, "step_size"))
ZEROS = {
    "a gradient at zero": Recipe(gradients=(NOWHERE,), w=STEP),
    "memory becomes zero": Recipe(memory=(("m", 1.0, (("memory m", 0.0, ""),)),)),
    "w becomes zero": Recipe(w=NOWHERE),
}


@pytest.mark.parametrize("recipe", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("features", [5, 40], ids=["fused", "samples"])
def test_vectors_that_a_knob_makes_zero(recipe: Recipe, features: int) -> None:
    """Zero times a vector is a combination without terms."""
    algorithm: Algorithm = RandomAlgorithm(step_size=0.1, recipe=recipe)
    federation, graph = small_federation(features=features), SimilarityGraph.edgeless(5)
    fast, plain = (
        played(
            Simulation(
                federation,
                Softmax(features, 3),
                algorithm,
                graph,
                graph.degrees,
                Local(2, 4, order="fixed"),
                stacked=stacked,
            )
        )
        for stacked in (True, False)
    )
    assert "plain" not in fast.spaces
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(fast)[name], value, rtol=2e-4, atol=3e-6)
