"""How nodes introduce themselves: failures, wrong widths, the data or name of another, other data than before."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType
from flwr.clientapp import ClientApp
from torch import nn

from fedkin import FedAvg
from fedkin.errors import BadInput
from fedkin.flower import Strategy, Work, client_app, initial_arrays, introduce, nodes
from fedkin.flower.wire import VECTORS
from flower_grid import Direct, Fault
from flower_nodes import APP, KIN, LOCAL, MODEL, data, five, loader


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are asked again after 10 ms instead of a second."""
    monkeypatch.setattr(nodes, "AGAIN", 0.01)


def run(
    grid: Direct,
    rounds: int = 1,
    timeout: float = 1.0,
    events: Any = None,
    arrays: ArrayRecord | None = None,
    **more: Any,
) -> Strategy:
    """Run; `events` maps a round to what happens after it."""
    strategy = Strategy(more.pop("algorithm", KIN), LOCAL, **{"min_nodes": 5, **more})

    def evaluate(round: int, _: ArrayRecord) -> None:
        (events or {}).get(round, lambda: None)()

    strategy.start(grid, arrays or initial_arrays(MODEL), rounds, timeout, evaluate_fn=evaluate)
    return strategy


def queries(grid: Direct, node: int) -> int:
    kinds = [q.metadata.message_type for q in grid.questions if q.metadata.dst_node_id == node]
    return kinds.count(MessageType.QUERY)


def failing(times: int) -> Fault:
    """A node whose first introductions are errors."""
    left = [times]

    def fault(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.QUERY and left[0]:
            left[0] -= 1
            return Message(Error(2, "disk\nfull"), reply_to=question)
        return reply

    return fault


def sending(message: Any) -> Fault:
    """A node that sends another message."""

    def fault(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.QUERY:
            reply.content[VECTORS] = ArrayRecord({"message": Array(np.asarray(message, dtype=np.float64))})
        return reply

    return fault


def unanswered(node: int) -> Fault:
    return lambda question, reply: None if question.metadata.dst_node_id == node else reply


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_node_that_failed_is_asked_again() -> None:
    """Twice it fails; the first graph waits for it, and numbers do not depend on that."""
    grid = five()
    grid.faults[0] = failing(2)
    strategy = run(grid)
    assert strategy.nodes.roster.names == ("0", "1", "2", "3", "4")
    assert (queries(grid, 1000), queries(grid, 1001)) == (3, 1)
    assert strategy.ledger.refused == {"node 1000": "error 2: disk"}
    assert len(strategy._asked.messages) == 5


def test_where_all_fail_the_run_gives_up_and_says_who_and_why() -> None:
    grid = five()
    grid.faults |= {i: failing(10**6) for i in range(5)}
    with pytest.raises(
        RuntimeError, match=r"0 of the 5.*node 1000 refused \d+ times, error 2: disk.*command continues"
    ):
        run(grid, timeout=0.3)
    assert 3 < queries(grid, 1000) < 12  # after 10, 20, 40, … ms


def test_a_newcomer_that_does_not_say_who_it_is_holds_nobody_up_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round after it has connected waits for it a while, the others do not; it is asked once in that time."""
    monkeypatch.setattr(nodes, "ANSWER", 0.3)
    grid = Direct(APP, range(4))
    grid.faults[4] = unanswered(1004)
    events: dict[int, Any] = {1: lambda: grid.join(4)}
    seconds = []
    for round in (2, 3, 4):
        events[round] = lambda: seconds.append(time.monotonic())
    began = time.monotonic()
    strategy = run(grid, rounds=4, timeout=60.0, events=events, min_nodes=4)
    assert len(strategy.nodes.roster) == 4
    assert queries(grid, 1004) == 1
    waited = np.diff([began, *seconds])
    assert waited[0] > 0.3
    assert waited[1:].sum() < 0.3 + waited[0]  # rounds of tens of milliseconds


# -- features, data, models --------------------------------------------------------------------------------------------


def test_most_nodes_decide_the_number_of_features() -> None:
    """The first to answer sends a unit vector of 3 entries: it is refused, not the others."""
    grid = five()
    grid.faults[0] = sending([1, 0, 0])
    strategy = run(grid, min_nodes=4)
    assert strategy.nodes.roster.names == ("1", "2", "3", "4")
    assert strategy.ledger.refused == {"node 1000": "the message has 3 entries where the others have 64"}


def test_where_two_differ_the_model_decides() -> None:
    """Of three nodes, one fails; one of the two others sends 3 entries, and the model's weight is 10 × 64."""
    app = client_app(lambda: nn.Linear(64, 10), lambda context: loader(context, 100))
    grid = Direct(app, range(3))
    grid.faults |= {0: sending([1, 0, 0]), 1: failing(1)}
    strategy = run(grid, arrays=ArrayRecord(nn.Linear(64, 10).state_dict()), min_nodes=2)
    assert strategy.nodes.roster.names == ("1", "2")
    assert "3 entries where the others have 64" in strategy.ledger.refused["node 1000"]


def test_of_two_nodes_with_the_same_data_one_is_refused_at_the_start_too() -> None:
    grid = Direct(client_app(MODEL, lambda c: data(_at(c, int(c.node_config["partition-id"]) % 4))), range(5))
    strategy = run(grid, min_nodes=4)
    assert strategy.nodes.roster.names == ("0", "1", "2", "3")
    assert "client 4 cannot join the graph" in strategy.ledger.refused["node 1004"]
    with pytest.raises(RuntimeError, match=r"only 4 of the 5 nodes.*hold the same data"):
        run(grid, timeout=0.1)
    assert len(run(grid, floor=1e-6).nodes.roster) == 5


def _at(context: Context, partition: int) -> Context:
    return Context(1, context.node_id, {"partition-id": partition}, context.state, {})


def frozen() -> nn.Sequential:
    """The first layer is not trained."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    net[0].requires_grad_(False)
    return net


def own_loop() -> ClientApp:
    """Plain SGD with gradients of a module whose first layer is frozen."""
    app = ClientApp()
    introduce(app, lambda context: loader(context, 100))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        net = frozen()
        work = Work(msg, net)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=work.step_size)
        for x, y in loader(context, 100):
            optimizer.zero_grad()
            with work.gradient_point():
                nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert torch.equal(net.state_dict()["0.weight"], frozen().state_dict()["0.weight"])
        return work.reply(100)

    return app


def test_a_loop_of_ones_own_with_frozen_parameters() -> None:
    """Trained parameters alone, or all of them: the same steps."""
    models = [
        run(Direct(own_loop(), range(5)), arrays=arrays, algorithm=FedAvg(step_size=0.05), own_loops=True)._state.model
        for arrays in (initial_arrays(frozen()), ArrayRecord(frozen().state_dict()))
    ]
    assert [len(model) for model in models] == [90, 610]
    torch.testing.assert_close(models[0], models[1][-90:])
    assert not torch.equal(models[0], torch.nn.utils.parameters_to_vector(frozen()[2].parameters()))


def test_frozen_parameters_stay_at_the_nodes() -> None:
    """Only 8 · 10 + 10 numbers travel, or the whole state; nodes that do not fit are not asked to train."""
    app = client_app(frozen, lambda context: loader(context, 100))
    models = [
        run(Direct(app, range(5)), arrays=arrays, algorithm=FedAvg(step_size=0.05))._state.model
        for arrays in (initial_arrays(frozen()), ArrayRecord(frozen().state_dict()))
    ]
    assert [len(model) for model in models] == [90, 610]
    torch.testing.assert_close(models[0], models[1][-90:])
    grid = Direct(app, range(5))
    with pytest.raises(BadInput, match="trains 90 parameters where the server's model has 650: use one model"):
        run(grid, arrays=ArrayRecord(nn.Linear(64, 10).state_dict()), algorithm=FedAvg(step_size=0.05))
    assert {q.metadata.message_type for q in grid.questions} == {MessageType.QUERY}


def test_one_node_with_another_model_is_refused_alone() -> None:
    grid = five()

    def small(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.QUERY:
            reply.content["node"] = ConfigRecord({"name": "2", "samples": 9, "parameters": 7})
        return reply

    grid.faults[2] = small
    strategy = run(grid, min_nodes=4)
    assert strategy.nodes.roster.names == ("0", "1", "3", "4")
    assert "trains 7 parameters" in strategy.ledger.refused["node 1002"]


# -- names -------------------------------------------------------------------------------------------------------------


def test_of_two_nodes_with_one_name_one_is_refused() -> None:
    grid = Direct(APP, [0, 1, 2, 3, 4])
    grid.join(3, node=2000)
    strategy = run(grid)
    assert strategy.nodes.roster.names == ("0", "1", "2", "3", "4")
    assert strategy.nodes.roster.nodes[3] == 1003
    assert "claims the name 3 of another node" in strategy.ledger.refused["node 2000"]


def test_a_name_is_kept_by_the_node_that_answers_for_it() -> None:
    """One that comes later is refused, and gets the name when the first one has gone."""
    grid = five()
    holders: list[int] = []
    strategy = Strategy(KIN, LOCAL, min_nodes=5)

    def evaluate(round: int, _: ArrayRecord) -> None:
        if round:
            holders.append(strategy.nodes.roster.nodes[3])
        if round == 1:
            grid.join(3, node=2000)
        if round == 2:
            assert "claims the name 3" in strategy.ledger.refused["node 2000"]
            grid.leave(1003)

    strategy.start(grid, initial_arrays(MODEL), 4, 1.0, evaluate_fn=evaluate)
    assert holders == [1003, 1003, 2000, 2000]


def test_a_node_that_no_longer_answers_loses_its_name() -> None:
    """As long as Flower lists a killed node, the restarted one has its name only after the old one was asked."""
    grid = five()

    def restarted() -> None:
        grid.join(3, node=2000)
        grid.faults[3] = unanswered(1003)

    # On a busy machine a round may begin while the old node can still answer; one of the next does not.
    strategy = run(grid, rounds=5, timeout=0.3, events={1: restarted})
    assert strategy.nodes.roster.nodes[3] == 2000
    assert [q.metadata.dst_node_id for q in grid.questions if q.metadata.group_id == "5"][3] == 2000


def test_records_name_clients_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Whoever introduced itself first."""
    grid = Direct(APP, [3, 0, 4, 1, 2])
    run(grid, rounds=2, out=tmp_path / "run")
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        for counted in ("bytes_down", "bytes_up"):
            assert list(json.loads(line)[counted]) == ["0", "1", "2", "3", "4"]


def test_without_a_key_there_is_no_identity_by_key() -> None:
    class Keyless(Direct):
        def get_nodes(self) -> Iterable[Any]:
            found = list(super().get_nodes())
            for node in found:
                node.public_key = b""
            return found

    with pytest.raises(RuntimeError, match="has no registered key"):
        run(Keyless(APP, range(5)), timeout=0.1, identity="key")


# -- data that change --------------------------------------------------------------------------------------------------


def test_a_client_that_comes_back_with_other_data_is_refused() -> None:
    """It has a third of its samples, or another message; with `changing_data` it is as it was."""
    fewer = [False]

    def some(context: Context) -> Any:
        x, y, raw = data(context)
        is_cut = fewer[0] and int(context.node_config["partition-id"]) == 2
        return (x[::3], y[::3], raw[::3]) if is_cut else (x, y, raw)

    for allowed in (False, True):
        fewer[0] = False
        grid = Direct(client_app(MODEL, some), range(5))

        def restart(grid: Direct = grid) -> None:
            fewer[0] = True
            grid.leave(1002)
            grid.join(2, node=77)

        strategy = run(grid, rounds=2, events={1: restart}, changing_data=allowed)
        assert len(strategy._asked.messages) == (5 if allowed else 4)
        assert ("node 77" in strategy.ledger.refused) == (not allowed)
    message = [0.0] * 63 + [1.0]
    grid = five()

    def turned() -> None:
        grid.leave(1002)
        grid.join(2, node=77)
        grid.faults[2] = sending(message)

    strategy = run(grid, rounds=2, events={1: turned})
    assert "other data than when it joined this run (another message" in strategy.ledger.refused["node 77"]
