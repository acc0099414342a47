"""SCAFFOLD, Ditto and IFCA on Flower, against loops in float64; selection by losses; memory through faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedkin.algorithms import IFCA, Algorithm, ClientRows, Local
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.experiments.tensor_files import read_tensors
from fedkin.flower import Strategy, initial_arrays, introduce
from fedkin.flower.memory import ClientMemory
from fedkin.flower.wire import FIRST, LOSSES, VECTORS, Order
from flower_grid import Direct, recorded
from flower_nodes import Dies
from flower_oracles import app_of, state_of, strategy_of
from loops import CASES, CLIENTS, Loop, assert_loop, played, simulation
from own_algorithms import PowerOfChoice, Scaffold

NAMES = ["scaffold", "ditto", "ifca"]


def twenty(memory: Path | None = None) -> Direct:
    return Direct(app_of(), range(CLIENTS), more={"memory-folder": str(memory)} if memory else {})


def lead(strategy: Strategy, grid: Direct, rounds: int = 3, **other: Any) -> None:
    run = simulation(Scaffold())
    strategy.start(grid, initial_arrays(run.model, run.seed), rounds, 5.0, **other)


@pytest.mark.parametrize(("members", "loop"), CASES, ids=NAMES)
@pytest.mark.parametrize("take_part", [None, 5])
def test_loops(members: list[Algorithm], loop: Any, take_part: int | None) -> None:
    """The server's state and what the clients keep, to 1e-6."""
    run, grid = simulation(members[0], take_part=take_part), twenty()
    strategy = strategy_of(run)
    lead(strategy, grid)
    assert_loop(state_of(strategy, grid), loop(run).rounds(3))


@pytest.mark.parametrize(("members", "loop"), CASES, ids=NAMES)
@pytest.mark.parametrize("take_part", [None, 5])
@pytest.mark.parametrize("damage", [False, True], ids=["sound", "newest checkpoint damaged"])
def test_resume(members: list[Algorithm], loop: Any, take_part: int | None, damage: bool, tmp_path: Path) -> None:
    """The server app dies after the nodes have worked: they go back to the memory that counts."""
    run, grid = simulation(members[0], take_part=take_part), twenty()

    def dying(round: int, arrays: ArrayRecord) -> None:
        if round == 3:
            raise Dies

    with pytest.raises(Dies):
        lead(strategy_of(run, out=tmp_path / "run"), grid, 4, evaluate_fn=dying)
    assert sorted(path.stem for path in (tmp_path / "run").glob("checkpoint-*")) == [
        "checkpoint-000001",
        "checkpoint-000002",
    ]
    if damage:
        newest = max((tmp_path / "run").glob("checkpoint-*"))
        newest.write_bytes(newest.read_bytes()[:-9])
    strategy = strategy_of(run, out=tmp_path / "run")
    lead(strategy, grid, 4)
    assert_loop(state_of(strategy, grid), loop(run).rounds(4))
    assert not any("memory_lost" in record for record in recorded(tmp_path / "run"))


@pytest.mark.parametrize(("members", "loop"), CASES, ids=NAMES)
def test_a_repeated_round_begins_with_the_same_memory(members: list[Algorithm], loop: Any) -> None:
    run, grid = simulation(members[0]), twenty()
    failed: list[int] = []

    def once(question: Message, reply: Message) -> Message | None:
        second = question.metadata.group_id == "2" and not failed
        failed.extend([1] if second else [])
        return Message(Error(2, "disk full"), reply_to=question) if second else reply

    grid.faults[3] = once
    strategy = strategy_of(run, min_replies=CLIENTS)
    lead(strategy, grid)
    assert failed
    assert_loop(state_of(strategy, grid), loop(run).rounds(3))


def test_another_run_on_the_same_nodes_begins_with_a_new_memory() -> None:
    (members, loop), grid = CASES[0], twenty()
    for member in members[:2]:
        run = simulation(member)
        strategy = strategy_of(run)
        lead(strategy, grid)
        assert_loop(state_of(strategy, grid), loop(run).rounds(3))


def test_memory_does_not_follow_a_reply_that_is_refused() -> None:
    """SCAFFOLD's control variate stays the mean of the clients': c = Σ cᵢ/N."""
    grid = twenty()

    def broken(question: Message, reply: Message) -> Message:
        if question.metadata.group_id == "2":
            zeros = Array(np.full(123, np.nan, dtype=np.float32))
            reply.content[VECTORS] = ArrayRecord({"model": zeros, "change": zeros})
        return reply

    grid.faults[3] = broken
    strategy = strategy_of(simulation(Scaffold(step_size=0.2)))
    lead(strategy, grid)
    state = state_of(strategy, grid)
    torch.testing.assert_close(state.memory["control"].values.mean(0), state.server["control"][0])


def test_a_node_that_lost_its_memory_begins_anew_and_is_recorded(tmp_path: Path) -> None:
    grid = twenty()

    def restart(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.leave(1002)
            grid.join(2, node=77)

    lead(strategy_of(simulation(Scaffold(step_size=0.2)), out=tmp_path / "run"), grid, evaluate_fn=restart)
    done = recorded(tmp_path / "run")
    assert [record.get("memory_lost") for record in done] == [None, ["2"], None]


@pytest.mark.parametrize(("members", "loop"), CASES[:2], ids=NAMES[:2])
@pytest.mark.parametrize("together", [False, True], ids=["one folder each", "one folder for all"])
def test_memory_in_a_folder_survives_restarts(
    members: list[Algorithm], loop: Any, together: bool, tmp_path: Path
) -> None:
    """Of nodes after every round, and of the server app with all nodes: the rounds are those of undisturbed clients."""
    run, folder = simulation(members[0], take_part=5), tmp_path / "kept"
    grid = twenty(folder)

    def restart(round: int, arrays: ArrayRecord) -> None:
        for partition in range(CLIENTS):
            node = 1000 * round + partition
            if round:
                grid.leave(node)
            grid.more["memory-folder"] = str(folder if together else folder / str(partition))
            grid.join(partition, node=1000 * (round + 1) + partition)
        if round == 3:
            raise Dies

    for node in list(grid.nodes):
        grid.leave(node)
    with pytest.raises(Dies):
        lead(strategy_of(run, out=tmp_path / "run"), grid, 6, evaluate_fn=restart)
    strategy = strategy_of(run, out=tmp_path / "run")
    lead(strategy, grid, 6)
    assert not any("memory_lost" in record for record in recorded(tmp_path / "run"))
    files = {client: list(folder.rglob(f"*-client-{client}-round-*")) for client in range(CLIENTS)}
    memory = {name: ClientRows(value) for name, value in members[0].remember(strategy._first).items()}
    for client, kept in files.items():
        assert len(kept) <= 3
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
        for path in sorted(kept, key=lambda path: int(path.stem.rpartition("-")[2]))[-1:]:
            found = read_tensors(path)
            assert found is not None
            memory = {name: memory[name].updated(np.array([client]), value) for name, value in found[0].items()}
    assert any(files.values())
    assert_loop(State(strategy._state.server, memory, 6), loop(run).rounds(6))


def test_a_damaged_memory_is_lost_and_so_is_that_of_another_run(tmp_path: Path) -> None:
    grid = twenty(tmp_path / "kept")

    def damage(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.leave(1002)
            (path,) = (tmp_path / "kept").glob("*-client-2-round-*")
            path.write_bytes(path.read_bytes()[:-1])
            grid.join(2, node=77)

    for name in ("one", "other"):
        strategy = strategy_of(simulation(Scaffold(step_size=0.2)), out=tmp_path / name)
        lead(strategy, grid, evaluate_fn=damage if name == "one" else None)
    assert [record.get("memory_lost") for record in recorded(tmp_path / "one")] == [None, ["2"], None]
    assert not any("memory_lost" in record for record in recorded(tmp_path / "other"))


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    grid = twenty()
    grid.nodes[1002].node_config["memory-folder"] = str(tmp_path / "file")
    lead(strategy_of(simulation(Scaffold(step_size=0.2)), out=tmp_path / "run"), grid, 1)
    (record,) = recorded(tmp_path / "run")
    assert list(record["refused"]) == ["2"]
    assert "it is not a folder" in record["refused"]["2"]


def test_the_name_of_a_run_is_no_path(tmp_path: Path) -> None:
    order = Order(Scaffold(), Local(), 0, 0, 0, run="../../0123456789")
    with pytest.raises(BadInput, match="no server of fedkin sends"):
        ClientMemory(Context(1, 1, {"memory-folder": str(tmp_path)}, RecordDict(), {}), order)


def test_a_node_keeps_the_memory_of_three_rounds() -> None:
    """The last, and two that the server may return to."""
    grid = twenty()
    lead(strategy_of(simulation(Scaffold(step_size=0.2))), grid, 5)
    (state,) = {tuple(context.state) for context in grid.nodes.values()}
    assert [name[-1] for name in state] == ["2", "3", "4"]


def test_the_first_model_is_sent_where_a_memory_begins_late() -> None:
    """To clients that are sampled for the first time, unless it is the model they receive anyway."""
    grid = twenty()
    lead(strategy_of(simulation(CASES[1][0][0], take_part=5)), grid, 4)
    known: set[int] = set()
    for question in grid.questions:
        if question.metadata.message_type == MessageType.TRAIN:
            node, late = question.metadata.dst_node_id, question.metadata.group_id != "1"
            assert (FIRST in question.content.array_records) == (late and node not in known)
            known.add(node)
    assert len(known) > 5


def test_a_reply_of_another_width_is_refused(tmp_path: Path) -> None:
    """IFCA's clients also send their choice, (2,)."""
    grid = twenty()

    def wide(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.TRAIN:
            sent = reply.content.array_records[VECTORS]
            assert sent["choice"].shape == (2,)
            sent["choice"] = Array(np.zeros(123, dtype=np.float32))
        return reply

    grid.faults[3] = wide
    lead(strategy_of(simulation(IFCA(step_size=0.2, groups=2)), out=tmp_path / "run"), grid, 1)
    (record,) = recorded(tmp_path / "run")
    assert record["refused"] == {"3": "choice has shape (123,) instead of (2,)"}


# -- selection by losses -----------------------------------------------------------------------------------------------


def test_selection_by_losses() -> None:
    """The nodes are asked for their losses, and the rounds are those of the engine."""
    run, grid = simulation(PowerOfChoice(step_size=0.2), take_part=5), twenty()
    strategy = strategy_of(run)
    lead(strategy, grid)
    torch.testing.assert_close(strategy._state.model, played(run).model, rtol=1e-5, atol=1e-6)
    kinds = [question.metadata.message_type for question in grid.questions]
    assert (kinds.count(LOSSES), kinds.count(MessageType.TRAIN)) == (30, 15)


def test_a_node_that_cannot_say_its_loss_is_not_selected(tmp_path: Path) -> None:
    """It is refused by name, and the algorithm selects among the others."""
    run, grid = simulation(PowerOfChoice(step_size=0.2, candidates=19), take_part=5), twenty()
    loop = Loop(run)
    hardest = max(range(CLIENTS), key=lambda i: loop.loss(loop.w, i))
    own = ClientApp()
    introduce(own, lambda _: None)

    def without(question: Message, reply: Message) -> Message:
        if question.metadata.message_type != LOSSES:
            return reply
        with pytest.raises(ValueError, match="losses") as error:
            own(question, grid.nodes[question.metadata.dst_node_id])
        return Message(Error(2, str(error.value)), reply_to=question)

    grid.faults[hardest] = without
    lead(strategy_of(run, out=tmp_path / "run"), grid, 1)
    asked = [q.metadata.dst_node_id - 1000 for q in grid.questions if q.metadata.message_type == MessageType.TRAIN]
    others = sorted((i for i in range(CLIENTS) if i != hardest), key=lambda i: -loop.loss(loop.w, i))
    assert asked == sorted(others[:5])
    refused = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["refused"]
    assert list(refused) == [str(hardest)]
    assert "cannot say its loss" in refused[str(hardest)]


def test_if_no_node_can_say_its_loss_the_run_ends() -> None:
    run, grid = simulation(PowerOfChoice(step_size=0.2), take_part=5), twenty()
    for i in range(CLIENTS):
        grid.faults[i] = lambda q, reply: None if q.metadata.message_type == LOSSES else reply
    strategy = strategy_of(run)
    with pytest.raises(RuntimeError, match="the same command continues"):
        strategy.start(grid, initial_arrays(run.model, run.seed), 1, 0.01)
    assert set(strategy.ledger.refused.values()) == {"no loss in time"}
