"""The server half of a Flower federation: a `Strategy` that runs any algorithm of fedkin on real nodes.

One round is  gather → select → send → (the nodes work) → checks → combine → evaluate → record.  The algorithm, the
graph and the records are those of the in-process engine; only the transport differs.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedkin.algorithms import Algorithm, Averaging, Local, Round, averaging_rule, trial
from fedkin.engine.privacy import Privacy
from fedkin.engine.simulation import State
from fedkin.flower.checks import (
    NotFinite,
    Refused,
    Unavailable,
    check_loop,
    check_noise,
    checked_metrics,
    checked_vectors,
    content_of,
    guarded,
)
from fedkin.flower.evaluation import Metrics, averaged, averaged_by_samples, drawn
from fedkin.flower.ledger import log
from fedkin.flower.nodes import Unanswered
from fedkin.flower.run_loop import Diverged, RunLoop
from fedkin.flower.secure import SecureSum
from fedkin.flower.settings import check_settings
from fedkin.flower.transport import Asked
from fedkin.flower.wire import FIRST, NODE, ORDER, VECTORS, Order, pack, unflatten
from fedkin.types import Integers, Tensors


class Strategy(RunLoop):
    """Asks every node for its message, builds the graph, and runs the rounds of an algorithm.

    algorithm          FedAvg, FedProx, FedKin or one of your own
    local              what each node does in a round (epochs, batches, penalty): sent to the nodes
    graph              `similarity`, the paper's, from the nodes' messages; `uniform` or `global` need no message
    weights            by which models are averaged: samples, uniform, adjacency (the degrees pᵢ, as in the paper)
    aggregate          how they are averaged: `mean`, `median`, `trimmed`, `krum`, or a rule: `fedkin.TrimmedMean(0.2)`
    privacy            how uploads are clipped and get noise: `fedkin.Privacy(…)` (docs/privacy.md)
    secure             the server learns the sum of the updates alone: `SecureSum(…)` (docs/privacy.md)
    floor              the smallest misalignment that counts (0: of nodes with identical data one is refused)
    take_part          M, how many of the available nodes are sampled for a round (None: all)
    seed               of the batches and of the sampling of nodes
    min_nodes          so many nodes must be connected before the first round; a run that continues waits a minute for
                       them
    min_replies        a round with fewer usable replies is repeated, not aggregated
    fraction           of the nodes asked, with whose replies a round closes; those that are late are not used
    deadline           seconds after which a round closes if it has `min_replies` replies (None: the timeout)
    max_norm           the largest ‖wᵢ − w̄‖ a node may send: a number, `auto` (100 times what is usual; see `SizeGuard`)
                       or None (any)
    half               send vectors beside w̄ (as FedKin's u) in half precision: 6 bytes a parameter instead of 8
    identity           what binds a node to its client's number: its `partition`-id, or the `key` it is registered with
    changing_data      whether a client may come back with other data than it joined with
    evaluate           whether nodes evaluate the new model after each round (their `@app.evaluate`)
    fraction_evaluate  of the available nodes, drawn anew each round, that evaluate
    own_loops    whether nodes train with loops of their own (`Work`): then `local` is not used, and neither it nor the
                 step size is on record
    out                the folder of the run: records, checkpoints, result. The same run started again continues from
                       its last complete round, also with more rounds than before. None: nothing is kept.
    threshold          the accuracy (default: 0.75) or mean squared error (default: none) to which rounds are counted in
                       the result
    """

    def __init__(
        self,
        algorithm: Algorithm,
        local: Local | None = None,
        *,
        graph: str = "similarity",
        weights: str = "samples",
        aggregate: str | Averaging = "mean",
        privacy: Privacy | None = None,
        secure: SecureSum | None = None,
        floor: float = 0.0,
        take_part: int | None = None,
        seed: int = 0,
        min_nodes: int = 2,
        min_replies: int = 2,
        fraction: float = 1.0,
        deadline: float | None = None,
        max_norm: float | str | None = "auto",
        half: bool = False,
        identity: str = "partition",
        changing_data: bool = False,
        evaluate: bool = False,
        fraction_evaluate: float = 1.0,
        own_loops: bool = False,
        out: Path | str | None = None,
        threshold: float | None = None,
    ) -> None:
        self.algorithm, self.local = algorithm, local or Local()
        self.graph, self.weights, self.floor = graph, weights, floor
        self.rule, self.privacy, self.secure = averaging_rule(aggregate), privacy, secure
        self.take_part, self.seed = take_part, seed
        self.min_nodes, self.min_replies, self.max_norm = min_nodes, min_replies, max_norm
        self.fraction, self.deadline, self.fraction_evaluate = fraction, deadline, fraction_evaluate
        self.half, self.identity, self.changing_data, self.evaluate = half, identity, changing_data, evaluate
        self.own_loops, self.out, self.threshold = own_loops, None if out is None else Path(out), threshold
        check_settings(self)
        super().__init__()

    # -- clients of a round --------------------------------------------------------------------------------------------

    def _about(self, who: Integers | None = None) -> Round:
        """The next round, about these clients or all on the roster."""
        roster, graph = self.nodes.roster, self.nodes.graph
        who, p = np.arange(len(roster)) if who is None else who, graph.weights(self.weights, roster.sizes)
        share = p[who] / p[who].sum()
        about = (self.take_part, self.seed, p, self.rule)
        return Round(self._state.round, who, share, graph, len(roster), *about)

    def _trusted(self, available: Integers) -> Integers:
        """The clients that are not left out, if these are enough."""
        names, number = self.nodes.roster.names, self._state.round
        out = [i for i in available.tolist() if self._probation.is_out(names[i], number)]
        if not out or len(available) - len(out) < self.min_replies:
            return available
        self.ledger.left_out = [names[i] for i in out]
        return np.setdiff1d(available, out)

    def _sampled(self, algorithm: Algorithm, available: Integers, grid: Grid) -> Integers:
        """The clients that the algorithm selects; none if too few can say their loss, should it ask for that."""

        def losses(model: Tensor, who: Integers) -> Tensor:
            return self.nodes.losses(grid, model, who, self.ledger)

        if self.protection.by_chance:
            return self.protection.sampled(self._about(available))
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
        self._before, self._used = self._state, {}
        available = self._trusted(available)
        who = self._sampled(algorithm, available, grid)
        self._private = self.protection.asked_of(len(who))
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
        work, counted = algorithm.work(self.local), roster.counted[client]
        order = Order(algorithm, work, self.seed, number, client, counted, run=self._run, **self._private)
        extra = ConfigRecord({**config, "server-round": number + 1})
        content = RecordDict({VECTORS: pack(vectors, self.half), ORDER: order.pack(), "config": extra})
        # A client's memory begins from the first global model, whenever the client is sampled for the first time.
        if remembers and order.counted < 0 and not torch.equal(vectors["model"], self._first[0]):
            content[FIRST] = pack({"model": self._first[0]})
        self.ledger.sent(roster.names[client], content)
        return Message(
            content, roster.nodes[client], MessageType.TRAIN, ttl=self.nodes.transport.ttl, group_id=str(number + 1)
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's next state from the replies that pass the checks; nothing if they are too few."""
        asked, roster = self._asked.clients(), self.nodes.roster
        usable: dict[int, Tensors] = {}
        numbers: dict[int, Metrics] = {}
        overflowed = 0
        for reply in replies:
            client = asked.pop(reply.metadata.reply_to_message_id, None)
            if client is None:
                log.warning("round %s: a reply to no message of this round is ignored", server_round)
                continue
            try:
                with guarded("the reply"):
                    content = content_of(reply)
                    self.ledger.received(roster.names[client], content)
                    check_loop(content, self.own_loops)
                    numbers[client] = checked_metrics(content)
                    check_noise(content, self._private)
                    usable[client] = checked_vectors(content, self._asked.expected or {})
                    is_lost = bool(content.config_records.get(NODE, ConfigRecord()).get("memory-lost"))
            except Refused as reason:
                self.ledger.refuse(roster.names[client], str(reason), strike=not isinstance(reason, Unavailable))
                overflowed += isinstance(reason, NotFinite)
                continue
            if is_lost:
                self.ledger.lose(roster.names[client])
        for client in asked.values():
            is_late = self.nodes.transport.is_late(roster.nodes[client])
            missed = "the round closed before its reply" if is_late else "no reply in time"
            self.ledger.refuse(roster.names[client], missed, strike=not is_late)
        for client, large in self._guard.too_large(usable, self._state.model).items():
            self.ledger.refuse(roster.names[client], large)
            del usable[client]
        count = len(self._asked.messages)
        if 2 * overflowed > count:
            raise Diverged
        # A Poisson sample may be small, or empty: it counts all the same.
        if len(usable) < (min(self.min_replies, count) if self.protection.by_chance else self.min_replies):
            log.warning("round %s has %s usable replies of %s: repeated", server_round, len(usable), count)
            return None, None
        round = self._combine(usable)
        mean = averaged([numbers[i] for i in round.who.tolist()], round.weights)
        return unflatten(self._state.model, self._like), mean

    def _combine(self, replies: dict[int, Tensors]) -> Round:
        """Set the state after a round with these replies; the round."""
        self._state, self._used = self._before, replies
        round = self._about(np.array(sorted(replies), dtype=np.int64))
        model: Tensor = self._before.server["model"]
        names = self._asked.expected or {}
        stacked = {name: torch.stack([replies[i][name] for i in round.who.tolist()]) for name in names if replies}
        # Of an empty sample there is the noise alone.
        about = round if replies else round.of(np.zeros(1, dtype=np.int64), np.ones(1))
        if "model" in stacked or not replies:
            stacked["model"] = self.protection.summed(stacked.get("model", model), model, about)
        server = self.algorithm.at(round.number).combine(self._before.server, stacked, about)
        self._state = State(server, self._before.memory, round.number + 1)
        return round

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """With `evaluate`, the new model to a fraction of the available nodes, as Flower's own strategies send it."""
        self._evaluating = Asked()
        if not self.evaluate or not self.fraction_evaluate:
            return []
        available = self.nodes.gather(grid, 0, self.ledger)
        who = drawn(available, self.fraction_evaluate, self.seed, server_round)
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        nodes, ttl = self.nodes.roster.nodes, self.nodes.transport.ttl
        messages = [(Message(content, nodes[i], MessageType.EVALUATE, ttl=ttl), i) for i in who.tolist()]
        self._evaluating = Asked(tuple(messages))
        return [message for message, _ in messages]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The nodes' metrics, averaged by their number of samples (`num-examples`)."""
        return averaged_by_samples(self._evaluations(replies))

    def _evaluations(self, replies: Iterable[Message]) -> list[Metrics]:
        """The metrics that can be used; nodes that sent others are refused by name."""
        asked, numbers = self._evaluating.clients(), list[Metrics]()
        for reply in replies:
            client = asked.pop(reply.metadata.reply_to_message_id, None)
            try:
                numbers.append(checked_metrics(content_of(reply), needs_samples=True))
            except Refused as reason:
                name = "a node" if client is None else self.nodes.roster.names[client]
                self.ledger.refuse(name, f"evaluation: {reason}", strike=False)
        return numbers
