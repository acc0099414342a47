"""The engine: rounds of a simulated federation.

One round is  select → send → step × E → reply → checks → combine.  What belongs to every algorithm is here, once:
the L2 penalty, gradient clipping, clients with different numbers of steps, sampling of clients. An algorithm never
sees more than stacked tensors, and the engine never asks which algorithm it is.

Clients are processed in cohorts that fit the cache: one large client at a time, many tiny ones stacked. Cohorts are
dealt to threads that each use one core: for such small products that is faster than all cores at one product, and it
makes the result independent of the number of threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms import Algorithm, Tensors
from fedkin.errors import BadInput
from fedkin.federation import Federation
from fedkin.graph import SimilarityGraph
from fedkin.local import Local
from fedkin.models import Model, Softmax, seeded
from fedkin.spaces import Dealt, Plain, Prepared, Samples, Space, prepare, samples_pay

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
    stacked    False takes one client at a time, plainly: slower, and the oracle in the tests
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
    _prepared: dict[bytes, Prepared] = field(default_factory=dict, repr=False, compare=False)

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

        def work(places: NDArray[np.int64]) -> None:
            """The local work of a cohort, given by its places among those present; each writes its own rows."""
            cohort = who[places]
            mine = {name: value[..., places, :] for name, value in got.items()}
            own = {name: value[..., cohort, :] for name, value in memory.items()}
            w, own, steps = self._local_work(algorithm, local, cohort, mine, own, state.round)
            for name, value in algorithm.reply(w, mine, own, steps).items():
                whole = replies.setdefault(name, value.new_empty(*value.shape[:-2], len(who), value.shape[-1]))
                whole[..., places, :] = value
            for name, value in own.items():
                memory[name][..., cohort, :] = value

        with seeded(_key(self.seed, NOISE, state.round)):
            self._each(work, list(self._cohorts(who, local)))
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

    def _each(self, work: Callable[[NDArray[np.int64]], None], cohorts: list[NDArray[np.int64]]) -> None:
        """Do the work of every cohort, one thread a core."""
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        first, *rest = cohorts
        torch.set_num_threads(1)
        try:
            work(first)  # alone, so that what the cohorts write into exists
            if threads == 1 or len(rest) <= 1:
                for places in rest:
                    work(places)
            else:
                with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                    list(pool.map(work, rest))
        finally:
            torch.set_num_threads(threads)

    def _cohorts(self, who: NDArray[np.int64], local: Local) -> Iterator[NDArray[np.int64]]:
        """Places in `who`, grouped so that clients of like size are stacked while their batches fit the cache."""
        sizes = self.federation.train.sizes[who]
        if not self.stacked:
            yield from np.arange(len(who))[:, None]
            return
        cohort: list[int] = []
        for place in np.argsort(-sizes, kind="stable").tolist():
            # Sizes fall, so the first client of a cohort has the most samples and the widest batch.
            most = int(sizes[cohort[0] if cohort else place])
            room = COHORT_NUMBERS // (local.width(most) * self.federation.features)
            if cohort and (len(cohort) >= room or local.count(int(sizes[place])) < local.count(most)):
                yield np.array(cohort)
                cohort = []
            cohort.append(place)
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
        space = self._space(local, cohort, dealt, memory)
        vectors = space.lift(got)
        w = vectors["model"]
        for k in range(max(map(len, dealt))):
            new, memory = algorithm.step(w, vectors, memory, space.gradient(k))
            w = space.settle(k, new, w)
        steps = torch.tensor([len(batches) for batches in dealt], device=self.device)
        return space.lower(w), memory, steps

    def _space(self, local: Local, cohort: NDArray[np.int64], dealt: Dealt, memory: Tensors) -> Space:
        """Where a cohort's steps are quickest."""
        clients, model = self.federation.train, self.model
        aligned = len(cohort) == 1 or (local.order == "fixed" and not local.steps and len({*map(len, dealt)}) == 1)
        kept = self.take_part is None
        if (
            self.stacked
            and isinstance(model, Softmax)
            and not memory
            and aligned
            and samples_pay(local, clients.sizes[cohort], model.features, model.classes, kept)
        ):
            key = cohort.tobytes()
            ready = self._prepared.get(key) or prepare(clients, cohort, model.classes)
            if kept:
                self._prepared[key] = ready
            return Samples(model, local, ready, dealt)
        return Plain(model, local, clients, cohort, dealt)


def _key(*parts: int) -> int:
    """One seed for PyTorch out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
