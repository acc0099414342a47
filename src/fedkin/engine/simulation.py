"""The engine: rounds of a simulated federation.

One round is  select → send → (begin → step × E → reply) → combine.  What belongs to every algorithm is here, once: the
L2 penalty, gradient clipping, clients with different numbers of steps, sampling of clients. An algorithm never sees
more than stacked tensors, and the engine never asks which algorithm it is.

Clients are processed in cohorts (`fedkin.engine.cohorts`), each in the space where its steps are cheapest.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, ClientRows, Lanes, Local, Round, ServerState, trial
from fedkin.algorithms.rounds import PURPOSES
from fedkin.buffers import room
from fedkin.data.federation import Federation
from fedkin.engine.cohorts import Cohort, Steps, Where, cohorts_of
from fedkin.engine.local_work import SampleLosses, batches_of_client, script_of, take_steps
from fedkin.engine.spaces.plain import Plain, is_run
from fedkin.engine.spaces.prepared import prepare
from fedkin.engine.spaces.samples import Samples
from fedkin.engine.spaces.script import Script
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Layered, Model, seeded
from fedkin.types import Floats, Integers, Tensors


@dataclass(frozen=True)
class State:
    """Where a run stands: `round` rounds are done.

    server  the server's state, by name
    memory  what clients keep to themselves, by name
    spaces  in which space the clients of the last round worked, and how many
    """

    server: ServerState
    memory: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    spaces: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def model(self) -> Tensor:
        """The global model w̄, (…, P)."""
        model: Tensor = self.server["model"]
        return model.squeeze(-2)


@dataclass(frozen=True)
class Simulation:
    """Everything that stays the same over the rounds of a run.

    weights    p, by which the server averages, (C,); renormalised over the sampled clients
    take_part  M, how many clients are sampled for a round (None: all)
    stacked    False takes one client at a time, plainly: slower, and the oracle in the tests
    """

    federation: Federation
    model: Model
    algorithm: Algorithm | Lanes
    graph: SimilarityGraph
    weights: Floats
    local: Local = field(default_factory=Local)
    take_part: int | None = None
    seed: int = 0
    stacked: bool = True
    # What was made for earlier rounds. A simulation with another federation or model begins without.
    _kept: dict[bytes, Samples] = field(default_factory=dict, init=False, repr=False, compare=False)
    _scripts: list[Script] = field(default_factory=list, init=False, repr=False, compare=False)
    _trial: list[tuple[Any, ...]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        clients = len(self.federation.train)
        if self.take_part is not None and not 1 <= self.take_part <= clients:
            raise BadInput(
                f"take_part = {self.take_part} is out of range: from 1 to all {clients} clients take part in a round"
            )

    @property
    def all_sampled(self) -> bool:
        """Whether every client takes part in every round."""
        return self.take_part is None or self.take_part == len(self.federation.train)

    @property
    def device(self) -> torch.device:
        """Where the samples are, and so the computation."""
        return self.federation.train.x.device

    def start(self) -> State:
        """The state before the first round."""
        algorithm, model = self.algorithm.at(0), self.model.start(self.seed).to(self.device)[None]
        if isinstance(self.algorithm, Lanes):
            model = model.expand(len(self.algorithm), 1, -1).contiguous()
        memory = {name: ClientRows(value) for name, value in algorithm.remember(model).items()}
        return State(algorithm.start(model, self.available(0)), memory)

    def advance(self, state: State) -> State:
        """One round."""
        algorithm = self.algorithm.at(state.round)
        round = self.sampled(algorithm, state)
        got = self.sent(algorithm, state, round)
        memory = {name: rows.at(round.who) for name, rows in state.memory.items()}
        replies, kept, spaces = self.work(algorithm, algorithm.work(self.local), round, got, memory)
        memory = {name: state.memory[name].updated(round.who, value) for name, value in kept.items()}
        server = algorithm.combine(state.server, replies, round)
        return State(server, {**state.memory, **memory}, state.round + 1, spaces)

    def available(self, number: int) -> Round:
        """A round before its clients are selected: about all of them."""
        everyone, p = np.arange(len(self.federation.train)), self.weights / self.weights.sum()
        return Round(number, everyone, p, self.graph, len(everyone), self.take_part, self.seed, self.weights)

    def sampled(self, algorithm: Algorithm, state: State) -> Round:
        """The round about the clients that the algorithm selects."""
        round = self.available(state.round)
        who = algorithm.select(state.server, round, self._losses_at)
        return round.of(who, self.weights[who])

    def _losses_at(self, model: Tensor, who: Integers) -> Tensor:
        """fᵢ(model) of clients: (…, 1, P) to (…, len(who), 1)."""
        models = model.expand(*model.shape[:-2], len(who), -1)
        return SampleLosses(self.model, self.federation.train, who).mean(models)

    def sent(self, algorithm: Algorithm, state: State, round: Round) -> Tensors:
        """What the sampled clients receive."""
        return algorithm.send(state.server, round)

    def work(
        self, algorithm: Algorithm, local: Local, round: Round, got: Tensors, memory: Tensors
    ) -> tuple[Tensors, Tensors, dict[str, int]]:
        """The local work of the sampled clients: their replies, what they keep, and in which spaces they worked."""
        replies: Tensors = {}
        kept: Tensors = {}
        models = room(got["model"], *got["model"].shape)  # those that clients end with
        names = trial(algorithm, got, memory)
        cohorts = list(self._cohorts(algorithm, local, got, names.got, names.memory, round.who))
        script = self._script(algorithm, local, names.got, names.memory, cohorts)
        looks = type(algorithm).begin is not Algorithm.begin

        def work(cohort: Cohort) -> None:
            """The local work of a cohort, which writes its own rows of what all send back."""
            clients = round.who[cohort.places]
            places = as_slice(cohort.places)  # of neighbours a view, not a copy
            into = models[..., places, :] if isinstance(places, slice) else None
            mine, own = (
                {name: at_places(value, places, len(clients)) for name, value in tensors.items()}
                for tensors in (got, memory)
            )
            if looks:
                mine, own = algorithm.begin(mine, own, SampleLosses(self.model, self.federation.train, clients))
            space = self._space(local, clients, cohort.space, round)
            if isinstance(space, Samples) and script:
                lowered = space.play(script, mine, own, into)
                w, own = lowered.pop("w"), lowered
            else:
                w, own = take_steps(algorithm, space, mine, own, max(space.counts))
            steps = torch.tensor(space.counts, dtype=w.dtype, device=self.device).unsqueeze(-1)
            sent, own = algorithm.reply(w, mine, own, steps)
            for whole, part in ((replies, sent), (kept, own)):
                for name, value in part.items():
                    if name not in whole:  # two threads may both make it: the first one's stays
                        shape = (*value.shape[:-2], len(round), value.shape[-1])
                        whole.setdefault(name, models if value is w and whole is replies else room(value, *shape))
                    if whole[name] is not models or value is not into:  # else it is there already
                        whole[name][..., places, :] = value

        with seeded(torch_seed(self.seed, PURPOSES["noise"], round.number)):
            self._each(work, cohorts)
        spaces: Counter[str] = Counter()
        for cohort in cohorts:
            spaces[cohort.space.name] += len(cohort.places)
        return replies, kept, dict(spaces)

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
        self, algorithm: Algorithm, local: Local, got: Tensors, received: Any, memory: Any, who: Integers
    ) -> Iterator[Cohort]:
        """Group the sampled clients. `received` and `memory` are the names of what they work with."""
        sizes = self.federation.train.sizes[who].tolist()
        if not self.stacked:
            return (Cohort(np.array([place]), Plain, local.count(n), n) for place, n in enumerate(sizes))
        script = self._tried(algorithm, received, memory)
        steps = Steps(
            *(self.model, local, self.device),
            linear=script is not None,
            tracks=script is not None and script.tracks() is not None,
            lanes=len(got["model"]) if got["model"].dim() == 3 else 1,
            returning=self.all_sampled,
            repeated=local is self.local and local.order == "fixed",
        )
        return cohorts_of(sizes, self.federation.features, steps)

    def _tried(self, algorithm: Algorithm, received: Any, memory: Any) -> Script | None:
        """Two steps on names alone; None if a step takes more than + and − of vectors and × by scalars.

        A step that is simply wrong fails here too; taken plainly, its error says what is wrong with it.
        """
        names = set(received), set(memory)
        if not (self._trial and self._trial[0][0] is algorithm and self._trial[0][1] == names):
            script: Script | None = None
            with contextlib.suppress(Exception):
                script = script_of(algorithm, Local(), self.device, received, memory, 2)
            self._trial[:] = [(algorithm, names, script)]
        found: Script | None = self._trial[0][2]
        return found

    def _script(
        self, algorithm: Algorithm, local: Local, received: Any, memory: Any, cohorts: list[Cohort]
    ) -> Script | None:
        """The steps of the clients in sample space, written down as far as the one with the most takes them.

        It is the same in every round, unless the algorithm is not.
        """
        steps = max((cohort.steps for cohort in cohorts if issubclass(cohort.space, Samples)), default=0)
        if not steps or local.clip is not None:
            return None
        if not (self._scripts and self._scripts[0].fits(algorithm, local, received, memory, steps)):
            self._scripts[:] = [script_of(algorithm, local, self.device, received, memory, steps)]
        return self._scripts[0]

    def _space(self, local: Local, clients: Integers, space: Where, round: Round) -> Plain | Samples:
        """Where a cohort works. In sample space much is the same in every round, and kept if the cohort comes again."""
        train, key = self.federation.train, clients.tobytes()
        kept = self._kept.get(key)
        if type(kept) is space and kept.local is local and local.order == "fixed":
            return kept
        batches = [batches_of_client(local, int(train.sizes[i]), self.seed, round.number, int(i)) for i in clients]
        if not issubclass(space, Samples):
            return space(self.model, local, train, clients, batches)
        assert isinstance(self.model, Layered)
        ready = kept.ready if type(kept) is Samples else prepare(train, clients, self.federation.classes)
        made = space(self.model, local, ready, batches)
        if self.all_sampled:
            self._kept[key] = made
        return made


def as_slice(places: Integers) -> Any:
    """Places that follow each other as a slice, others as they are."""
    return slice(int(places[0]), int(places[-1]) + 1) if is_run(places) else places


def at_places(value: Tensor, places: Any, count: int) -> Tensor:
    """What the clients in these places received; a view where all received the same, as everybody's w̄."""
    return value[..., :count, :] if value.stride(-2) == 0 else value[..., places, :]


def torch_seed(*parts: int) -> int:
    """One seed for PyTorch out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
