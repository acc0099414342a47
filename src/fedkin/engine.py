"""The engine: rounds of a simulated federation.

One round is  select → send → step × E → reply → checks → combine.  What belongs to every algorithm is here, once:
the L2 penalty, gradient clipping, clients with different numbers of steps, sampling of clients. An algorithm never
sees more than stacked tensors, and the engine never asks which algorithm it is.

Clients are processed in cohorts that fit the cache: one large client at a time, many tiny ones stacked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms import Algorithm, Tensors, Vector
from fedkin.errors import BadInput
from fedkin.federation import Clients, Federation
from fedkin.graph import SimilarityGraph
from fedkin.local import Local
from fedkin.models import Model, seeded

# A cohort's batch holds at most this many numbers (4 bytes each), so that it stays in a core's cache.
COHORT_NUMBERS = 1 << 18

# Purposes of random numbers: every draw is keyed by (seed, purpose, …), so that no draw depends on how many came
# before it. That is what makes a resumed run equal an uninterrupted one.
SELECT, BATCHES, NOISE = 101, 102, 103


@dataclass(frozen=True)
class State:
    """Where a run stands: `round` rounds are done."""

    server: Tensors
    memory: Tensors = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True)
class Simulation:
    """Everything that stays the same over the rounds of a run.

    weights    p, by which the server averages, (C,); renormalised over those present
    take_part  M, how many clients take part in a round, drawn at random (None: all)
    stacked    False processes one client at a time: slower, and the oracle in the tests
    """

    federation: Federation
    model: Model
    algorithm: Algorithm
    graph: SimilarityGraph
    weights: NDArray[np.float64]
    local: Local = Local()
    take_part: int | None = None
    seed: int = 0
    stacked: bool = True

    def __post_init__(self) -> None:
        clients = len(self.federation.train)
        if self.take_part is not None and not 1 <= self.take_part <= clients:
            raise BadInput(
                f"take_part = {self.take_part} is out of range: between 1 and all {clients} clients can take part in a round"
            )

    @property
    def device(self) -> torch.device:
        """Where the samples are, and so the computation."""
        return self.federation.train.x.device

    def start(self) -> State:
        """The state before the first round."""
        model = self.model.start(self.seed).to(self.device)
        clients = len(self.federation.train)
        return State(self.algorithm.start(model, clients), self.algorithm.remember(model, clients))

    def advance(self, state: State) -> State:
        """One round."""
        algorithm = self.algorithm.at(state.round)
        local = algorithm.work(self.local)
        who = self.select(state.round)
        got = algorithm.send(state.server, self.graph, who)
        replies: Tensors = {}
        memory = {name: value.clone() for name, value in state.memory.items()}
        with seeded(_key(self.seed, NOISE, state.round)):
            for places in self._cohorts(who, local):
                cohort = who[places]
                mine = {name: value[..., places, :] for name, value in got.items()}
                own = {name: value[..., cohort, :] for name, value in memory.items()}
                w, own, steps = self._local_work(algorithm, local, cohort, mine, own, state.round)
                for name, value in algorithm.reply(w, mine, own, steps).items():
                    if name not in replies:
                        replies[name] = value.new_empty(*value.shape[:-2], len(who), value.shape[-1])
                    replies[name][..., places, :] = value
                for name, value in own.items():
                    memory[name][..., cohort, :] = value
        present = self.weights[who]
        p = torch.as_tensor(present / present.sum(), dtype=torch.float32, device=self.device)
        return State(algorithm.combine(state.server, replies, who, p), memory, state.round + 1)

    def select(self, round: int) -> NDArray[np.int64]:
        """The clients of a round, ascending."""
        clients = len(self.federation.train)
        if self.take_part is None or self.take_part == clients:
            return np.arange(clients)
        rng = np.random.default_rng([self.seed, SELECT, round])
        return np.sort(rng.choice(clients, self.take_part, replace=False))

    def _cohorts(self, who: NDArray[np.int64], local: Local) -> Iterator[NDArray[np.int64]]:
        """Places in `who`, grouped so that clients of like size are stacked while their batches fit the cache."""
        sizes = self.federation.train.sizes[who]
        if not self.stacked:
            yield from np.arange(len(who))[:, None]
            return
        batch = np.array([len(max(local.batches(int(n), _FIRST), key=len)) for n in np.unique(sizes)])
        widest = dict(zip(np.unique(sizes).tolist(), batch.tolist(), strict=True))
        cohort: list[int] = []
        for place in np.argsort(-sizes, kind="stable"):
            # Sizes fall, so the first client of a cohort has its widest batch.
            width = widest[int(sizes[cohort[0] if cohort else place])]
            if cohort and (len(cohort) + 1) * width * self.federation.features > COHORT_NUMBERS:
                yield np.array(cohort)
                cohort = []
            cohort.append(int(place))
        yield np.array(cohort)

    def _local_work(
        self,
        algorithm: Algorithm,
        local: Local,
        cohort: NDArray[np.int64],
        got: Tensors,
        memory: Tensors,
        round: int,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """All local steps of a cohort; how many each client took is returned too."""
        dealt = [
            local.batches(int(self.federation.train.sizes[i]), np.random.default_rng([self.seed, BATCHES, round, i]))
            for i in cohort
        ]
        steps = torch.tensor([len(batches) for batches in dealt], device=self.device)
        w = got["model"]
        for batch in _stack(self.federation.train, cohort, dealt):
            new, new_memory = algorithm.step(w, got, memory, penalised(self.model, batch, local))
            if batch.active is not None:  # some clients have taken all their steps
                new = torch.where(batch.active, new, w)
                new_memory = {name: torch.where(batch.active, v, memory[name]) for name, v in new_memory.items()}
            w, memory = new, new_memory
        return w, memory, steps


_FIRST = np.random.default_rng(0)  # for the widths of batches, which do not depend on the order


@dataclass(frozen=True)
class Batch:
    """One batch of each client of a cohort: x (c, B, D), y (c, B), weight (c, B).

    Clients with fewer samples in it are filled up with samples of weight 0; `active` (c, 1) says who still has
    steps to take, None if all have.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor | None = None


def penalised(model: Model, batch: Batch, local: Local) -> Callable[[Vector], Vector]:
    """∇fᵢ on a batch: the gradient of the mean loss plus λ/2 ‖w‖², scaled down to norm G where it is longer."""

    def gradient(w: Vector) -> Vector:
        g = model.gradient(w, batch.x, batch.y, batch.weight)
        if local.l2:
            g = g + local.l2 * w
        if local.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g = g * (local.clip / norm).clamp(max=1.0)
        return g

    return gradient


def _stack(clients: Clients, cohort: NDArray[np.int64], dealt: list[list[NDArray[np.int64]]]) -> Iterator[Batch]:
    """The k-th batches of a cohort's clients, for each k."""
    device = clients.x.device
    most = max(map(len, dealt))
    for k in range(most):
        batches = [batches[k] if k < len(batches) else batches[0][:0] for batches in dealt]
        counts = np.array([len(b) for b in batches])
        width = counts.max()
        rows = np.zeros((len(cohort), width), dtype=np.int64)
        for j, (i, b) in enumerate(zip(cohort, batches, strict=True)):
            rows[j, : len(b)] = clients.offsets[i] + b
        weight = (np.arange(width) < counts[:, None]) / np.maximum(counts, 1)[:, None]
        active = None
        if counts.min() == 0:
            active = torch.as_tensor(counts > 0, device=device).unsqueeze(-1)
        first = rows[0, 0]
        if len(cohort) == 1 and np.array_equal(rows[0], np.arange(first, first + width)):
            x, y = clients.x[None, first : first + width], clients.y[None, first : first + width]  # no copy
        else:
            index = torch.as_tensor(rows, device=device)
            x, y = clients.x[index], clients.y[index]
        yield Batch(x, y, torch.as_tensor(weight, dtype=torch.float32, device=device), active)


def _key(*parts: int) -> int:
    """One seed for PyTorch out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
