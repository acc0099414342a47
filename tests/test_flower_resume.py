"""Runs that are interrupted and continued."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, MessageType
from flwr.proto.node_pb2 import NodeInfo
from torch import Tensor

import fedkin
from fedkin import FedKin
from fedkin.errors import BadInput
from fedkin.experiments.tensor_files import read_tensors
from fedkin.flower import Strategy, client_app, initial_arrays, measured
from fedkin.types import Tensors
from flower_grid import Direct, recorded
from flower_nodes import APP, FEDERATION, KIN, LOCAL, MODEL, Dies, five, lead


@pytest.mark.parametrize("damage", [False, True], ids=["sound", "newest checkpoint damaged"])
def test_a_run_that_died_continues_from_its_last_complete_round(tmp_path: Path, damage: bool) -> None:
    """All that matters is in the folder: w̄, last models, roster and messages. Nodes say who they are again, once."""
    evaluate = measured(MODEL, FEDERATION, LOCAL.l2)

    def dying(round: int, arrays: ArrayRecord) -> Any:
        if round == 3:
            raise Dies
        return evaluate(round, arrays)

    def strategy(folder: str) -> Strategy:
        return Strategy(FedKin(step_size=0.05, beta=0.5, absent="last"), LOCAL, min_nodes=5, out=tmp_path / folder)

    with pytest.raises(Dies):
        strategy("a").start(five(), initial_arrays(MODEL), 5, 0.2, evaluate_fn=dying)
    if damage:
        newest = sorted((tmp_path / "a").glob("checkpoint-*"))[-1]
        newest.write_bytes(newest.read_bytes()[:-9])
    grid = five()
    _, losses = lead(grid, rounds=5, strategy=strategy("a"))
    _, expected = lead(five(), rounds=5, strategy=strategy("b"))
    assert losses == expected
    asked = [q.metadata.dst_node_id for q in grid.questions if q.metadata.message_type == MessageType.QUERY]
    assert asked == sorted(grid.nodes)
    assert {q.metadata.group_id for q in grid.questions} - {""} == ({"2", "3", "4", "5"} if damage else {"3", "4", "5"})
    done = recorded(tmp_path / "a")
    assert [record["round"] for record in done] == [0, 1, 2, 3, 4]


def test_a_run_that_continues_waits_for_its_nodes(tmp_path: Path) -> None:
    """Where the SuperLink was restarted too, nodes reconnect one by one: the next round waits for them."""

    def strategy(folder: str) -> Strategy:
        return Strategy(KIN, LOCAL, min_nodes=5, out=tmp_path / folder)

    def dying(round: int, arrays: ArrayRecord) -> None:
        if round == 3:
            raise Dies

    class Slow(Direct):
        def get_nodes(self) -> Iterable[NodeInfo]:
            if len(self.nodes) < 5:
                self.join(len(self.nodes), node=50 + len(self.nodes))
            return super().get_nodes()

    with pytest.raises(Dies):
        strategy("a").start(five(), initial_arrays(MODEL), 4, 5.0, evaluate_fn=dying)
    slow = Slow(APP, range(2))
    strategy("a").start(slow, initial_arrays(MODEL), 4, 5.0)
    lead(five(), rounds=4, strategy=strategy("b"))
    (one, _), (other, _) = (read_tensors(tmp_path / folder / "model.safetensors") or ({}, {}) for folder in "ab")
    assert torch.equal(one["model"], other["model"])
    assert [record["replies"] for record in recorded(tmp_path / "a")] == [5, 5, 5, 5]


def test_clients_that_joined_late_are_there_after_a_resume(tmp_path: Path) -> None:
    """The fifth joins after the first round. Its number, its message and the rows kept for it are in the checkpoint."""

    def strategy(folder: str) -> Strategy:
        return Strategy(FedKin(step_size=0.05, beta=0.5, absent="last"), LOCAL, min_nodes=4, out=tmp_path / folder)

    def joining(grid: Direct, dies: int = -1) -> Any:
        def evaluate(round: int, arrays: ArrayRecord) -> None:
            if round == 1:
                grid.join(3)
            if round == dies:
                raise Dies

        return evaluate

    interrupted, whole = Direct(APP, [0, 1, 2, 4]), Direct(APP, [0, 1, 2, 4])
    with pytest.raises(Dies):
        strategy("a").start(interrupted, initial_arrays(MODEL), 5, 5.0, evaluate_fn=joining(interrupted, dies=4))
    again, expected = strategy("a"), strategy("b")
    again.start(interrupted, initial_arrays(MODEL), 5, 5.0)
    expected.start(whole, initial_arrays(MODEL), 5, 5.0, evaluate_fn=joining(whole))
    assert again.nodes.roster.names == expected.nodes.roster.names == ("0", "1", "2", "4", "3")
    rows, others = (s._state.server["models"] for s in (again, expected))
    assert rows.owners.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(rows.values, others.values)
    assert torch.equal(rows.default, others.default)


@dataclass(frozen=True, kw_only=True)
class Personal(FedKin):
    """The server keeps rows that begin as the first model, and so does the clients' memory."""

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}


def test_a_state_that_holds_the_first_model_twice_can_be_saved(tmp_path: Path) -> None:
    lead(five(), Personal(step_size=0.05, absent="last"), out=tmp_path / "run", take_part=3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


def test_a_finished_run_is_kept_and_another_is_not_overwritten(tmp_path: Path) -> None:
    """The same command again does nothing; other settings are an error."""
    _, losses = lead(five(), out=tmp_path / "run")
    grid = five()
    _, again = lead(grid, out=tmp_path / "run")
    assert again == losses
    assert not grid.questions
    with pytest.raises(BadInput, match="beta"):
        lead(grid, FedKin(step_size=0.05, beta=0.9), out=tmp_path / "run")


def test_a_finished_run_grows(tmp_path: Path) -> None:
    """Two rounds and three more are five at once, to the last bit; fewer rounds than there are, an error."""
    algorithm = FedKin(step_size=0.05, beta=0.5, absent="last")
    lead(five(), algorithm, rounds=2, out=tmp_path / "a")
    grown, losses = lead(five(), algorithm, rounds=5, out=tmp_path / "a")
    whole, expected = lead(five(), algorithm, rounds=5, out=tmp_path / "b")
    assert losses == expected
    assert torch.equal(grown._state.model, whole._state.model)
    assert [record["round"] for record in recorded(tmp_path / "a")] == [0, 1, 2, 3, 4]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds"] == 5
    grid = five()
    with pytest.raises(BadInput, match="contains 5 rounds of this run, more than rounds = 3"):
        lead(grid, algorithm, out=tmp_path / "a")
    for checkpoint in (tmp_path / "a").glob("checkpoint-*"):
        checkpoint.unlink()
    with pytest.raises(BadInput, match=r"ended after 5 rounds without a checkpoint.*choose another folder"):
        lead(grid, algorithm, rounds=6, out=tmp_path / "a")
    assert not grid.questions


def test_a_finished_run_that_is_kept_has_its_time_renewed(tmp_path: Path) -> None:
    """Who follows the run sees that the result was confirmed, not only that there is one."""
    lead(five(), rounds=1, out=tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    os.utime(summary, (1, 1))
    with pytest.raises(BadInput, match="beta"):
        lead(five(), FedKin(step_size=0.05, beta=0.9), rounds=1, out=tmp_path / "run")
    assert summary.stat().st_mtime == 1
    lead(five(), rounds=1, out=tmp_path / "run")
    assert summary.stat().st_mtime > 1


def test_a_run_is_not_continued_with_another_number_of_nodes(tmp_path: Path) -> None:
    with pytest.raises(Dies):
        Strategy(KIN, LOCAL, min_nodes=5, out=tmp_path / "run").start(
            five(), initial_arrays(MODEL), 4, 5.0, evaluate_fn=_dying
        )
    grid = Direct(APP, range(3))
    with pytest.raises(BadInput, match="min_nodes was 5, now 3"):
        lead(grid, min_nodes=3, rounds=4, out=tmp_path / "run")
    assert not grid.questions


@pytest.mark.parametrize("graph", ["similarity", "uniform"])
def test_a_run_is_not_continued_on_other_data(tmp_path: Path, graph: str) -> None:
    """Three nodes among which the digits are distributed anew, under names and with settings of before."""
    made = fedkin.federate(fedkin.load("digits"), clients=3)

    def other(context: Context) -> Any:
        client = int(context.node_config["partition-id"])
        rows = made.train.rows(client)
        return made.train.x[rows], made.train.y[rows], made.raw(client)

    with pytest.raises(Dies):
        Strategy(KIN, LOCAL, min_nodes=5, graph=graph, out=tmp_path / "run").start(
            five(), initial_arrays(MODEL), 4, 5.0, evaluate_fn=_dying
        )
    grid = Direct(client_app(MODEL, other), range(3))
    with pytest.raises(
        BadInput, match=r"3 of 3 nodes do not fit this run: one client \d has other data.*samples before"
    ):
        lead(grid, rounds=4, timeout=5.0, graph=graph, out=tmp_path / "run")
    assert {q.metadata.message_type for q in grid.questions} == {MessageType.QUERY}


def _dying(round: int, arrays: ArrayRecord) -> None:
    if round == 3:
        raise Dies


def test_the_folder_is_read_by_report(tmp_path: Path) -> None:
    """The same records as the engine's, so the same tables."""
    from fedkin.reports.runs import collect

    lead(five(), out=tmp_path / "flower" / "fedkin")
    (run,) = collect(tmp_path)
    assert (run.algorithm, run.status, run.experiment) == ("fedkin", "finished", "flower")
    assert run.final_value > 0.5
