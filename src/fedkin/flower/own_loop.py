"""A round's work for a training loop of your own, with an optimiser of your own.

introduce(app, load_data)                       # load_data(context) gives the node's data

@app.train()
def train(msg, context):
    net = Net()
    work = Work(msg, net, context)              # loads w̄ into net
    optimizer = torch.optim.SGD(net.parameters(), lr=work.step_size)
    for x, y in loader:
        optimizer.zero_grad()
        with work.gradient_point():             # FedKin: here net holds β·w + (1−β)·u
            criterion(net(x), y).backward()
        optimizer.step()                        # outside, its gradients are the algorithm's direction
    return work.reply(samples=len(loader.dataset))
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedkin.algorithms import Algorithm
from fedkin.engine.spaces.combination import Combination, combined
from fedkin.errors import BadInput
from fedkin.flower.tasks import Task
from fedkin.types import Tensors

W, GRADIENT = "w", "gradient"  # basis vectors beside those received and remembered


@dataclass(frozen=True)
class Direction:
    """An algorithm's step as w ← w − γ·(s·∇f(point) + pull), with linear combinations for point and pull.

    FedKin: point β·w + (1−β)·u, pull α·(w − w̄), s = 1. SCAFFOLD: point w, pull c − cᵢ.
    """

    point: Combination
    pull: Combination
    scale: float


def direction_of(algorithm: Algorithm, got: Tensors, memory: Tensors) -> Direction:
    """Derive the direction d = (w − step(w))/γ from the algorithm's own step, taken once on names alone."""
    name = type(algorithm).__name__
    points: list[Combination] = []

    def gradient(v: Any) -> Any:
        points.append(v)
        return Combination({GRADIENT: 1.0})

    received, remembered = (
        {name: Combination({f"{kind} {name}": 1.0}) for name in vectors}
        for kind, vectors in (("got", got), ("memory", memory))
    )
    try:
        new: Any
        new, changed = algorithm.step(Combination({W: 1.0}), received, remembered, gradient)
        terms = _terms((Combination({W: 1.0}) - new) / algorithm.step_size)
        same = all(_terms(changed[name]) == remembered[name].terms for name in changed)
    except Exception as error:  # whatever the user's step raises on a combination
        raise BadInput(
            f"a step of {name} is more than a linear combination of vectors ({error}): use client_app, which takes it"
        ) from None
    if len(points) != 1:
        raise BadInput(
            f"a step of {name} takes {len(points)} gradients, and a training loop of your own gives it one: "
            "use client_app, which takes such steps"
        )
    if not same:
        raise BadInput(
            f"a step of {name} changes what its clients remember, which a training loop of your own cannot do: "
            "use client_app, which takes such steps"
        )
    scale = terms.pop(GRADIENT, 0.0)
    return Direction(points[0], Combination(terms), scale)


def _terms(v: Any) -> dict[str, Any]:
    """The terms that are not zero."""
    return {name: scalar for name, scalar in v.terms.items() if scalar != 0}


class Work:
    """A round's work: `gradient_point` gives your loop the point for its gradient, `reply` sends the result.

    msg      the server's message
    net      the module to train; the model at which the steps begin is loaded into it
    context  the node's context, needed for algorithms whose clients keep a memory between rounds

    The point and the direction come from the algorithm's own `step`. It has to be a linear combination of vectors with
    one gradient, and may use the client's memory but not change it. `Local` is not used: epochs, batches and penalty
    are those of your loop.
    """

    def __init__(self, msg: Message, net: nn.Module, context: Context | None = None) -> None:
        self.net = net
        self._task = Task.received(msg, context, sum(p.numel() for p in net.parameters()))
        algorithm, device = self._task.order.algorithm, next(net.parameters()).device
        got, memory = algorithm.begin(self._task.got, self._task.memory, _NoLosses(type(algorithm).__name__))
        self._got, self._memory = ({name: v.to(device) for name, v in part.items()} for part in (got, memory))
        self._direction = direction_of(algorithm, self._got, self._memory)
        self._steps = 0
        vector_to_parameters(self._got["model"][0].clone(), net.parameters())

    @property
    def step_size(self) -> float:
        """γ of this round, the learning rate with which plain SGD takes the algorithm's own steps."""
        return float(self._task.order.algorithm.step_size)  # type: ignore[arg-type]

    @contextmanager
    def gradient_point(self) -> Iterator[None]:
        """One step: inside, the module holds the point at which the algorithm asks for the gradient.

        Afterwards it holds w again, and its gradients are the direction s·∇f(point) + pull. Plain SGD with learning
        rate γ then takes the algorithm's step; any other optimiser works with the same direction.
        """
        parameters = list(self.net.parameters())
        w = parameters_to_vector(parameters).detach().clone()
        vector_to_parameters(self._at(self._direction.point, w), parameters)
        try:
            yield
        finally:
            vector_to_parameters(w, parameters)
        pull = self._at(self._direction.pull, w)
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, torch.split(pull, sizes), strict=True):
            if p.requires_grad:
                own = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = self._direction.scale * own + part.view_as(p)
        self._steps += 1

    def _at(self, v: Combination, w: Tensor) -> Tensor:
        """A combination as a vector, (P,)."""
        basis = {W: w, **{f"got {name}": value[0] for name, value in self._got.items()}}
        basis |= {f"memory {name}": value[0] for name, value in self._memory.items()}
        return combined([(scalar, basis[name]) for name, scalar in v.terms.items()] or [(0.0, w)])

    def reply(self, samples: int, metrics: dict[str, float] | None = None) -> Message:
        """What the node sends back: the algorithm's reply, and metrics of your own if you like."""
        if not self._steps:
            raise BadInput("the training loop took no step: compute its gradients inside work.gradient_point()")
        w = parameters_to_vector(self.net.parameters()).detach()[None]
        return self._task.reply(w, self._got, self._memory, self._steps, samples, metrics)


class _NoLosses:
    """Losses for an algorithm that looks at its samples before its steps: a loop of the user's own gives none."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm

    def _refuse(self) -> NoReturn:
        raise BadInput(
            f"clients of {self.algorithm} compute losses before their steps, which a training loop of your own does "
            "not: use client_app, which does"
        )

    def __call__(self, models: Tensor) -> Tensor:
        self._refuse()

    def mean(self, models: Tensor) -> Tensor:
        self._refuse()

    def held_out(self, models: Tensor) -> Tensor:
        self._refuse()
