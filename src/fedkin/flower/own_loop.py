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

A loop that is elsewhere stays as it is with `work = Work(msg, net, context).hooked()`.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from fedkin.algorithms import Algorithm
from fedkin.engine.spaces.combination import Combination, combined
from fedkin.errors import BadInput
from fedkin.flower.layout import Layout, load_entries
from fedkin.flower.tasks import Task, model_in
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
    net      the module to train; the model at which the steps begin is loaded into it. It may be moved to a device
             before or afterwards
    context  the node's context, needed for algorithms whose clients keep a memory between rounds

    The point and the direction come from the algorithm's own `step`. It has to be a linear combination of vectors with
    one gradient, and may use the client's memory but not change it. `Local` is not used: epochs, batches and penalty
    are those of your loop.
    """

    def __init__(self, msg: Message, net: nn.Module, context: Context | None = None) -> None:
        self.net, sent = net, model_in(msg)
        self._task = Task.received(msg, context, Layout.of(net, len(sent)))
        algorithm = self._task.order.algorithm
        self._got, self._memory = algorithm.begin(
            self._task.got, self._task.memory, _NoLosses(type(algorithm).__name__)
        )
        self._direction = direction_of(algorithm, self._got, self._memory)
        self._steps, self._uses_step_size = 0, False
        self._w: Tensor | None = None  # while the module holds the point for the gradient
        self._hooks: list[RemovableHandle] = []
        load_entries(net, sent)
        vector_to_parameters(self._got["model"][0].clone().to(self._trained[0].device), self._trained)

    @property
    def _trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen, wherever they are now."""
        return [p for p in self.net.parameters() if p.requires_grad]

    @property
    def step_size(self) -> float:
        """γ of this round, with which plain SGD takes the algorithm's own steps. If it is used, it is on record."""
        self._uses_step_size = True
        return float(self._task.order.algorithm.step_size)  # type: ignore[arg-type]

    @contextmanager
    def gradient_point(self) -> Iterator[None]:
        """One step: inside, the module holds the point at which the algorithm asks for the gradient.

        Afterwards it holds w again, and its gradients are the direction s·∇f(point) + pull. Plain SGD with learning
        rate γ then takes the algorithm's step; any other optimiser works with the same direction.
        """
        self._move()
        try:
            yield
        except BaseException:
            self._return()
            raise
        self._turn()

    def hooked(self) -> "Work":
        """Take the steps of a loop that stays as it is: without `gradient_point`, and from anywhere.

        With gradients enabled, a call of the module moves it to the point for the gradient; `optimizer.step()` first
        moves it back to w and makes its gradients the algorithm's direction. Ends with `reply`.
        """
        here = weakref.ref(self)  # the hooks of optimisers are global, and must not keep the module alive

        def before_forward(*_: Any) -> None:
            if (work := here()) is not None and work._w is None and torch.is_grad_enabled():
                work._move()

        def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if (work := here()) is not None and work._w is not None and work._is_of(optimizer):
                work._turn()

        def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if (work := here()) is not None and work._w is not None and work._is_of(optimizer):
                work._return()
                raise BadInput(
                    f"{type(optimizer).__name__} computes gradients within its step, which cannot be followed: use "
                    "another optimizer"
                )

        self._hooks = [
            self.net.register_forward_pre_hook(before_forward),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(after_step),
        ]
        weakref.finalize(self, _remove, self._hooks)  # if the loop fails, there is no reply
        return self

    def _is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        own = {id(p) for p in self._trained}
        return any(id(p) in own for group in optimizer.param_groups for p in group["params"])

    def _move(self) -> None:
        """From w to the point for the gradient."""
        parameters = self._trained
        self._w = parameters_to_vector(parameters).detach().clone()
        vector_to_parameters(self._at(self._direction.point, self._w), parameters)

    def _return(self) -> None:
        """From the point back to w."""
        if self._w is not None:
            vector_to_parameters(self._w.to(self._trained[0].device), self._trained)
            self._w = None

    def _turn(self) -> None:
        """From the point back to w, where the gradients become the algorithm's direction."""
        self._return()
        parameters = self._trained
        pull = self._at(self._direction.pull, parameters_to_vector(parameters).detach())
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, torch.split(pull, sizes), strict=True):
            own = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = self._direction.scale * own + part.view_as(p)
        self._steps += 1

    def _at(self, v: Combination, w: Tensor) -> Tensor:
        """A combination as a vector, (P,), where w is: the module may be moved to another device after `Work(…)`."""
        for part in (self._got, self._memory):
            part |= {name: value.to(w.device) for name, value in part.items() if value.device != w.device}
        basis = {W: w, **{f"got {name}": value[0] for name, value in self._got.items()}}
        basis |= {f"memory {name}": value[0] for name, value in self._memory.items()}
        return combined([(scalar, basis[name]) for name, scalar in v.terms.items()] or [(0.0, w)])

    def reply(self, samples: int, metrics: dict[str, float] | None = None) -> Message:
        """What the node sends back: the algorithm's reply, the number of steps, and metrics of your own if you like."""
        self._return()
        _remove(self._hooks)
        if not self._steps:
            raise BadInput(
                "the training loop took no step: compute its gradients inside work.gradient_point(), or call the "
                "module after work.hooked()"
            )
        w = parameters_to_vector(self._trained).detach()[None]
        numbers = {"steps": float(self._steps), **(metrics or {})}
        if self._uses_step_size:
            numbers["step_size"] = self.step_size
        return self._task.reply(w, self._got, self._memory, self._steps, samples, numbers, own_loop=True)


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


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

    @property
    def samples(self) -> Tensor:
        self._refuse()

    def mean(self, models: Tensor) -> Tensor:
        self._refuse()

    def held_out(self, models: Tensor) -> Tensor:
        self._refuse()
