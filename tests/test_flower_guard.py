"""Replies that pass every check and are wrong all the same: too large, or the ruin of the model."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

import fedkin
from fedkin import FedAvg, Local
from fedkin.flower import Strategy, client_app, initial_arrays
from fedkin.flower.guard import LossWatch, SizeGuard, loss_in, suspects
from fedkin.flower.wire import VECTORS, flatten
from fedkin.types import Tensors
from flower_grid import Direct, Fault, recorded
from flower_nodes import APP, FEDERATION, LOCAL, MODEL, data, five, lead, silent, tampered
from flower_oracles import app_of, strategy_of
from loops import CLIENTS, simulation
from own_algorithms import Scaffold

ORIGIN = torch.zeros(4)  # a global model; 0.1·√4 = 0.2 is never too large


def of_norms(*norms: float) -> dict[int, Tensors]:
    """A client for each norm."""
    return {i: {"model": torch.tensor([norm, 0, 0, 0], dtype=torch.float64).float()} for i, norm in enumerate(norms)}


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norms", "refused"),
    [
        ((1, 2, 1e30), [2]),  # the median is 2: more than 200 is too large
        ((1, 2, 199), []),
        ((1, 2, 201), [2]),
        ((1, 1e30), [1]),  # of two, the smaller one is usual
        ((1, 99), []),
        ((1, 10), []),  # honestly ten times as large
        ((1e30, 1, 1, 1e30), [0, 3]),  # half of them
        ((1e30, 3), [0]),
        ((5,), []),
        ((1e-12, 0.19), []),  # however small the others: never below 0.2
        ((0, 0, 0.21), [2]),
        ((0, 0.1), []),
    ],
)
def test_what_is_too_large_in_a_first_round(norms: tuple[float, ...], refused: list[int]) -> None:
    assert list(SizeGuard("auto").too_large(of_norms(*norms), ORIGIN)) == refused


def test_the_size_of_the_model_itself_is_never_too_large() -> None:
    model = torch.tensor([0, 30.0, 40, 0])
    replies = {i: {"model": model + vectors["model"]} for i, vectors in of_norms(0, 0, 49).items()}
    assert not SizeGuard("auto").too_large(replies, model)
    replies[2]["model"] = model + 51 * torch.eye(4)[0]
    assert list(SizeGuard("auto").too_large(replies, model)) == [2]


def test_what_is_usual_is_learned_over_rounds() -> None:
    """After rounds of size 1 a lone reply may have 100. Those that grow or shrink together are never refused."""
    guard = SizeGuard("auto")
    guard.learn(of_norms(1, 1, 1), ORIGIN)
    again = SizeGuard("auto", guard.tensors())  # as after a resume
    for one in (guard, again):
        assert not one.too_large(of_norms(99), ORIGIN)
        assert list(one.too_large(of_norms(101), ORIGIN)) == [0]
    for factor in (1e3, 1e6, 1e9, 1.0, 1e-6, 1e-9, 1e-3, 1e3):
        sizes = of_norms(factor, 2 * factor, 10 * factor)
        assert not guard.too_large(sizes, ORIGIN)
        guard.learn(sizes, ORIGIN)
    assert list(guard.too_large(of_norms(1e3, 1e3, 1e30), ORIGIN)) == [2]


def test_a_number_or_no_limit() -> None:
    assert list(SizeGuard(5.0).too_large(of_norms(4.9, 5.1), ORIGIN)) == [1]
    assert not SizeGuard(None).too_large(of_norms(1, 1e30), ORIGIN)


def test_one_huge_upload_costs_that_reply_and_nothing_else(tmp_path: Path) -> None:
    """By default: the round is that of the other four."""
    grid, other = five(), five()
    grid.faults[3], other.faults[3] = tampered(lambda w: w + np.float32(1e30)), silent
    strategy, _ = lead(grid, rounds=1, out=tmp_path / "run")
    assert "100 times what is usual" in recorded(tmp_path / "run")[0]["refused"]["3"]
    assert torch.equal(strategy._state.model, lead(other, rounds=1)[0]._state.model)


def test_other_vectors_are_guarded_too() -> None:
    """SCAFFOLD's control variate would never recover."""
    grid = Direct(app_of(), range(CLIENTS))

    def huge(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.TRAIN:
            reply.content.array_records[VECTORS]["change"] = Array(np.full(123, 1e30, dtype=np.float32))
        return reply

    grid.faults[3] = huge
    run = simulation(Scaffold(step_size=0.2))
    strategy = strategy_of(run)
    strategy.start(grid, initial_arrays(run.model, run.seed), 1, 5.0)
    assert list(strategy.ledger.refused) == ["3"]
    assert "change has a norm of" in strategy.ledger.refused["3"]


def test_honest_nodes_of_very_different_sizes_are_not_refused(tmp_path: Path) -> None:
    """One to some four hundred samples, hence 5 to 65 steps, also two or three nodes, from the first round on."""

    def uneven(context: Context) -> Any:
        client = int(context.node_config["partition-id"])
        x, y, raw = data(context)
        count = [1, 2, 5, 20, len(y)][client]
        return x[:count], y[:count], raw[:count] + 1e-3 * client

    for nodes in ([0, 4], [0, 1, 4], range(5)):
        out = tmp_path / str(len(nodes))
        strategy = Strategy(FedAvg(step_size=0.5), Local(epochs=5, batch_size=32), min_nodes=len(nodes), out=out)
        strategy.start(Direct(client_app(MODEL, uneven), nodes), initial_arrays(MODEL), 4, 0.2)
        assert [record["refused"] for record in recorded(out)] == [{}] * 4


# -- losses ----------------------------------------------------------------------------------------------------------


def test_a_loss_is_worse_above_the_first_and_ten_times_the_usual() -> None:
    watch = LossWatch()
    assert not watch.is_worse(1e9)  # nothing is known yet
    assert watch.is_worse(math.nan)
    for loss in (2.3, 0.5, 0.4, 0.3, 0.3, 0.2):
        watch.see(loss)
    assert watch.usual == 0.3  # of 0.5, 0.4, 0.3, 0.3, 0.2
    assert not watch.is_worse(2.99)
    assert watch.is_worse(3.01)
    for _ in range(5):
        watch.see(0.01)
    assert not watch.is_worse(2.2)  # far worse than 0.01, but not than an untrained model
    assert watch.is_worse(2.4)
    assert not watch.is_worse(None)


def test_which_number_is_the_loss() -> None:
    assert loss_in({"test_loss": 2.0, "train_loss": 1.0, "accuracy": 3.0}) == 1.0
    assert loss_in({"accuracy": 3.0, "my_loss": 4.0}) == 4.0
    assert loss_in({"accuracy": 3.0}) is None
    assert math.isnan(loss_in({"test_loss": None}) or 0.0)  # as a record holds what is not finite


def test_suspects_are_those_far_from_the_median() -> None:
    """The entrywise median of 1, 2, 3, -9, 20 is 2; of two clients each is tried, the one that moved further first."""
    assert suspects(of_norms(1, 2, 3, -9, 20), ORIGIN) == [[4], [4, 3]]
    assert suspects(of_norms(1, -2), ORIGIN) == [[1], [0]]
    assert suspects(of_norms(1), ORIGIN) == []


def spoiling(change: Callable[[Any], Any], group: str) -> Fault:
    """A node that changes its model in one round."""
    fault = tampered(change)
    return lambda question, reply: fault(question, reply) if question.metadata.group_id == group else reply


def evaluating(liar: int | None = None) -> Direct:
    """Five nodes that evaluate the model on their own samples; one may lie."""
    app = client_app(MODEL, data)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        client, w = int(context.node_config["partition-id"]), flatten(msg.content.array_records["arrays"])
        x, y, _ = data(context)
        scores = MODEL.scores(w[None], x[None])[0]
        loss = float(torch.nn.functional.cross_entropy(scores.T if scores.shape[0] == 10 else scores, y))
        numbers: Any = {"loss": 1e30 if client == liar else loss, "num-examples": len(y)}
        return Message(RecordDict({"m": MetricRecord(numbers)}), reply_to=msg)

    return Direct(app, range(5))


@pytest.mark.parametrize("source", ["evaluate_fn", "nodes"])
def test_a_reply_that_ruins_the_model_is_rolled_back(tmp_path: Path, source: str) -> None:
    """In the third round, with sizes unlimited: the round is that of the others, and the node is named."""
    grids = [five() if source == "evaluate_fn" else evaluating() for _ in range(2)]
    grids[0].faults[3] = spoiling(lambda w: np.float32(-60) * w, "3")
    grids[1].faults[3] = lambda q, reply: None if q.metadata.group_id == "3" else reply
    models: list[Tensor] = []
    for place, grid in enumerate(grids):
        settings: dict[str, Any] = {"min_nodes": 5, "max_norm": None, "evaluate": source == "nodes"}
        strategy = Strategy(FedAvg(step_size=0.05), LOCAL, out=tmp_path / str(place), **settings)
        if source == "nodes":
            strategy.start(grid, initial_arrays(MODEL), 4, 0.2)
        else:
            lead(grid, rounds=4, strategy=strategy)
        models.append(strategy._state.model)
    rounds = recorded(tmp_path / "0")
    assert [list(record["refused"]) for record in rounds] == [[], [], ["3"], []]
    assert "its reply raised the loss from" in rounds[2]["refused"]["3"]
    assert rounds[2]["replies"] == 4
    assert torch.equal(*models)


def test_a_node_that_lies_about_its_loss_rolls_nothing_back(tmp_path: Path) -> None:
    strategy = Strategy(FedAvg(step_size=0.05), LOCAL, min_nodes=5, evaluate=True, out=tmp_path / "run")
    strategy.start(evaluating(liar=2), initial_arrays(MODEL), 3, 0.2)
    assert [record["refused"] for record in recorded(tmp_path / "run")] == [{}] * 3
    assert torch.equal(strategy._state.model, lead(five(), FedAvg(step_size=0.05))[0]._state.model)


def test_two_nodes_stay_at_the_last_good_round() -> None:
    """Without the one that ruins it too few are left: the round is repeated, and the run ends with a sentence."""
    grid = Direct(APP, range(2))
    grid.faults[1] = spoiling(lambda w: np.float32(-90) * w, "3")
    strategy = Strategy(FedAvg(step_size=0.05), LOCAL, min_nodes=2, max_norm=None)
    with pytest.raises(RuntimeError, match=r"round 3 had fewer than 2 usable replies.*the same command continues"):
        lead(grid, strategy=strategy)
    assert "its reply raised the loss" in strategy.ledger.refused["1"]
    other = Strategy(FedAvg(step_size=0.05), LOCAL, min_nodes=2)
    lead(Direct(APP, range(2)), rounds=2, strategy=other)
    assert torch.equal(strategy._state.model, other._state.model)


def test_a_step_size_that_is_too_large_is_nobodys_fault(tmp_path: Path) -> None:
    """The loss rises as in the engine, and nobody is refused."""
    algorithm = FedAvg(step_size=300.0)
    _, losses = lead(five(), algorithm, rounds=3, out=tmp_path / "run")
    with pytest.warns(UserWarning, match="smaller local.step_size"):
        expected = fedkin.train(FEDERATION, algorithm, local=LOCAL, rounds=3).test_loss
    assert expected[0] > 100
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-2)  # later ones depend on every rounding
    assert [record["refused"] for record in recorded(tmp_path / "run")] == [{}] * 3


@pytest.mark.parametrize("with_loss", [True, False])
def test_a_run_that_overflows_has_diverged(tmp_path: Path, with_loss: bool) -> None:
    """Its models are no longer finite, at the nodes: the last finite one stays."""
    strategy = Strategy(FedAvg(step_size=1e30), LOCAL, min_nodes=5, out=tmp_path / "run")
    evaluate = fedkin.flower.measured(MODEL, FEDERATION) if with_loss else None
    strategy.start(five(), initial_arrays(MODEL), 6, 0.2, evaluate_fn=evaluate)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert summary["diverged_at"] == len(recorded(tmp_path / "run")) - 1 < 5


def test_a_loss_that_is_not_finite_is_a_divergence(tmp_path: Path) -> None:
    strategy = Strategy(FedAvg(step_size=0.05), LOCAL, min_nodes=5, out=tmp_path / "run")
    losses = {0: 2.0, 1: 1.0}

    def evaluate(round: int, arrays: Any) -> MetricRecord:
        numbers: Any = {"train_loss": losses.get(round, math.nan), "test_loss": 1.0, "test_accuracy": 0.5}
        return MetricRecord(numbers)

    strategy.start(five(), initial_arrays(MODEL), 5, 0.2, evaluate_fn=evaluate)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("diverged", 2)
