"""The hooks of a federated learning algorithm, with FedAvg as the default.

One round is

    select → send → (at each sampled client: begin → step × E → reply) → combine

A new algorithm is a subclass of `Algorithm`. It declares its hyper-parameters as dataclass fields and overrides the
hooks in which it differs from FedAvg.

Hooks are pure functions of named tensors of shape (…, rows, columns). There is one row per sampled client, or a single
row for server state. Columns are the P parameters, or the q numbers of any other quantity. Leading axes are lanes: runs
that are executed together, with hyper-parameters of shape (L, 1, 1). Hooks that broadcast therefore run as lanes
unchanged. The engine and a Flower federation call the same hooks; in Flower each client has a stack of one row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.schedules import Schedule
from fedkin.algorithms.search import Between, SearchSpace
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Integers, Record, Tensors

Hyper = float | Schedule | Tensor  # within a round a float, or (L, 1, 1): one value per lane
ServerState = dict[str, Any]  # tensors (…, 1, q), and `ClientRows`


class Vector(Protocol):
    """Parameters of a stack of clients, in any space: supports + and − of vectors, × and ÷ by scalars."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __mul__(self, scalar: Any, /) -> Any: ...
    def __rmul__(self, scalar: Any, /) -> Any: ...
    def __truediv__(self, scalar: Any, /) -> Any: ...


Vectors = Mapping[str, Vector]
Gradient = Callable[..., Any]  # of a `Vector`, in the same space


class Losses(Protocol):
    """Cross-entropy on the clients' training samples, without the L2 penalty."""

    def __call__(self, models: Tensor) -> Tensor:
        """Loss of every sample under its client's model: (…, m, P) → (…, m, n), padded with 0 for smaller clients."""

    @property
    def samples(self) -> Tensor:
        """Number of samples of each client, (m, 1)."""

    def mean(self, models: Tensor) -> Tensor:
        """Mean loss fᵢ of each client's model: (…, m, P) → (…, m, 1)."""

    def held_out(self, models: Tensor) -> Tensor:
        """Mean losses of two halves of the clients' validation samples, and their number: (…, m, P) → (…, m, 3).

        The halves are the samples with even and with odd places. They are the same if a client has one sample, and 0 if
        it has none.
        """


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Base class of all algorithms. Every hook that a subclass does not override is FedAvg's.

    step_size  γ > 0, a number or a schedule

    Fields are keys of `[algorithm]` in TOML (`step_size` of `[local]`). A field whose default is a float is a hyper-
    parameter: a number or a schedule, which may differ between lanes. Fields of other types (strings, integers) are the
    same in all lanes.

    Shapes below: P parameters, m sampled clients, q any number of columns, … lanes (none in a single run).

    Example: server momentum, v ← μ v + Σ pᵢ wᵢ − w̄, then w̄ ← w̄ + v. The server state gets a second tensor.

    >>> from dataclasses import dataclass
    >>> import torch, fedkin
    >>> @dataclass(frozen=True, kw_only=True)
    ... class FedMomentum(fedkin.Algorithm):
    ...     momentum: fedkin.algorithms.Hyper = 0.5
    ...
    ...     def start(self, model, round):
    ...         return {"model": model, "velocity": torch.zeros_like(model)}
    ...
    ...     def combine(self, server, replies, round):
    ...         update = round.average(replies["model"]) - server["model"]
    ...         velocity = self.momentum * server["velocity"] + update
    ...         return {"model": server["model"] + velocity, "velocity": velocity}
    >>> federation = fedkin.federate(fedkin.load("digits"), clients=10)
    >>> result = fedkin.train(federation, FedMomentum(step_size=0.05), rounds=5)
    >>> bool(result.test_accuracy[-1] > 0.8)
    True
    """

    step_size: Hyper = 1e-2
    neutral: ClassVar[Mapping[str, float]] = {}  # hyper-parameters at which it is FedAvg, the main one first
    validates: ClassVar[bool] = False  # whether it needs validation samples (`Losses.held_out`)
    plain_steps: ClassVar[bool] = False  # whether it counts on steps of its own length: no other local optimizer then
    search: ClassVar[SearchSpace] = {"step_size": Between(1e-3, 3.0)}  # what `fedkin compare` tunes, and where

    def __post_init__(self) -> None:
        check_range(self.step_size, "step_size", above=0)

    # -- before the rounds ---------------------------------------------------------------------------------------------

    def at(self, round: int) -> Self:
        """The algorithm in one round: schedules replaced by their values."""
        now: dict[str, Any] = {
            f.name: v(round) for f in fields(self) if isinstance(v := getattr(self, f.name), Schedule)
        }
        return replace(self, **now) if now else self

    def general(self) -> "Algorithm":
        """An equivalent algorithm of a more general class, so that runs of different classes can share lanes."""
        return self

    def work(self, local: Local) -> Local:
        """The local training of a round, given the configured one."""
        return local

    def caution(self, local: Local) -> str | None:
        """What to say before the first round if this local training is known not to suit the algorithm; else None."""
        return None

    # -- at the server -------------------------------------------------------------------------------------------------

    def start(self, model: Tensor, round: Round) -> ServerState:
        """Initial server state.

        model  initial global model w̄, (…, 1, P)
        round  the first round, with all clients

        Returns named tensors (…, 1, q) and `ClientRows`; `model` is required.
        """
        return {"model": model}

    def select(self, server: ServerState, round: Round, losses: Callable[[Tensor, Integers], Tensor]) -> Integers:
        """Sample the clients of a round: M of the available ones, uniformly without replacement.

        round   `round.who` are the available clients, `round.take_part` is M (None: all)
        losses  `losses(model, who)` are fᵢ(model) at these clients, (…, 1, P) → (…, len(who), 1); every call is an
                additional exchange with them

        Returns client indices in ascending order, (m,).
        """
        if round.take_part is None or round.take_part >= len(round):
            return round.who
        return round.who[np.sort(round.random("select").choice(len(round), round.take_part, replace=False))]

    def send(self, server: ServerState, round: Round) -> Tensors:
        """Tensors (…, m, q) sent to the sampled clients: `model`, at which local steps start, and any others."""
        return {"model": round.spread(server["model"])}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        """The next server state from the replies (…, m, q): w̄ ← Σ pᵢ wᵢ with p = `round.weights`."""
        return {"model": round.average(replies["model"])}

    def needs_only_average(self, graph: SimilarityGraph) -> bool:
        """Whether the server uses `round.average(replies["model"])` and nothing else of what clients send.

        Robust aggregation, noise at the server and secure aggregation work for such algorithms. One that overrides
        `combine` and keeps to it overrides this, too.
        """
        kind = type(self)
        return self.sends_only_model and kind.combine is Algorithm.combine

    @property
    def sends_only_model(self) -> bool:
        """Whether clients send their models and nothing else: also no losses by which they are selected."""
        kind = type(self)
        return kind.reply is Algorithm.reply and kind.select is Algorithm.select

    def exchanges(self, round: Round) -> tuple[bool, bool]:
        """Whether clients need what the server sends in a round, and whether the server needs their replies.

        Bytes are counted of what is needed. A federation on Flower sends the rest, too.
        """
        return True, True

    # -- at a client ---------------------------------------------------------------------------------------------------

    def remember(self, model: Tensor) -> Tensors:
        """Initial state that every client keeps between rounds: tensors (…, 1, q). Empty for stateless clients.

        model  initial global model w̄, (…, 1, P)
        """
        return {}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        """Prepare the local steps.

        got     tensors received from the server, (…, m, q)
        memory  tensors kept from earlier rounds, (…, m, q)
        losses  of models on the clients' training samples

        Returns `got` and `memory` as `step` and `reply` see them. Local steps start at the returned `model`.
        """
        return got, memory

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        """One local step, w ← w − γ ∇fᵢ(w).

        w         current parameters
        got       received tensors as vectors
        memory    the client's state as vectors
        gradient  `gradient(v)` is ∇fᵢ(v) on the current batch, with L2 penalty and clipping; it may be evaluated at
                  any point and more than once. `gradient(v, 1)` is that on the client's next batch (after the last,
                  the first); a step that asks for it runs on plain parameters. `gradient(v, weights=q)` multiplies
                  the loss of each sample by its weight: q is one of `got` and `memory`, (…, m, n) with a column for
                  each sample, as in `losses`; such steps are not compiled

        Returns the new w and the new memory. Vectors must not be changed in place. Steps that only use + and − of
        vectors and × and ÷ by scalars run in the faster spaces of the engine.
        """
        return w - self.step_size * gradient(w), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        """Tensors (…, m, q) that each client sends to the server after its steps, and those that it keeps.

        w      parameters after the last step, (…, m, P)
        steps  number of steps each client took, (m, 1)
        """
        return {"model": w}, memory

    # -- personal models -----------------------------------------------------------------------------------------------

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        """The personal model of each client, (…, m, P), from what `send` gives it now and what it keeps.

        If it is a mixture of M models (`mixture`), these and their shares side by side, (…, m, M·P + M).
        """
        return got["model"]

    @property
    def mixture(self) -> int:
        """M, the number of models whose predictions a client mixes; 1 if it uses a single one."""
        return 1

    def adaptation(self, local: Local) -> tuple["Algorithm", Local] | None:
        """Fine-tuning of the personal model before use: an algorithm and its local training, or None."""
        return None

    def notes(self, server: ServerState, round: Round) -> Record:
        """What the server has decided, as words and numbers for the record of the round; of a single lane."""
        return {}

    def client_notes(self, server: ServerState, round: Round) -> list[Record]:
        """What was decided for each client, for the table of clients, or an empty list; of a single lane."""
        return []

    def kin_weights(self, server: ServerState, round: Round) -> csr_array | None:
        """Weights with which all clients' models enter the start of each client, (m, C), or None; of a single lane."""
        return None

    @property
    def is_personal(self) -> bool:
        """Whether clients use personal models."""
        kind = type(self)
        return kind.own is not Algorithm.own or kind.adaptation is not Algorithm.adaptation

    # -- newcomers -----------------------------------------------------------------------------------------------------

    def invite(self, server: ServerState, round: Round) -> Tensors | None:
        """Tensors (…, m, q) for newcomers that work once so that the server can compare them with its clients.

        round  the first round, with the newcomers

        None: what the server knows of them is enough.
        """
        return None

    def welcome(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        """The server state from which `send` serves newcomers, given their replies to `invite`.

        It is not used for training, and not for other clients.
        """
        return server


class NoSamples:
    """Losses of 0, for a dry run of `begin` that only determines names and shapes."""

    def __call__(self, models: Tensor) -> Tensor:
        return models.new_zeros(*models.shape[:-1], 1)

    samples = torch.ones(1, 1)
    mean = __call__

    def held_out(self, models: Tensor) -> Tensor:
        return models.new_zeros(*models.shape[:-1], 3)


@dataclass(frozen=True)
class Exchange:
    """Names and shapes (q,) of a client's tensors: after `begin` (`got`, `memory`) and after `reply`.

    bytes_up  size of the reply
    """

    got: dict[str, tuple[int, ...]]
    memory: dict[str, tuple[int, ...]]
    reply: dict[str, tuple[int, ...]]
    kept: dict[str, tuple[int, ...]]
    bytes_up: int = 0


def trial(algorithm: Algorithm, got: Tensors, memory: Tensors) -> Exchange:
    """Dry run of `begin` and `reply` on the first client, without local steps."""

    def first(tensors: Tensors) -> Tensors:
        return {name: value[..., :1, :] for name, value in tensors.items()}

    def shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape[-1:]) for name, value in tensors.items()}

    got, memory = algorithm.begin(first(got), first(memory), NoSamples())
    sent, kept = algorithm.reply(got["model"], got, memory, got["model"].new_ones(1, 1))
    return Exchange(shapes(got), shapes(memory), shapes(sent), shapes(kept), row_bytes(sent))


def row_bytes(tensors: Tensors) -> int:
    """Bytes of one row of tensors (…, m, q): what one client of one lane receives or sends."""
    return sum(value.shape[-1] * value.element_size() for value in tensors.values())


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
    below: float | None = None,
) -> None:
    """Raise if a hyper-parameter, or an end of its schedule, is out of range. Stacked lanes are not checked."""
    if isinstance(value, Tensor):
        return
    low = "" if above is None and at_least is None else f"above {above}" if at_least is None else f"at least {at_least}"
    high = "" if at_most is None and below is None else f"below {below}" if at_most is None else f"at most {at_most}"
    for v in value.values if isinstance(value, Schedule) else (value,):
        inside = (
            np.isfinite(v)
            and (above is None or v > above)
            and (at_least is None or v >= at_least)
            and (at_most is None or v <= at_most)
            and (below is None or v < below)
        )
        if not inside:
            raise BadInput(f"{name} = {v:g} is out of range: it must be {' and '.join(filter(None, (low, high)))}")
