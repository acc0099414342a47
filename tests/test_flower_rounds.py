"""Rounds that close before stragglers, nodes that are left out, evaluation by a fraction, replies one by one."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict

from fedkin import FedAvg
from fedkin.errors import BadInput
from fedkin.flower import Strategy, client_app, initial_arrays
from fedkin.flower.evaluation import averaged
from fedkin.flower.ledger import Probation
from flower_grid import Direct, recorded
from flower_nodes import APP, KIN, LOCAL, MODEL, data, five, lead, silent, tampered


class Slow(Direct):
    """Node 1004 keeps its replies to the rounds until they are delivered."""

    def __init__(self) -> None:
        super().__init__(APP, range(5))
        self.held: dict[str, Message] = {}
        self.faults[4] = self.hold

    def hold(self, question: Message, reply: Message) -> Message | None:
        if question.metadata.message_type != MessageType.TRAIN:
            return reply
        self.held[question.metadata.message_id] = reply
        return None

    def deliver(self) -> None:
        self._replies |= self.held
        self.held.clear()


def asked(grid: Direct, node: int) -> list[int]:
    """The rounds in which a node was asked to train."""
    train = [q for q in grid.questions if q.metadata.message_type == MessageType.TRAIN]
    return [int(q.metadata.group_id) for q in train if q.metadata.dst_node_id == node]


@pytest.mark.parametrize("settings", [{"fraction": 0.6}, {"deadline": 0.05}], ids=["fraction", "deadline"])
def test_a_round_closes_before_stragglers(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Three of five are enough, or what comes in time. The straggler is asked again when it has answered."""
    grid = Slow()
    strategy = Strategy(KIN, LOCAL, min_nodes=5, out=tmp_path / "run", **settings)

    def evaluate(round: int, _: ArrayRecord) -> None:
        if round == 2:
            grid.deliver()

    began = time.monotonic()
    strategy.start(grid, initial_arrays(MODEL), 4, 60.0, evaluate_fn=evaluate)
    assert time.monotonic() - began < 30
    rounds = recorded(tmp_path / "run")
    assert [record["replies"] for record in rounds] == [4, 4, 4, 4]
    assert asked(grid, 1004) == [1, 3]  # not in the rounds for which it is late
    assert [record["refused"] for record in rounds[:3]] == [
        {"4": "the round closed before its reply"},
        {},
        {"4": "the round closed before its reply"},
    ]


def test_a_round_does_not_close_below_min_replies() -> None:
    """Two of five would do by the fraction, but five are needed: the round waits for the fifth."""
    grid = Slow()
    strategy = Strategy(KIN, LOCAL, min_nodes=5, min_replies=5, fraction=0.4)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="fewer than 5 usable replies"):
        strategy.start(grid, initial_arrays(MODEL), 1, 0.02)
    assert time.monotonic() - began > 10 * 0.02


# -- left out ----------------------------------------------------------------------------------------------------------


def test_a_node_that_is_refused_three_times_is_left_out() -> None:
    """Refused in rounds 1 to 3, left out of 4 to 8; refused in 9, left out of 10 to 19; refused in 20."""
    probation = Probation()
    seen = []
    for round in range(22):
        if not probation.is_out("a", round):
            seen.append(round + 1)
            probation.refused("a", round)
    assert seen == [1, 2, 3, 9, 20]
    probation.accepted("a")
    for round in (30, 31):
        probation.refused("a", round)
        assert not probation.is_out("a", round + 1)


def test_the_others_go_on_without_it(tmp_path: Path) -> None:
    grid = five()
    grid.faults[3] = tampered(lambda w: w[:1])
    lead(grid, FedAvg(step_size=0.05), rounds=9, out=tmp_path / "run")
    assert asked(grid, 1003) == [1, 2, 3, 9]
    rounds = recorded(tmp_path / "run")
    assert [record.get("left_out") for record in rounds] == [None] * 3 + [["3"]] * 5 + [None]
    assert [record["asked"] for record in rounds] == [5] * 3 + [4] * 5 + [5]


def test_where_too_few_are_left_it_is_asked_all_the_same() -> None:
    """Two of five fail twice and work then; four are needed."""
    grid = five()
    left = {1003: 4, 1004: 4}

    def broken(question: Message, reply: Message) -> Message | None:
        node = question.metadata.dst_node_id
        if question.metadata.message_type == MessageType.TRAIN and left[node]:
            left[node] -= 1
            return tampered(lambda w: w[:1])(question, reply)
        return reply

    grid.faults |= {3: broken, 4: broken}
    _, losses = lead(grid, rounds=2, min_replies=4)
    assert losses == lead(five(), rounds=2)[1]


def test_a_node_that_has_gone_is_not_to_blame() -> None:
    """The SuperLink says so in its name: when it is back, it is asked."""
    grid = five()

    def gone(question: Message, reply: Message) -> Message:
        early = question.metadata.group_id in ("1", "2", "3", "4")
        return Message(Error(5, "node unavailable"), reply_to=question) if early else reply

    grid.faults[3] = gone
    lead(grid, FedAvg(step_size=0.05), rounds=5)
    assert asked(grid, 1003) == [1, 2, 3, 4, 5]


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluating(seen: list[tuple[int, int]]) -> Direct:
    app = client_app(MODEL, data)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        seen.append((int(msg.content.config_records["config"]["server-round"]), client))  # type: ignore[arg-type]
        return Message(RecordDict({"m": MetricRecord({"place": client, "num-examples": 1})}), reply_to=msg)

    return Direct(app, range(5))


def test_a_fraction_of_the_nodes_evaluates() -> None:
    """Two of five, others in other rounds, the same in the same run; none with a fraction of 0."""
    found = []
    for fraction in (0.4, 0.4, 0.0):
        seen: list[tuple[int, int]] = []
        strategy = Strategy(FedAvg(), LOCAL, min_nodes=5, evaluate=True, fraction_evaluate=fraction)
        result = strategy.start(evaluating(seen), initial_arrays(MODEL), 4, 1.0)
        found.append(seen)
        for round, numbers in result.evaluate_metrics_clientapp.items():
            assert numbers["place"] == sum(client for r, client in seen if r == round) / 2
    assert found[0] == found[1]
    assert [round for round, _ in found[0]] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len({tuple(c for r, c in found[0] if r == round) for round in range(1, 5)}) > 1
    assert found[2] == []


def test_an_evaluation_that_cannot_be_used_is_refused_by_name() -> None:
    """A list where a number of samples should be, and an error."""
    grid = evaluating([])

    def listed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.EVALUATE:
            reply.content["m"] = MetricRecord({"place": 1e9, "num-examples": [1, 2]})
        return reply

    grid.faults[0] = listed
    strategy = Strategy(FedAvg(), LOCAL, min_nodes=5, evaluate=True)
    result = strategy.start(grid, initial_arrays(MODEL), 1, 1.0)
    assert result.evaluate_metrics_clientapp[1]["place"] == (1 + 2 + 3 + 4) / 4
    assert strategy.ledger.refused == {"0": "evaluation: did not say its number of samples (num-examples)"}


def test_no_node_removes_a_metric_of_the_others() -> None:
    """Of what most nodes report, over those that do: (0.2·1 + 0.3·2) / 0.5."""
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).numpy()
    mean = averaged([{"a": 1.0, "num-examples": 3.0}, {"a": 2.0}, {"b": 5.0}], weights)
    assert dict(mean) == {"a": pytest.approx(1.6)}


# -- transport ---------------------------------------------------------------------------------------------------------


class Garbled(Direct):
    """Flower cannot decode what node 1003 sends: it raises when the reply is fetched."""

    is_down = False

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(super().pull_messages(message_ids))
        if self.is_down:
            raise ConnectionError("no route to host")
        if any(reply.metadata.src_node_id == 1003 and reply.metadata.message_type == "train" for reply in found):
            raise BadZipFile("no zip file")
        return found

    def get_nodes(self) -> Iterable[Any]:
        if self.is_down:
            raise ConnectionError("no route to host")
        return super().get_nodes()


def test_a_reply_that_flower_cannot_decode_costs_no_other() -> None:
    grid, other = Garbled(APP, range(5)), five()

    def signed(question: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 1003
        return reply

    grid.faults[3], other.faults[3] = signed, silent
    strategy, losses = lead(grid, rounds=1)
    assert "BadZipFile" in strategy.ledger.refused["3"]
    assert losses == lead(other, rounds=1)[1]
    grid.is_down = True
    with pytest.raises(ConnectionError):
        lead(grid, rounds=1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fraction": 0}, "fraction = 0 "),
        ({"fraction": 1.5}, "fraction = 1.5 "),
        ({"fraction_evaluate": -0.1}, "fraction_evaluate"),
        ({"deadline": 0}, "deadline"),
        ({"max_norm": "usual"}, "max_norm"),
        ({"max_norm": -1.0}, "max_norm"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Strategy(KIN, **settings)
