"""Nodes that fail, send what cannot be used, or do not answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict

from fedkin.flower import Strategy, client_app, initial_arrays
from fedkin.flower.wire import VECTORS
from flower_grid import Direct
from flower_nodes import KIN, LOCAL, MODEL, data, five, lead, silent, tampered


def garbled(question: Message, reply: Message) -> Message:
    """A node that sends bytes which are no array."""
    if question.metadata.message_type == MessageType.TRAIN:
        reply.content[VECTORS] = ArrayRecord({"model": Array("float32", (650,), "numpy.ndarray", b"rubbish")})
    return reply


def renamed(question: Message, reply: Message) -> Message:
    """A node that sends something else."""
    if question.metadata.message_type == MessageType.TRAIN:
        reply.content[VECTORS] = ArrayRecord({"gradient": Array(np.zeros(650, dtype=np.float32))})
    return reply


BAD = {
    "shape": (tampered(lambda w: w[:-1]), "shape (649,)"),
    "dtype": (tampered(lambda w: w.astype(np.float64)), "dtype float64"),
    "nan": (tampered(lambda w: np.where(np.arange(650) == 7, np.nan, w).astype(np.float32)), "NaN"),
    "infinite": (tampered(lambda w: w + np.float32(np.inf)), "infinite"),
    "norm": (tampered(lambda w: w + np.float32(100)), "max_norm"),
    "bytes": (garbled, "cannot be read"),
    "names": (renamed, "sent gradient instead of model"),
    "silent": (silent, "no reply in time"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_costs_its_round_that_reply_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It is refused, logged and recorded with the node and the reason, and the round is that of the other four."""
    fault, reason = BAD[kind]
    grid = five()
    grid.faults[3] = fault
    with caplog.at_level("WARNING", logger="flwr.fedkin"):
        strategy, _ = lead(grid, rounds=1, max_norm=10.0, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert list(record["refused"]) == ["3"]
    assert reason in record["refused"]["3"]
    assert any("3: " in line.getMessage() and reason in line.getMessage() for line in caplog.records)
    assert (record["replies"], record["asked"]) == (4, 5)

    honest = five()
    honest.faults[3] = silent
    other, _ = lead(honest, rounds=1)
    assert torch.equal(strategy._state.model, other._state.model)
    whole, _ = lead(five(), rounds=1)
    assert not torch.equal(strategy._state.model, whole._state.model)


def test_an_error_is_traced_to_its_node(tmp_path: Path) -> None:
    """Through the message it replies to: the sender in the reply is not used."""
    calls = []

    def broken(context: Context) -> Any:
        calls.append(int(context.node_config["partition-id"]))
        if calls[-1] == 2 and len(calls) > 5:
            raise OSError("disk full")
        return data(context)

    grid = Direct(client_app(MODEL, broken), range(5))

    def anonymous(question: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's own errors are
        return reply

    grid.faults[2] = anonymous
    lead(grid, rounds=1, out=tmp_path / "run")
    refused = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["refused"]
    assert list(refused) == ["2"]
    assert "disk full" in refused["2"]


def test_a_round_with_too_few_replies_is_repeated(tmp_path: Path) -> None:
    """Three of five fail once, four are needed: the round is repeated, and the result is that of an undisturbed run."""
    grid = five()
    failed: set[int] = set()

    def once(question: Message, reply: Message) -> Message:
        node = question.metadata.dst_node_id
        if question.metadata.message_type == MessageType.TRAIN and node not in failed:
            failed.add(node)
            return tampered(lambda w: w[:1])(question, reply)  # type: ignore[return-value]
        return reply

    grid.faults |= {1: once, 2: once, 3: once}
    _, losses = lead(grid, rounds=2, min_replies=4, out=tmp_path / "run")
    _, expected = lead(five(), rounds=2)
    assert losses == expected
    first, second = map(json.loads, (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert (first["attempts"], second["attempts"]) == (2, 1)
    assert first["bytes_down"]["0"] == 2 * second["bytes_down"]["0"]  # sent twice


def test_a_round_that_never_succeeds_ends_the_run() -> None:
    """After ten attempts, with a message that says what to do."""
    grid = five()
    grid.faults |= {i: tampered(lambda w: w[:1]) for i in range(4)}
    with pytest.raises(RuntimeError, match="the same command continues"):
        lead(grid, rounds=1)


def test_a_silent_node_is_asked_again_after_a_heartbeat() -> None:
    """Killed machines stay listed for a minute: waiting for them in every round would stop the federation."""
    grid = five()
    grid.heartbeat = dict.fromkeys(grid.nodes, 100.0)
    grid.faults[4] = silent
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    asked: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        asked.append(len(strategy._asked.messages))
        if round == 2:
            grid.heartbeat[1004] = 130.0
            del grid.faults[4]

    strategy.start(grid, initial_arrays(MODEL), 4, 0.2, evaluate_fn=evaluate)
    assert asked == [0, 5, 4, 5, 5]


@pytest.mark.parametrize("kind", ["message", "name"])
def test_a_node_that_introduces_itself_badly_is_left_out(tmp_path: Path, kind: str) -> None:
    """Its message must be a unit vector like the others', and it must say who it is."""
    grid = five()

    def odd(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.QUERY:
            if kind == "message":
                reply.content[VECTORS] = ArrayRecord({"message": Array(np.full(64, np.nan))})
            else:
                del reply.content["node"]
        return reply

    grid.faults[4] = odd
    strategy, _ = lead(grid, rounds=1, min_nodes=4, out=tmp_path / "run")
    assert strategy.nodes.roster.names == ("0", "1", "2", "3")
    assert "node 1004" in json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["refused"]


def test_a_late_node_with_the_data_of_another_is_refused() -> None:
    """Two with the same data would weigh infinitely: the run goes on without the late one."""
    grid = Direct(client_app(MODEL, lambda c: data(_at(c, int(c.node_config["partition-id"]) % 5))), range(5))
    strategy = Strategy(KIN, LOCAL, min_nodes=5)

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.join(7)

    strategy.start(grid, initial_arrays(MODEL), 2, 0.2, evaluate_fn=evaluate)
    assert len(strategy.nodes.roster) == 5
    assert "client 7 cannot join" in strategy.ledger.refused["node 1007"]
    assert "hold the same data" in strategy.ledger.refused["node 1007"]


def _at(context: Context, partition: int) -> Context:
    return Context(1, context.node_id, {"partition-id": partition}, RecordDict(), {})
