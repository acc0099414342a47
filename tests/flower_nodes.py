"""Five nodes in this process that share the digits: for the tests of the Flower halves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType
from torch import Tensor

import fedkin
from fedkin import Algorithm, FedKin, Local, Softmax
from fedkin.algorithms import Gradient, Vector, Vectors
from fedkin.flower import Strategy, client_app, initial_arrays, measured
from fedkin.flower.wire import VECTORS
from fedkin.types import Tensors
from flower_grid import Direct, Fault

MODEL = Softmax(64, 10)
LOCAL = Local(epochs=2, batch_size=32, order="shuffled")
KIN = FedKin(step_size=0.05, beta=0.5)
FEDERATION = fedkin.federate(fedkin.load("digits"), clients=5, class_imbalance=10, size_imbalance=1)


def data(context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """The data of the node's partition."""
    client = int(context.node_config["partition-id"])
    rows = FEDERATION.train.rows(client)
    return FEDERATION.train.x[rows], FEDERATION.train.y[rows], FEDERATION.raw(client)


def loader(context: Context, batch_size: int) -> torch.utils.data.DataLoader[Any]:
    """The same as a loader."""
    x, y, _ = data(context)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch_size)


APP = client_app(MODEL, data)


def five() -> Direct:
    """A grid of five nodes."""
    return Direct(APP, range(5))


def lead(
    grid: Direct,
    algorithm: Algorithm = KIN,
    rounds: int = 3,
    timeout: float = 0.2,
    strategy: Strategy | None = None,
    **settings: Any,
) -> tuple[Strategy, list[float]]:
    """Run, and the test loss of each round."""
    strategy = strategy or Strategy(algorithm, LOCAL, **{"min_nodes": 5, **settings})
    evaluate = measured(MODEL, FEDERATION, LOCAL.l2)
    result = strategy.start(grid, initial_arrays(MODEL), rounds, timeout, evaluate_fn=evaluate)
    found = result.evaluate_metrics_serverapp
    return strategy, [float(found[t]["test_loss"]) for t in range(1, rounds + 1)]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Momentum(Algorithm):
    """Clients remember a velocity: v ← v/2 + ∇f, w ← w − γ v."""

    def remember(self, model: Tensor) -> Tensors:
        return {"velocity": torch.zeros_like(model)}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v = memory["velocity"] / 2 + gradient(w)
        return w - self.step_size * v, {"velocity": v}


def tampered(change: Callable[[np.ndarray[Any, Any]], Any]) -> Fault:
    """A node that changes the model it sends."""

    def fault(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.TRAIN:
            w = reply.content.array_records[VECTORS]["model"].numpy()
            reply.content[VECTORS] = ArrayRecord({"model": Array(change(w))})
        return reply

    return fault


def silent(question: Message, reply: Message) -> Message | None:
    """A node that does not answer in the rounds."""
    return None if question.metadata.message_type == MessageType.TRAIN else reply


class Dies(Exception):  # noqa: N818 - no error of the package
    """The server app dies."""
