"""Simulation of the rounds of a federation.

One round is  select → send → (begin → step × E → reply) → combine.  The engine provides what all algorithms share: L2
penalty, gradient clipping, clients with different numbers of steps, client sampling. Algorithms only see stacked
tensors, and the engine does not depend on the algorithm.

Clients are processed in cohorts (`fedkin.engine.cohorts`), each in the space in which its steps are fastest.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, ClientRows, Lanes, Local, Round, ServerState, trial
from fedkin.algorithms.averaging import MEAN, Averaging
from fedkin.algorithms.base import row_bytes
from fedkin.algorithms.rounds import PURPOSES
from fedkin.buffers import room
from fedkin.data.federation import Federation
from fedkin.engine.accounting import Release
from fedkin.engine.aggregation import check_aggregation
from fedkin.engine.cohorts import Cohort, Steps, Where, as_slice, at_places, cohorts_of
from fedkin.engine.local_work import (
    SampleLosses,
    batches_of_client,
    order_of_client,
    take_steps,
    torch_seed,
)
from fedkin.engine.optimizers import check_optimizer, refuse_adam
from fedkin.engine.privacy import Privacy, check_privacy
from fedkin.engine.spaces.fused import Fused
from fedkin.engine.spaces.plain import Plain
from fedkin.engine.spaces.prepared import prepare
from fedkin.engine.spaces.samples import Samples
from fedkin.engine.spaces.script import Player, Script
from fedkin.engine.traces import Traces
from fedkin.engine.traffic import Traffic, lane_traffic
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.memory import check_memory
from fedkin.models import Layered, Mixture, Model, Module, seeded
from fedkin.threads import all_cores, on_threads, one_core, threads_for
from fedkin.types import Floats, Integers, Tensors


@dataclass(frozen=True)
class State:
    """The state of a run after `round` rounds.

    server  server state, by name
    memory  state of the clients, by name, as `ClientRows`
    spaces  number of sampled clients of the last round per space
    traffic what was exchanged in the last round, of each lane
    """

    server: ServerState
    memory: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    spaces: dict[str, int] = field(default_factory=dict, compare=False)
    traffic: tuple[Traffic, ...] = field(default=(), compare=False)

    @property
    def model(self) -> Tensor:
        """The global model w̄, (…, P)."""
        model: Tensor = self.server["model"]
        return model.squeeze(-2)


@dataclass(frozen=True)
class Simulation:
    """A run: everything that does not change over its rounds.

    weights    p, averaging weights of all clients, (C,); renormalised over the sampled clients
    take_part  M, number of clients sampled per round (None: all)
    aggregate  how the server averages models
    privacy    how uploads are clipped and get noise (None: they are not)
    stacked    False processes one client at a time in `Plain`: the slow reference for tests
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
    aggregate: Averaging = MEAN
    privacy: Privacy | None = None
    # Caches of earlier rounds; `dataclasses.replace` begins with empty ones.
    _kept: dict[bytes, Samples] = field(default_factory=dict, init=False, repr=False, compare=False)
    _traffic: dict[Any, tuple[Traffic, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    traces: Traces = field(default_factory=Traces, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        clients = len(self.trained_clients)
        if self.take_part is not None and not 1 <= self.take_part <= clients:
            raise BadInput(f"take_part = {self.take_part} is out of range: choose from 1 to all {clients} clients")
        if self.device.type == "cpu":  # the global model, and those that the sampled clients end with
            lanes = len(self.algorithm) if isinstance(self.algorithm, Lanes) else 1
            check_memory(lanes * (1 + (self.take_part or clients)) * self.model.size)
        check_optimizer(self.algorithm, self.local)
        for member in self.algorithm.given if isinstance(self.algorithm, Lanes) else (self.algorithm,):
            check_aggregation(self.aggregate, member, self.graph, self.take_part or clients)
            weights, sizes = self.weights[self.trained_clients], self.federation.train.sizes[self.trained_clients]
            check_privacy(self.privacy, self.aggregate, member, self.graph, weights, sizes)

    @property
    def computed_model(self) -> Model:
        """The model as it is computed: a module that is a linear model or a small network, as such.

        The reference for tests takes the module itself.
        """
        dense = self.model.dense if isinstance(self.model, Module) and self.stacked else None
        return self.model if dense is None else dense

    @property
    def used_model(self) -> Model:
        """The model that clients use, as a function of what `Algorithm.own` gives: a mixture, if they mix several."""
        count = self.algorithm.at(0).mixture
        return self.computed_model if count == 1 else Mixture(self.computed_model, count)

    @property
    def all_sampled(self) -> bool:
        """Whether all clients are sampled in every round."""
        return self.rate == 1

    @property
    def trained_clients(self) -> Integers:
        """The clients that may be sampled: all but newcomers."""
        return np.setdiff1d(np.arange(len(self.federation.train)), self.federation.newcomers, assume_unique=True)

    @property
    def device(self) -> torch.device:
        """The device of the samples and the computation."""
        return self.federation.train.x.device

    def caution(self) -> str | None:
        """What to say before the first round of a single run, if the local training does not suit the algorithm."""
        return None if isinstance(self.algorithm, Lanes) else self.algorithm.caution(self.local)

    def start(self) -> State:
        """Initial state."""
        algorithm, model = self.algorithm.at(0), self.model.start(self.seed).to(self.device)[None]
        if isinstance(self.algorithm, Lanes):
            model = model.expand(len(self.algorithm), 1, -1).contiguous()
        memory = {name: ClientRows(value) for name, value in algorithm.remember(model).items()}
        return State(algorithm.start(model, self.available(0)), memory)

    def advance(self, state: State) -> State:
        """Run one round."""
        with one_core():
            return self._advanced(state)

    def _advanced(self, state: State) -> State:
        algorithm = self.algorithm.at(state.round)
        asked: list[Tensor] = []
        round = self.sampled(algorithm, state, asked)
        if not len(round):
            return self._without_clients(algorithm, state)
        got = self.sent(algorithm, state, round)
        memory = {name: rows.at(round.who) for name, rows in state.memory.items()}
        replies, kept, spaces = self.work(algorithm, algorithm.work(self.local), round, got, memory)
        memory = {name: state.memory[name].updated(round.who, value) for name, value in kept.items()}
        server = algorithm.combine(state.server, self._protected(replies, got, round), round)
        traffic = self._exchanged(state, round, got, replies, asked)
        return State(server, {**state.memory, **memory}, state.round + 1, spaces, traffic)

    @property
    def expected(self) -> int:
        """M, the number of clients that are sampled in a round, on average."""
        return self.take_part or len(self.trained_clients)

    @property
    def rate(self) -> float:
        """q, the share of the clients that are sampled in a round, on average."""
        return self.expected / len(self.trained_clients)

    def _protected(self, replies: Tensors, got: Tensors, round: Round) -> Tensors:
        """The replies as the server may use them."""
        if self.privacy is None:
            return replies
        return {**replies, "model": self.privacy.uploads(replies["model"], got["model"], round, self.expected)}

    def _without_clients(self, algorithm: Algorithm, state: State) -> State:
        """A round whose Poisson sample is empty: the sum of no updates, and the noise."""
        model, one = state.server["model"], self.available(state.round).of(self.trained_clients[:1], np.ones(1))
        replies = self._protected({"model": model}, {"model": model}, one)
        traffic = (Traffic(0, 0, 0),) * (len(model) if model.dim() == 3 else 1)
        return State(algorithm.combine(state.server, replies, one), state.memory, state.round + 1, {}, traffic)

    def releases(self, rounds: int, lane: int = 0) -> list[Release]:
        """What a lane has released after so many rounds, with its noise."""
        given = self.algorithm.given[lane] if isinstance(self.algorithm, Lanes) else self.algorithm
        if (privacy := self.privacy_of(lane)) is None or not given.exchanges(self.available(0))[1]:
            return []
        return privacy.releases(rounds, self.rate)

    def privacy_of(self, lane: int) -> Privacy | None:
        """How the uploads of a lane are protected."""
        return self.privacy.lanes[lane] if self.privacy is not None and self.privacy.lanes else self.privacy

    def _exchanged(
        self, state: State, round: Round, got: Tensors, replies: Tensors, asked: Sequence[Tensor]
    ) -> tuple[Traffic, ...]:
        """Bytes that each lane exchanges with a sampled client, and with those whose losses were asked for.

        They are looked up while names and shapes are those of the simplest round so far. What is sent in addition in
        some rounds, as the candidates of Kin, may differ between lanes from one time to the next.
        """
        if not isinstance(self.algorithm, Lanes):
            down = sum(losses.numel() for losses in asked) * row_bytes({"model": state.server["model"]})
            up = sum(losses.numel() * losses.element_size() for losses in asked)
            whole = Traffic(row_bytes(got), row_bytes(replies), len(round), down, up)
            return (whole.needed(*self.algorithm.exchanges(round)),)
        key = (*((name, value.shape) for tensors in (got, replies) for name, value in tensors.items()),)
        if key not in self._traffic or len(key) > min(map(len, self._traffic)):
            one = round.of(round.who[:1], round.weights[:1])
            self._traffic[key] = tuple(
                lane_traffic(given.at(state.round), state.server, state.memory, one, len(round), lane)
                for lane, given in enumerate(self.algorithm.given)
            )
        each = zip(self._traffic[key], self.algorithm.given, strict=True)
        return tuple(traffic.needed(*given.exchanges(round)) for traffic, given in each)

    def available(self, number: int) -> Round:
        """A round before sampling, with all clients."""
        everyone, p = np.arange(len(self.federation.train)), self.weights / self.weights.sum()
        shares = np.where(np.isin(everyone, self.federation.newcomers), 0.0, self.weights)
        about = (self.take_part, self.seed, shares, self.aggregate)
        return Round(number, everyone, p, self.graph, len(everyone), *about)

    def sampled(self, algorithm: Algorithm, state: State, asked: list[Tensor] | None = None) -> Round:
        """The round with the sampled clients. Newcomers are never among them.

        asked  the losses that clients are asked for are appended to it
        """
        trained = self.trained_clients
        round = self.available(state.round).of(trained, self.weights[trained])

        def losses(model: Tensor, who: Integers) -> Tensor:
            found = self._losses_at(model, who)
            if asked is not None:
                asked.append(found)
            return found

        if self.privacy is not None and self.privacy.samples_by_chance:
            who = self.privacy.sampled(round, self.rate)
        else:
            who = algorithm.select(state.server, round, losses)
        return round.of(who, self.weights[who])

    def _losses_at(self, model: Tensor, who: Integers) -> Tensor:
        """fᵢ(model) at clients: (…, 1, P) → (…, len(who), 1)."""
        models = model.expand(*model.shape[:-2], len(who), -1)
        return SampleLosses(self.computed_model, self.federation.train, who).mean(models)

    def sent(self, algorithm: Algorithm, state: State, round: Round) -> Tensors:
        """Tensors that the sampled clients receive."""
        return algorithm.send(state.server, round)

    def work(
        self, algorithm: Algorithm, local: Local, round: Round, got: Tensors, memory: Tensors
    ) -> tuple[Tensors, Tensors, dict[str, int]]:
        """Local training of the sampled clients. Returns replies, kept tensors and the number of clients per space."""
        replies: Tensors = {}
        kept: Tensors = {}
        model = self.computed_model
        models = room(got["model"], *got["model"].shape)  # the clients' final models
        names = trial(algorithm, got, memory)
        cohorts = list(self._cohorts(algorithm, local, got, names.got, names.memory, round.who))
        script = self._script(algorithm, local, names.got, names.memory, cohorts)
        looks = type(algorithm).begin is not Algorithm.begin

        def work(cohort: Cohort) -> None:
            """Local training of a cohort, written to its rows of `replies` and `kept`."""
            clients = round.who[cohort.places]
            places = as_slice(cohort.places)  # contiguous positions as a view, not a copy
            into = models[..., places, :] if isinstance(places, slice) else None
            mine, own = (
                {name: at_places(value, places, len(clients)) for name, value in tensors.items()}
                for tensors in (got, memory)
            )
            if looks:
                mine, own = algorithm.begin(
                    mine, own, SampleLosses(model, self.federation.train, clients, self.federation.validation)
                )
            space = self._space(local, clients, cohort.space, round)
            if isinstance(space, Player) and script:
                lowered = space.play(script, mine, own, into)
                w, own = lowered.pop("w"), lowered
            else:
                assert isinstance(space, Plain | Samples), "the others only execute scripts"
                w, own = take_steps(algorithm, space, mine, own, max(space.counts))
            steps = torch.tensor(space.counts, dtype=w.dtype, device=self.device).unsqueeze(-1)
            sent, own = algorithm.reply(w, mine, own, steps)
            for whole, part in ((replies, sent), (kept, own)):
                for name, value in part.items():
                    if name not in whole:  # two threads may both create it: `setdefault` keeps the first
                        shape = (*value.shape[:-2], len(round), value.shape[-1])
                        whole.setdefault(name, models if value is w and whole is replies else room(value, *shape))
                    if whole[name] is not models or value is not into:  # else it was written in place
                        whole[name][..., places, :] = value

        with seeded(torch_seed(self.seed, PURPOSES["noise"], round.number)):
            self._each(work, cohorts)
        spaces: Counter[str] = Counter()
        for cohort in cohorts:
            spaces[cohort.space.name] += len(cohort.places)
        return replies, kept, dict(spaces)

    def _each(self, work: Callable[[Cohort], None], cohorts: list[Cohort]) -> None:
        """Process all cohorts.

        Cohorts are distributed to threads of one core each, the most expensive first. If a single client of a module
        dominates the cost, all cores process one cohort after another. Results do not depend on the order.
        """
        model = self.computed_model
        threads = threads_for(self.device, model.parallel)
        longest = max(cohorts, key=lambda cohort: cohort.cost)
        waiting = sum(cohort.cost for cohort in cohorts) < threads * longest.cost
        if threads == 1 or (waiting and isinstance(model, Module)):
            with all_cores():
                on_threads(work, cohorts, threads=1)
        else:
            with one_core():
                on_threads(work, sorted(cohorts, key=lambda cohort: -cohort.cost), threads)

    def _cohorts(
        self, algorithm: Algorithm, local: Local, got: Tensors, received: Any, memory: Any, who: Integers
    ) -> Iterator[Cohort]:
        """Group the sampled clients into cohorts. `received` and `memory` are the names of their tensors."""
        sizes = self.federation.train.sizes[who].tolist()
        script = self.traces.two_steps(algorithm, local, self.device, received, memory)
        if script is None and local.optimizer == "adam":
            refuse_adam(algorithm)
        if not self.stacked:
            where = Fused if local.optimizer == "adam" else Plain
            return (Cohort(np.array([place]), where, local.count(n), n) for place, n in enumerate(sizes))
        steps = Steps(
            *(self.computed_model, local, self.device),
            linear=script is not None,
            tracks=script is not None and script.tracks() is not None,
            gradients=script.gradients() if script is not None else 1,
            alike=script is not None and script.alike(),
            lanes=len(got["model"]) if got["model"].dim() == 3 else 1,
            returning=self.all_sampled,
            repeated=local is self.local and local.order == "fixed",
        )
        return cohorts_of(sizes, self.federation.features, steps)

    def _script(
        self, algorithm: Algorithm, local: Local, received: Any, memory: Any, cohorts: list[Cohort]
    ) -> Script | None:
        """The trace of the steps for the spaces that execute it, as long as the longest cohort requires.

        It is cached until the algorithm changes, as by a schedule.
        """
        steps = 0
        for cohort in cohorts:
            if issubclass(cohort.space, Player) and (cohort.space.clips or local.clip is None):
                steps = max(steps, cohort.steps)
        if not steps:
            return None
        return self.traces.script(algorithm, local, self.device, received, memory, steps)

    def _space(self, local: Local, clients: Integers, space: Where, round: Round) -> Plain | Player:
        """The space of a cohort. Sample spaces are cached if all clients are sampled in every round."""
        train, key, model = self.federation.train, clients.tobytes(), self.computed_model
        kept = self._kept.get(key)
        if type(kept) is space and kept.local is local and local.order == "fixed":
            return kept
        given = [(local, int(train.sizes[i]), self.seed, round.number, int(i)) for i in clients]
        if not issubclass(space, Plain | Samples):
            compiled: Callable[..., Player] = space  # its class is imported on demand
            return compiled(model, local, train, clients, [order_of_client(*one) for one in given])
        batches = [batches_of_client(*one) for one in given]
        if issubclass(space, Plain):
            return space(model, local, train, clients, batches)
        assert isinstance(model, Layered)
        ready = kept.ready if type(kept) is Samples else prepare(train, clients, model)
        made = space(model, local, ready, batches)
        if self.all_sampled:
            self._kept[key] = made
        return made
