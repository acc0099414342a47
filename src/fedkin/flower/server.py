"""The server half of a Flower federation: a `Strategy` that runs any algorithm of fedkin on real nodes.

One round is  gather → select → send → (the nodes work) → checks → combine → evaluate → record.  The algorithm, the
graph and the records are those of the in-process engine; only the transport differs.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import flwr.serverapp.strategy
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedkin.algorithms import Algorithm, Local, Round, name_of, trial
from fedkin.algorithms.registry import settings_of
from fedkin.data.measure import ACCURACY
from fedkin.engine.local_work import two_steps
from fedkin.engine.optimizers import check_optimizer, refuse_adam
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.flower.evaluation import EvaluateFn, averaged, averaged_by_samples
from fedkin.flower.nodes import Ledger, Nodes, Roster, Unanswered, content_of, log
from fedkin.flower.run_records import RunRecords, in_words
from fedkin.flower.wire import FIRST, NODE, ORDER, VECTORS, Order, Refused, checked_vectors, flatten, pack, unflatten
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Integers, Record, Tensors

GRAPHS = ("similarity", "uniform", "global")
ATTEMPTS = 10  # so often a round is tried before the run gives up


@dataclass(frozen=True)
class Asked:
    """The messages of a round, with the clients they went to, and the shapes (q,) of what is to be replied."""

    messages: tuple[tuple[Message, int], ...] = ()
    expected: dict[str, tuple[int, ...]] | None = None


class Strategy(flwr.serverapp.strategy.Strategy):
    """Asks every node for its message, builds the graph, and runs the rounds of an algorithm.

    algorithm    FedAvg, FedProx, FedKin or one of your own
    local        what each node does in a round (epochs, batches, penalty): sent to the nodes
    graph        `similarity`, the paper's, from the nodes' messages; `uniform` or `global` need no message
    weights      by which models are averaged: samples, uniform, adjacency (the degrees pᵢ, as in the paper)
    floor        the smallest misalignment that counts (0: nodes with identical data are an error)
    take_part    M, how many of the available nodes are sampled for a round (None: all)
    seed         of the batches and of the sampling of nodes
    min_nodes    so many nodes must be connected before the first round; a run that continues waits a minute for them
    min_replies  a round with fewer usable replies is repeated, not aggregated
    max_norm     the largest ‖wᵢ − w̄‖ a node may send (None: any)
    half         send vectors beside w̄ (as FedKin's u) in half precision: 6 bytes a parameter instead of 8
    identity     what binds a node to its client's number: its `partition`-id, or the `key` it is registered with
    evaluate     whether nodes evaluate the new model after each round (their `@app.evaluate`)
    out          the folder of the run: records, checkpoints, result. The same run started again continues from its last
                 complete round. None: nothing is kept.
    threshold    the accuracy (default: 0.75) or mean squared error (default: none) to which rounds are counted in the
                 result
    """

    def __init__(
        self,
        algorithm: Algorithm,
        local: Local | None = None,
        *,
        graph: str = "similarity",
        weights: str = "samples",
        floor: float = 0.0,
        take_part: int | None = None,
        seed: int = 0,
        min_nodes: int = 2,
        min_replies: int = 2,
        max_norm: float | None = None,
        half: bool = False,
        identity: str = "partition",
        evaluate: bool = False,
        out: Path | str | None = None,
        threshold: float | None = None,
    ) -> None:
        if graph not in GRAPHS:
            raise BadInput(f"unknown graph '{graph}': choose {', '.join(GRAPHS)}")
        if identity not in ("partition", "key"):
            raise BadInput(f"unknown identity '{identity}': choose partition or key")
        if min_nodes < 2:
            raise BadInput(f"min_nodes = {min_nodes} is out of range: a federation needs at least 2 nodes")
        if not 1 <= min_replies <= (take_part or min_nodes):
            raise BadInput(
                f"min_replies = {min_replies} is out of range: it must lie between 1 and the "
                f"{take_part or min_nodes} nodes that are sure to be asked"
            )
        self.algorithm, self.local = algorithm, local or Local()
        check_optimizer(self.algorithm, self.local)
        self.graph, self.weights, self.floor = graph, weights, floor
        self.take_part, self.seed = take_part, seed
        self.min_nodes, self.min_replies, self.max_norm = min_nodes, min_replies, max_norm
        self.half, self.identity, self.evaluate = half, identity, evaluate
        self.out, self.threshold = None if out is None else Path(out), threshold
        self.nodes = Nodes(graph, floor, identity)
        self.ledger = Ledger()
        self._state = State({})
        self._first = torch.zeros(1, 0)  # the first global model, (1, P)
        self._asked = Asked()
        self._replies = 0

    # -- a run ---------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Execute the run, or what is left of it. The arguments are those of every Flower strategy.

        timeout  how many seconds a round waits for its replies. Flower itself takes up to a minute to notice that a
                 machine has disappeared.
        """
        self._like = initial_arrays
        self.summary()
        self._check_steps(flatten(initial_arrays)[None])
        records, result = RunRecords(self.out), Result(arrays=initial_arrays)
        with records.opened(self._settings(num_rounds)):
            if (model := records.finished()) is not None:
                result.arrays = unflatten(model, initial_arrays)
                records.fill(result)
                return result
            state = records.resume()
            roster = None if state is None else Roster.from_tensors(state.memory)
            self.nodes = Nodes(self.graph, self.floor, self.identity, roster)
            self.nodes.timeout, self._asked = timeout, Asked()
            self._first = flatten(initial_arrays)[None]
            # Without server state: the algorithm starts once the first nodes are known.
            self._state = state or State({})
            if state is not None:
                self._first = state.memory.get(FIRST, self._first)
                result.arrays = unflatten(state.model, initial_arrays)
            elif evaluate_fn and (found := evaluate_fn(0, initial_arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = found
            records.fill(result)
            while self._state.round < num_rounds:
                record = self._round(grid, result, train_config, evaluate_config, evaluate_fn)
                records.add(record, self._state if self._state.round < num_rounds else None)
                log.info("round %s/%s: %s", self._state.round, num_rounds, in_words(record))
                if not np.isfinite(record.get("train_loss", 0.0)):
                    log.error("the run diverged: lower the step size")
                    break
            records.finish(name_of(self.algorithm), settings_of(self.algorithm), self.threshold, self._state.model)
        return result

    def _round(
        self,
        grid: Grid,
        result: Result,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
    ) -> Record:
        """One round, repeated until enough replies are usable; its record."""
        began, number = time.perf_counter(), self._state.round + 1
        self.ledger = Ledger()
        attempts = 0
        trained, numbers = None, None
        while trained is None:
            if attempts == ATTEMPTS:
                raise RuntimeError(
                    f"round {number} had fewer than {self.min_replies} usable replies {ATTEMPTS} times: "
                    "look at the nodes' logs; the same command continues"
                )
            attempts += 1
            messages = list(self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid))
            replies = self.nodes.exchange(grid, messages)
            trained, numbers = self.aggregate_train(number, [reply for _, reply in replies])
        result.arrays = trained
        if numbers is not None:
            result.train_metrics_clientapp[number] = numbers
        messages = list(self.configure_evaluate(number, trained, evaluate_config or ConfigRecord(), grid))
        replies = self.nodes.exchange(grid, messages)
        if (seen := self.aggregate_evaluate(number, [reply for _, reply in replies])) is not None:
            result.evaluate_metrics_clientapp[number] = seen
        found = evaluate_fn(number, trained) if evaluate_fn else None
        if found is not None:
            result.evaluate_metrics_serverapp[number] = found
        return {
            "round": number - 1,
            **(found or {}),
            "seconds": round(time.perf_counter() - began, 6),
            "attempts": attempts,
            "asked": len(self._asked.messages),
            "replies": self._replies,
            "bytes_down": self.ledger.down,
            "bytes_up": self.ledger.up,
            "refused": self.ledger.refused,
            **({"memory_lost": self.ledger.lost} if self.ledger.lost else {}),
        }

    def _check_steps(self, first: Tensor) -> None:
        """Refuse Adam with an algorithm whose steps it cannot change, before any node is asked.

        Which vectors a step sees is found in a first round of strangers, as no node is known yet.
        """
        if self.local.optimizer != "adam":
            return
        algorithm, count = self.algorithm.at(0), self.min_nodes
        who, graph = np.arange(count), SimilarityGraph.edgeless(count)
        round = Round(0, who, np.full(count, 1 / count), graph, count, self.take_part, self.seed)
        got, memory = algorithm.send(algorithm.start(first, round), round), algorithm.remember(first)
        names = trial(algorithm, got, memory)
        if two_steps(algorithm, self.local, first.device, names.got, names.memory) is None:
            refuse_adam(algorithm)

    # -- clients of a round --------------------------------------------------------------------------------------------

    def _about(self, who: Integers | None = None) -> Round:
        """The next round, about these clients or all on the roster."""
        roster, graph = self.nodes.roster, self.nodes.graph
        who, p = np.arange(len(roster)) if who is None else who, graph.weights(self.weights, roster.sizes)
        share = p[who] / p[who].sum()
        return Round(self._state.round, who, share, graph, len(roster), self.take_part, self.seed, p)

    def _sampled(self, algorithm: Algorithm, available: Integers, grid: Grid) -> Integers:
        """The clients that the algorithm selects; none if too few can say their loss, should it ask for that."""

        def losses(model: Tensor, who: Integers) -> Tensor:
            return self.nodes.losses(grid, model, who, self.ledger)

        while len(available) >= self.min_replies:
            try:
                return algorithm.select(self._state.server, self._about(available), losses)
            except Unanswered as missing:
                available = np.setdiff1d(available, missing.clients)
        return np.zeros(0, dtype=np.int64)

    # -- Flower's questions --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round: to each sampled node what the algorithm sends, and the order."""
        algorithm = self.algorithm.at(server_round - 1)
        # The first graph needs all; a run that continues gives its nodes time to reconnect.
        needed = self.min_replies if self._state.round else self.min_nodes
        available = self.nodes.gather(grid, needed, self.ledger, 0 if self._asked.messages else self.min_nodes)
        if not self._state.server:
            self._state = State(algorithm.start(self._first, self._about()))
        who = self._sampled(algorithm, available, grid)
        if not len(who):
            self._asked = Asked()
            return []
        got, memory = algorithm.send(self._state.server, self._about(who)), algorithm.remember(self._first)
        messages = [
            (self._message(algorithm, {name: v[row] for name, v in got.items()}, bool(memory), client, config), client)
            for row, client in enumerate(who.tolist())
        ]
        self._asked = Asked(tuple(messages), trial(algorithm, got, memory).reply)
        return [message for message, _ in messages]

    def _message(
        self, algorithm: Algorithm, vectors: Tensors, remembers: bool, client: int, config: ConfigRecord
    ) -> Message:
        """What one client receives."""
        roster, number = self.nodes.roster, self._state.round
        order = Order(algorithm, algorithm.work(self.local), self.seed, number, client, roster.counted[client])
        extra = ConfigRecord({**config, "server-round": number + 1})
        content = RecordDict({VECTORS: pack(vectors, self.half), ORDER: order.pack(), "config": extra})
        # A client's memory begins from the first global model, whenever the client is sampled for the first time.
        if remembers and order.counted < 0 and not torch.equal(vectors["model"], self._first[0]):
            content[FIRST] = pack({"model": self._first[0]})
        self.ledger.sent(roster.names[client], content)
        return Message(content, roster.nodes[client], MessageType.TRAIN, ttl=self.nodes.ttl, group_id=str(number + 1))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's next state from the replies that pass the checks; nothing if they are too few."""
        asked = {message.metadata.message_id: client for message, client in self._asked.messages}
        usable: dict[int, Tensors] = {}
        numbers: dict[int, MetricRecord] = {}
        for reply in replies:
            client = asked.pop(reply.metadata.reply_to_message_id, None)
            if client is None:
                log.warning("round %s: a reply to no message of this round is ignored", server_round)
                continue
            name = self.nodes.roster.names[client]
            try:
                content = content_of(reply)
                self.ledger.received(name, content)
                usable[client] = checked_vectors(content, self._asked.expected or {}, self._state.model, self.max_norm)
            except Refused as reason:
                self.ledger.refuse(name, str(reason))
                continue
            numbers[client] = next(iter(content.metric_records.values()), MetricRecord())
            if content.config_records.get(NODE, ConfigRecord()).get("memory-lost"):
                self.ledger.lose(name)
        for client in asked.values():
            self.ledger.refuse(self.nodes.roster.names[client], "no reply in time")
        if len(usable) < self.min_replies:
            count = len(self._asked.messages)
            log.warning("round %s has %s usable replies of %s: repeated", server_round, len(usable), count)
            return None, None
        round, self._replies = self._about(np.array(sorted(usable))), len(usable)
        self._state = self._combined(round, [usable[i] for i in round.who.tolist()])
        return (
            unflatten(self._state.model, self._like),
            averaged([numbers[i] for i in round.who.tolist()], round.weights),
        )

    def _combined(self, round: Round, replies: Sequence[Tensors]) -> State:
        """The state after a round, from the replies of its clients, with what a run needs to continue from it."""
        algorithm = self.algorithm.at(round.number)
        stacked = {name: torch.stack([reply[name] for reply in replies]) for name in self._asked.expected or {}}
        server = algorithm.combine(self._state.server, stacked, round)
        self.nodes.roster = self.nodes.roster.counting(round.who, round.number)
        # A copy, as the server's state may hold the same tensor, which a checkpoint file cannot.
        first = {FIRST: self._first.clone()} if algorithm.remember(self._first) else {}
        return State(server, {**self.nodes.roster.tensors(), **first}, round.number + 1)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """With `evaluate`, the new model to all available nodes, as Flower's own strategies send it."""
        if not self.evaluate:
            return []
        available = self.nodes.gather(grid, 0, self.ledger)
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        return [
            Message(content, self.nodes.roster.nodes[i], MessageType.EVALUATE, ttl=self.nodes.ttl)
            for i in available.tolist()
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The nodes' metrics, averaged by their number of samples (`num-examples`)."""
        return averaged_by_samples(
            [next(iter(r.content.metric_records.values()), None) for r in replies if r.has_content()]
        )

    def summary(self) -> None:
        """Log what is about to be done."""
        log.info(
            "%s on the %s graph, weights by %s; %s%s",
            self.algorithm,
            self.graph,
            self.weights,
            self.local,
            f"; records in {self.out}" if self.out else "",
        )

    def _settings(self, rounds: int) -> Record:
        """The content of config.json."""
        hyper = settings_of(self.algorithm)
        step_size = hyper.pop("step_size")
        return {
            "seed": self.seed,
            "rounds": rounds,
            "threshold": ACCURACY.usual if self.threshold is None else self.threshold,
            "take_part": self.take_part or "all",
            "graph": {"kind": self.graph, "weights": self.weights, "floor": self.floor},
            "local": {"step_size": step_size, **asdict(self.local)},
            "algorithm": {"name": name_of(self.algorithm), **hyper},
            "flower": {"half": self.half, "identity": self.identity, "max_norm": self.max_norm},
        }
