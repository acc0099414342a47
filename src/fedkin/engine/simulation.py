"""The engine: rounds of a simulated federation.

One round is  select → send → step × E → reply → checks → combine.  What belongs to every algorithm is here, once:
the L2 penalty, gradient clipping, clients with different numbers of steps, sampling of clients. An algorithm never
sees more than stacked tensors, and the engine never asks which algorithm it is.

Clients are processed in cohorts (`fedkin.engine.cohorts`), each in the space where its steps are cheapest.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms import Algorithm
from fedkin.algorithms.local import Local
from fedkin.buffers import room
from fedkin.data.federation import Federation
from fedkin.engine.cohorts import Cohort, Steps, Where, cohorts_of
from fedkin.engine.spaces.plain import Plain, Space, is_run
from fedkin.engine.spaces.samples import Samples, Script, prepare
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Layered, Model, seeded
from fedkin.types import Tensors

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
    local: Local = field(default_factory=Local)
    take_part: int | None = None
    seed: int = 0
    stacked: bool = True
    _kept: dict[bytes, Samples] = field(default_factory=dict, repr=False, compare=False)
    _scripts: list[Script] = field(default_factory=list, repr=False, compare=False)
    _tried: dict[type[Algorithm], int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        clients = len(self.federation.train)
        if self.take_part is not None and not 1 <= self.take_part <= clients:
            raise BadInput(
                f"take_part = {self.take_part} is out of range: from 1 to all {clients} clients take part in a round"
            )

    @property
    def all_present(self) -> bool:
        """Whether every client takes part in every round."""
        return self.take_part is None or self.take_part == len(self.federation.train)

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
        got = self.sent(algorithm, state, who)
        replies: Tensors = {}
        models = room(got["model"], *got["model"].shape)  # those that clients end with
        memory = {name: value.clone() for name, value in state.memory.items()}
        cohorts = list(self._cohorts(algorithm, local, got, who, memory))
        script = self._script(algorithm, local, got, cohorts)

        def work(cohort: Cohort) -> None:
            """The local work of a cohort, which writes its own rows of what all send back."""
            clients = who[cohort.places]
            places = as_slice(cohort.places)  # of neighbours a view, not a copy
            into = models[..., places, :] if isinstance(places, slice) else None
            mine = {name: at_places(value, places, len(clients)) for name, value in got.items()}
            own = {name: value[..., clients, :] for name, value in memory.items()}
            space = self._space(local, clients, cohort.space, state.round)
            if isinstance(space, Samples) and script:
                w = space.play(script, mine, into)
            else:
                w, own = take_steps(algorithm, space, mine, own, max(space.counts))
            steps = torch.tensor(space.counts, device=self.device)
            for name, value in algorithm.reply(w, mine, own, steps).items():
                new = models if value is w else value.new_empty(*value.shape[:-2], len(who), value.shape[-1])
                whole = replies.setdefault(name, new)
                if whole is not models or value is not into:  # else it is there already
                    whole[..., places, :] = value
            for name, value in own.items():
                memory[name][..., clients, :] = value

        with seeded(torch_seed(self.seed, NOISE, state.round)):
            self._each(work, cohorts)
        present = self.present_weights(state.round, who)
        p = torch.as_tensor(present / present.sum(), dtype=torch.float32, device=self.device)
        return State(algorithm.combine(state.server, replies, who, p), memory, state.round + 1)

    def sent(self, algorithm: Algorithm, state: State, who: NDArray[np.int64]) -> Tensors:
        """What those present receive."""
        return algorithm.send(state.server, self.graph, who)

    def present_weights(self, round: int, who: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of each of those present in the average, not yet summing to 1."""
        return self.weights[who]

    def select(self, round: int) -> NDArray[np.int64]:
        """The clients of a round, ascending."""
        clients = len(self.federation.train)
        if self.all_present:
            return np.arange(clients)
        rng = np.random.default_rng([self.seed, SELECT, round])
        return np.sort(rng.choice(clients, self.take_part, replace=False))

    def _each(self, work: Callable[[Cohort], None], cohorts: list[Cohort]) -> None:
        """Do the work of every cohort.

        They go to threads of one core each, the longest first: PyTorch's own threads would have to wait for each other
        after every operation, and there are thousands a round. Only where a single cohort would keep the other cores
        waiting, all work on the same, if they can. What a cohort computes does not depend on when the others do.
        """
        threads = torch.get_num_threads() if self.device.type == "cpu" and self.model.parallel else 1
        longest = max(cohorts, key=lambda cohort: cohort.cost)
        waiting = sum(cohort.cost for cohort in cohorts) < threads * longest.cost
        if threads == 1 or (waiting and longest.space.on_all_cores):
            for cohort in cohorts:
                work(cohort)
            return
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(work, sorted(cohorts, key=lambda cohort: -cohort.cost)))
        finally:
            torch.set_num_threads(threads)

    def _cohorts(
        self, algorithm: Algorithm, local: Local, got: Tensors, who: NDArray[np.int64], memory: Tensors
    ) -> Iterator[Cohort]:
        """Group those present."""
        sizes = self.federation.train.sizes[who].tolist()
        if not self.stacked:
            return (Cohort(np.array([place]), Plain, local.count(n), n) for place, n in enumerate(sizes))
        steps = Steps(
            *(self.model, local, self.device),
            gradients=0 if memory else self._gradients(algorithm, got),
            lanes=len(got["model"]) if got["model"].dim() == 3 else 1,
            returning=self.all_present,
            repeated=local is self.local and local.order == "fixed",
        )
        return cohorts_of(sizes, self.federation.features, steps)

    def _gradients(self, algorithm: Algorithm, got: Tensors) -> int:
        """How many gradients a step takes; 0 if it takes more than + and − of vectors and × by scalars.

        That is tried out once, on names alone. A step that is simply wrong fails here too; taken plainly, its error
        says what is wrong with it.
        """
        kind = type(algorithm)
        if kind not in self._tried:
            script = Script(algorithm, Local(), self.device)
            try:
                take_steps(algorithm, script, got, {}, 1)
                self._tried[kind] = script.gradients
            except Exception:
                self._tried[kind] = 0
        return self._tried[kind]

    def _script(self, algorithm: Algorithm, local: Local, got: Tensors, cohorts: list[Cohort]) -> Script | None:
        """The steps of those in sample space, written down as far as the one with the most takes them.

        It is the same in every round, unless the algorithm is not.
        """
        steps = max((cohort.steps for cohort in cohorts if issubclass(cohort.space, Samples)), default=0)
        if not steps or local.clip is not None:
            return None
        if not (self._scripts and self._scripts[0].fits(algorithm, local, got.keys(), steps)):
            script = Script(algorithm, local, self.device)
            take_steps(algorithm, script, got, {}, steps)
            self._scripts[:] = [script]
        return self._scripts[0]

    def _space(self, local: Local, clients: NDArray[np.int64], space: Where, round: int) -> Plain | Samples:
        """Where a cohort works. In sample space much is the same in every round, and kept if the cohort comes again."""
        train, key = self.federation.train, clients.tobytes()
        kept = self._kept.get(key)
        if type(kept) is space and kept.local is local and local.order == "fixed":
            return kept
        dealt = [deal(local, int(train.sizes[i]), self.seed, round, int(i)) for i in clients]
        if not issubclass(space, Samples):
            return space(self.model, local, train, clients, dealt)
        assert isinstance(self.model, Layered)
        ready = kept.ready if type(kept) is Samples else prepare(train, clients, self.federation.classes)
        made = space(self.model, local, ready, dealt)
        if self.all_present:
            self._kept[key] = made
        return made


def as_slice(places: NDArray[np.int64]) -> Any:
    """Places that follow each other as a slice, others as they are."""
    return slice(int(places[0]), int(places[-1]) + 1) if is_run(places) else places


def at_places(value: Tensor, places: Any, count: int) -> Tensor:
    """What the clients in these places received; a view where all received the same, as everybody's w̄."""
    return value[..., :count, :] if value.stride(-2) == 0 else value[..., places, :]


def deal(local: Local, samples: int, seed: int, round: int, client: int) -> list[NDArray[np.int64]]:
    """The batches of one client's round, drawn under a key of its own: the same wherever the client is."""
    return local.batches(samples, np.random.default_rng([seed, BATCHES, round, client]))


def take_steps(algorithm: Algorithm, space: Space, got: Tensors, memory: Tensors, steps: int) -> tuple[Tensor, Tensors]:
    """The local loop, the only one there is: from w = w̄, so many steps in a space; then back to parameters."""
    vectors = space.lift(got)
    w = vectors["model"]
    with np.errstate(all="ignore"):  # a lane that diverges does so in silence
        for k in range(steps):
            new, new_memory = algorithm.step(w, vectors, memory, space.gradient(k))
            w = space.settle(k, new, w)
            memory = {name: space.settle(k, value, memory[name]) for name, value in new_memory.items()}
        return space.lower(w), memory


def torch_seed(*parts: int) -> int:
    """One seed for PyTorch out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
