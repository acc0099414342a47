"""The hooks of an algorithm, with FedAvg's behaviour in each.

One round is

    select → send → (at each client: begin → step × E → reply) → combine

and a new algorithm is one small class: hyper-parameters as frozen fields, and whichever hooks it changes.

Hooks are pure: named tensors go in and come out. Every tensor is (…, rows, columns). Rows are the sampled clients, or
a single one for what belongs to the server alone; columns are the P parameters, or whatever else is kept or sent. Axes
in front are lanes: runs that are executed together, whose hyper-parameters are then tensors (L, 1, 1). So an algorithm
that broadcasts runs as lanes. The same object drives the engine and a Flower federation, there with one client a stack.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput
from fedkin.types import Integers, Tensors

Hyper = float | Schedule | Tensor  # in a round a float, or (L, 1, 1) with an entry a lane
ServerState = dict[str, Any]  # tensors (…, 1, q), and `ClientRows`


class Vector(Protocol):
    """Parameters of a stack of clients, in whichever space local steps are computed: + and −, × and ÷ by scalars."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __mul__(self, scalar: Any, /) -> Any: ...
    def __rmul__(self, scalar: Any, /) -> Any: ...
    def __truediv__(self, scalar: Any, /) -> Any: ...


Vectors = Mapping[str, Vector]
Gradient = Callable[[Any], Any]  # of a `Vector`, in whichever space


class Losses(Protocol):
    """Cross-entropy of models on the training samples of the clients at hand, without the L2 penalty."""

    def __call__(self, models: Tensor) -> Tensor:
        """Of every sample under its client's model: (…, m, P) to (…, m, n); 0 where a client has fewer samples."""

    def mean(self, models: Tensor) -> Tensor:
        """fᵢ of each client's model: (…, m, P) to (…, m, 1)."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The base of all algorithms: FedAvg in every hook that a subclass does not change.

    step_size  γ > 0, a number or a schedule

    Fields are what TOML and lanes see. A field with a float as its default is a hyper-parameter: a number or a
    schedule, and lanes may differ in it. Fields of other types (words, integers) are the same in all lanes.
    """

    step_size: Hyper = 1e-3
    neutral: ClassVar[Mapping[str, float]] = {}  # values of its knobs at which it is FedAvg, the main knob first

    def __post_init__(self) -> None:
        check_range(self.step_size, "step_size", above=0)

    # -- before the rounds ---------------------------------------------------------------------------------------------

    def at(self, round: int) -> Self:
        """The algorithm in one round: every schedule replaced by its value there."""
        now: dict[str, Any] = {
            f.name: v(round) for f in fields(self) if isinstance(v := getattr(self, f.name), Schedule)
        }
        return replace(self, **now) if now else self

    def general(self) -> "Algorithm":
        """The same algorithm as a member of a larger class, so that runs of several classes can be lanes together."""
        return self

    def work(self, local: Local) -> Local:
        """The local work of a round, given the configured one."""
        return local

    # -- at the server -------------------------------------------------------------------------------------------------

    def start(self, model: Tensor, round: Round) -> ServerState:
        """The server's state before the first round, from the first global model w̄ (…, 1, P).

        `round` is the first one, about all clients.
        """
        return {"model": model}

    def select(self, server: ServerState, round: Round, losses: Callable[[Tensor, Integers], Tensor]) -> Integers:
        """The clients of a round, ascending: M of those available, at random.

        `losses(model, who)` asks clients for fᵢ(model): (…, 1, P) to (…, len(who), 1). It takes an exchange of its own.
        """
        if round.take_part is None or round.take_part >= len(round):
            return round.who
        return round.who[np.sort(round.random("select").choice(len(round), round.take_part, replace=False))]

    def send(self, server: ServerState, round: Round) -> Tensors:
        """What each sampled client receives: `model`, where its steps begin, and whatever else, (…, m, q)."""
        return {"model": round.spread(server["model"])}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        """The server's next state from the replies (…, m, q): w̄ ← Σ pᵢ wᵢ."""
        return {"model": round.average(replies["model"])}

    # -- at a client ---------------------------------------------------------------------------------------------------

    def remember(self, model: Tensor) -> Tensors:
        """What a client keeps to itself between rounds, before its first: tensors (…, 1, q), or nothing."""
        return {}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        """A client looks at what it received before its first step: what it works with, and its memory.

        The steps begin at the `model` that is returned.
        """
        return got, memory

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        """One local step w ← w − γ ∇fᵢ(w), and the memory after it.

        `gradient(v)` is ∇fᵢ(v) on the batch at hand, with the L2 penalty, clipped. It may be asked for at any point,
        and more than once. Vectors are never changed in place.
        """
        return w - self.step_size * gradient(w), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        """What each client sends back after its steps, and what it keeps: tensors (…, m, q). `steps` is (m, 1)."""
        return {"model": w}, memory

    # -- the clients' own models ---------------------------------------------------------------------------------------

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        """The model that each client itself uses, (…, m, P), from what it would receive now and what it keeps."""
        return got["model"]

    def adaptation(self, local: Local) -> tuple["Algorithm", Local] | None:
        """Steps that a client takes from its own model before it uses it: by which algorithm, and how many."""
        return None

    @property
    def is_personal(self) -> bool:
        """Whether clients use models of their own."""
        kind = type(self)
        return kind.own is not Algorithm.own or kind.adaptation is not Algorithm.adaptation


class NoSamples:
    """Losses where there are no samples: for a trial of `begin` that only shows names and shapes."""

    def __call__(self, models: Tensor) -> Tensor:
        return models.new_zeros(*models.shape[:-1], 1)

    def mean(self, models: Tensor) -> Tensor:
        return models.new_zeros(*models.shape[:-1], 1)


@dataclass(frozen=True)
class Exchange:
    """The names and shapes (q,) of what a client works with, keeps and replies in a round."""

    got: dict[str, tuple[int, ...]]
    memory: dict[str, tuple[int, ...]]
    reply: dict[str, tuple[int, ...]]
    kept: dict[str, tuple[int, ...]]


def trial(algorithm: Algorithm, got: Tensors, memory: Tensors) -> Exchange:
    """Try out what one client, the first, would send and keep. No step is taken."""

    def first(tensors: Tensors) -> Tensors:
        return {name: value[..., :1, :] for name, value in tensors.items()}

    def shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape[-1:]) for name, value in tensors.items()}

    got, memory = algorithm.begin(first(got), first(memory), NoSamples())
    sent, kept = algorithm.reply(got["model"], got, memory, got["model"].new_ones(1, 1))
    return Exchange(shapes(got), shapes(memory), shapes(sent), shapes(kept))


def is_hyper(algorithm: type[Algorithm], name: str) -> bool:
    """Whether a field is a hyper-parameter, in which lanes may differ."""
    (found,) = (f for f in fields(algorithm) if f.name == name)
    return isinstance(found.default, float | Schedule) or found.type in (Hyper, float, "Hyper", "float")


def check_range(
    value: Hyper,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    """Raise unless a hyper-parameter, or both ends of its schedule, lie in the range. Lanes were checked one by one."""
    if isinstance(value, Tensor):
        return
    low = "" if above is None and at_least is None else f"above {above}" if at_least is None else f"at least {at_least}"
    high = "" if at_most is None else f"at most {at_most}"
    for v in value.values if isinstance(value, Schedule) else (value,):
        inside = (
            np.isfinite(v)
            and (above is None or v > above)
            and (at_least is None or v >= at_least)
            and (at_most is None or v <= at_most)
        )
        if not inside:
            raise BadInput(f"{name} = {v:g} is out of range: it must be {' and '.join(filter(None, (low, high)))}")
