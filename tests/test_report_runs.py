"""Runs read from their folders, their labels and their order."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedkin.errors import BadInput
from fedkin.reports.groups import described
from fedkin.reports.runs import collect
from run_folders import FEDAVG, FEDKIN, Write, write_run


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run folder into `tmp_path`."""
    return partial(write_run, tmp_path)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_runs_are_found_at_every_level(run: Write, tmp_path: Path) -> None:
    folder = run("a", FEDAVG)
    run("b", FEDKIN)
    run("c", FEDKIN, experiment="other")
    assert [found.name for found in collect(tmp_path)] == ["a", "b", "c"]
    assert [found.name for found in collect(tmp_path / "demo")] == ["a", "b"]
    (alone,) = collect(folder)
    assert (alone.experiment, alone.name, alone.status, alone.label) == ("demo", "a", "finished", "FedAvg")


def test_null_becomes_nan(run: Write) -> None:
    (found,) = collect(run("a", FEDKIN, diverged_at=2, rounds=4, status="diverged"))
    np.testing.assert_array_equal(found.rounds["train_loss"], [2.0, 1.0, math.nan, math.nan])
    np.testing.assert_array_equal(found.rounds["round"], [0, 1, 2, 3])


def test_nothing_to_report_is_said_in_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere does not exist: give the folder"):
        collect(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"there are no usable runs in .*: give the folder that 'fedkin run' wrote"):
        collect(tmp_path)
    (tmp_path / "config.json").write_text('{"compiler": "of another program"}')
    with pytest.raises(BadInput, match="no usable runs"):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", "{", "config.json is not valid JSON"),
        ("config.json", "[]", "config.json holds no table"),
        ("config.json", "{}", "config.json names no algorithm"),
        ("config.json", None, "config.json is missing"),
        ("rounds.jsonl", None, "rounds.jsonl is missing"),
        ("rounds.jsonl", '{"round": 0}\n{"rou\n{"round": 2}\n', "line 2 of rounds.jsonl is damaged"),
        ("rounds.jsonl", '{"loss": 0}\n{"round": 2}\n', "line 1 of rounds.jsonl is damaged"),
        ("summary.json", "", "summary.json is not valid JSON"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(
    run: Write, tmp_path: Path, file: str, content: str | None, complaint: str
) -> None:
    run("good", FEDAVG)
    bad = run("bad", FEDKIN)
    if content is None:
        (bad / file).unlink()
    else:
        (bad / file).write_text(content)
    with pytest.warns(UserWarning, match=f"demo/bad: {complaint}"):
        runs = collect(tmp_path)
    assert [found.name for found in runs] == ["good"]


def test_a_line_cut_short_by_a_kill_is_ignored(run: Write) -> None:
    folder = run("a", FEDKIN, rounds=5, summary=False)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "train_lo')
    (found,) = collect(folder)
    assert found.rounds["round"].tolist() == [0, 1, 2, 3, 4]


# -- labels and order --------------------------------------------------------------------------------------------------


def test_labels_name_the_knob_and_what_differs(run: Write, tmp_path: Path) -> None:
    run("e", {"name": "mine:FedMine", "server_step": 1.0})
    run("d", {"name": "fedkin", "beta": {"kind": "linear", "start": 1.0, "end": 0.5}})
    run("c1", FEDKIN)
    run("c2", {"name": "fedkin", "beta": 0.9})
    run("b2", {"name": "fedprox", "alpha": 1.0})
    run("b1", {"name": "fedprox", "alpha": 0.1})
    run("a", FEDAVG)
    assert [found.label for found in collect(tmp_path)] == [
        "FedAvg",
        "FedProx α=0.1",
        "FedProx α=1",
        "FedKin β=0.9",
        "FedKin β=0.5",
        "FedKin β=linear(start 1, end 0.5)",
        "FedMine server step=1",
    ]
    run("f", FEDKIN, local={"step_size": 0.1})
    assert "FedKin β=0.5, γ=0.1" in [found.label for found in collect(tmp_path)]


def test_a_natural_partition_is_described_by_its_key(run: Write, tmp_path: Path) -> None:
    """It has neither 100 clients nor a and b, which are defaults of the other partitions."""
    split = {"clients": 100, "class_imbalance": 0.0, "size_imbalance": 0.0, "group": "writer", "kinds": 2}
    run("a", FEDAVG, data={"source": "mnist"}, partition=split, model={"kind": "softmax"})
    runs = collect(tmp_path)
    assert described(runs) == "mnist, by writer, 2 kinds, softmax"
    run("b", FEDAVG, data={"source": "mnist"}, partition={**split, "group": None}, model={"kind": "softmax"})
    assert described(collect(tmp_path)) == "mnist, 2 kinds, softmax"
