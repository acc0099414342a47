"""The server half of a Flower federation: a `Strategy` that runs any of fedkin's algorithms on real nodes.

One round is  gather → select → send → (the nodes work) → checks → combine → evaluate → record.  The algorithm, the
graph and the records are those of the in-process engine; only the transport differs.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import flwr.serverapp.strategy
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkin.algorithms import Algorithm
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.data.federation import Federation
from fedkin.engine import metrics
from fedkin.engine.simulation import SELECT, State
from fedkin.errors import BadInput
from fedkin.experiments import records
from fedkin.flower.nodes import Ledger, Nodes, Roster, error_in_words, log
from fedkin.flower.wire import VECTORS, WORK, Order, Refused, checked_vectors, flatten, pack, unflatten
from fedkin.models import Model
from fedkin.types import Record, Tensors

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

GRAPHS = ("similarity", "uniform", "global")
ATTEMPTS = 10  # so often a round is tried before the run gives up


class Strategy(flwr.serverapp.strategy.Strategy):
    """Asks every node for its message, builds the graph, and leads the rounds of an algorithm.

    algorithm    FedAvg, FedProx, FedKin or one of your own
    local        what each node does in a round (epochs, batches, penalty): sent to the nodes
    graph        `similarity`, the paper's, from the nodes' messages; `uniform` or `global` ask for no message
    weights      by which models are averaged: adjacency (the degrees pᵢ), uniform, samples
    floor        the smallest misalignment that counts (0: nodes with identical data are an error)
    take_part    M, how many of the nodes present take part in a round (None: all)
    seed         of the batches and of the choice of nodes
    min_nodes    so many nodes must be connected before the first round; a run that continues waits a minute for them
    min_replies  a round with fewer usable replies is repeated, not aggregated
    max_norm     the largest ‖wᵢ − w̄‖ a node may send (None: any)
    half         send u as its difference to w̄ in half precision: the download grows by half instead of doubling
    identity     what binds a node to its place: its `partition`-id, or the `key` it is registered with
    evaluate     whether nodes evaluate the new model after each round (their `@app.evaluate`)
    out          the folder of the run: records, checkpoints, result. The same run started again continues from its last
                 complete round. None: nothing is kept.
    threshold    the accuracy to which rounds are counted in the result
    """

    def __init__(
        self,
        algorithm: Algorithm,
        local: Local | None = None,
        *,
        graph: str = "similarity",
        weights: str = "adjacency",
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
        threshold: float = 0.75,
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
        self.graph, self.weights, self.floor = graph, weights, floor
        self.take_part, self.seed = take_part, seed
        self.min_nodes, self.min_replies, self.max_norm = min_nodes, min_replies, max_norm
        self.half, self.identity, self.evaluate = half, identity, evaluate
        self.out, self.threshold = None if out is None else Path(out), threshold
        self.nodes = Nodes(graph, floor, identity)
        self.ledger = Ledger()
        self._state = State({})
        self._asked: list[tuple[Message, int]] = []  # the messages of the round, and the places they went to
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
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Carry out the run, or what is left of it. The arguments are those of every Flower strategy.

        timeout  how many seconds a round waits for its replies. Flower itself takes up to a minute to notice that a
                 machine has vanished.
        """
        self._like = initial_arrays
        self.summary()
        folder = None if self.out is None else records.RunFolder(self.out)
        result = Result(arrays=initial_arrays)
        with nullcontext() if folder is None else folder.opened(self._settings(num_rounds)):
            if folder is not None and self._finished(folder, result):
                return result
            sound = set() if folder is None else folder.sound_rounds()
            state = folder.load(max(sound)) if folder is not None and sound else None
            done = folder.records()[: state.round] if folder is not None and state is not None else []
            roster = None if state is None else Roster.from_tensors(state.memory)
            self.nodes = Nodes(self.graph, self.floor, self.identity, roster)
            self.nodes.timeout, self._asked = timeout, []
            self._state = state or State(self.algorithm.start(flatten(initial_arrays), 0))
            if state is not None:
                result.arrays = unflatten(state.server["model"], initial_arrays)
                log.info("continuing after round %s", state.round)
            if folder is not None:
                folder.keep_records(done)
            if evaluate_fn and state is None and (found := evaluate_fn(0, initial_arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = found
            _remember(result, done)
            while self._state.round < num_rounds:
                record = self._round(grid, result, train_config, evaluate_config, evaluate_fn)
                done.append(record)
                if folder is not None:
                    folder.append(record)
                    if self._state.round < num_rounds:
                        folder.save(self._state)
                log.info("round %s/%s: %s", self._state.round, num_rounds, _in_words(record))
                if not np.isfinite(record.get("train_loss", 0.0)):
                    log.error("the run diverged: lower the step size")
                    break
            if folder is not None:
                folder.finish(self._described(done), self._state.server["model"])
        return result

    def _round(
        self,
        grid: Grid,
        result: Result,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Evaluate | None,
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
        measured: Record = {}
        if evaluate_fn and (found := evaluate_fn(number, trained)) is not None:
            result.evaluate_metrics_serverapp[number] = found
            measured = dict(found)
        return {
            "round": number - 1,
            **measured,
            "seconds": round(time.perf_counter() - began, 6),
            "attempts": attempts,
            "asked": len(self._asked),
            "replies": self._replies,
            "bytes_down": self.ledger.down,
            "bytes_up": self.ledger.up,
            "refused": self.ledger.refused,
        }

    # -- Flower's questions --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round: to each chosen node w̄, its own u, and the work to do."""
        place = server_round - 1
        algorithm = self.algorithm.at(place)
        # The first graph needs all; a run that continues gives its nodes time to come back.
        needed = self.min_replies if self._state.round else self.min_nodes
        wanted = 0 if self._asked else self.min_nodes
        who = self._select(place, self.nodes.gather(grid, needed, self.ledger, wanted))
        got = algorithm.send(self._state.server, self.nodes.graph, who)
        one = {name: value[:1] for name, value in got.items()}
        memory = algorithm.remember(self._state.server["model"], 1)
        self._expected = tuple(algorithm.reply(one["model"], one, memory, torch.ones(1, dtype=torch.int64)))
        self._asked, roster = [], self.nodes.roster
        for row, client in enumerate(who.tolist()):
            order = Order(algorithm, algorithm.work(self.local), self.seed, place, client)
            vectors = pack({name: value[row] for name, value in got.items()}, self.half)
            extra = ConfigRecord({**config, "server-round": server_round})
            content = RecordDict({VECTORS: vectors, WORK: order.pack(), "config": extra})
            self.ledger.sent(roster.names[client], content)
            node, group = roster.nodes[client], str(server_round)
            message = Message(content, node, MessageType.TRAIN, ttl=self.nodes.ttl, group_id=group)
            self._asked.append((message, client))
        return [message for message, _ in self._asked]

    def _select(self, round: int, present: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those who take part, ascending: the engine's draw where all are present."""
        if self.take_part is None or self.take_part >= len(present):
            return present
        rng = np.random.default_rng([self.seed, SELECT, round])
        return present[np.sort(rng.choice(len(present), self.take_part, replace=False))]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """w̄ ← Σ pᵢ wᵢ over the replies that pass the checks; nothing if they are too few."""
        asked = {message.metadata.message_id: client for message, client in self._asked}
        usable: dict[int, Tensors] = {}
        numbers: dict[int, MetricRecord] = {}
        for reply in replies:
            client = asked.pop(reply.metadata.reply_to_message_id, None)
            if client is None:
                log.warning("round %s: a reply to no message of this round is left out", server_round)
                continue
            name = self.nodes.roster.names[client]
            try:
                if reply.has_error():
                    raise Refused(error_in_words(reply))
                self.ledger.received(name, reply.content)
                usable[client] = checked_vectors(
                    reply.content, self._expected, self._state.server["model"], self.max_norm
                )
                numbers[client] = next(iter(reply.content.metric_records.values()), MetricRecord())
            except Refused as reason:
                self.ledger.refuse(name, str(reason))
        for client in asked.values():
            self.ledger.refuse(self.nodes.roster.names[client], "no reply in time")
        if len(usable) < self.min_replies:
            log.warning("round %s has %s usable replies of %s: repeated", server_round, len(usable), len(self._asked))
            return None, None
        who = np.array(sorted(usable))
        stacked = {name: torch.stack([usable[i][name] for i in who.tolist()]) for name in self._expected}
        weights = self.nodes.graph.weights(self.weights, self.nodes.roster.sizes)[who]
        share = weights / weights.sum()
        p = torch.as_tensor(share, dtype=torch.float32)
        algorithm = self.algorithm.at(self._state.round)
        server = algorithm.combine(self._state.server, stacked, who, p)
        self._state = State(server, self.nodes.roster.tensors(), self._state.round + 1)
        self._replies = len(usable)
        return unflatten(server["model"], self._like), _averaged([numbers[i] for i in who.tolist()], share)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """With `evaluate`, the new model to all known nodes that are present, as Flower's own strategies send it."""
        if not self.evaluate:
            return []
        present = self.nodes.gather(grid, 0, self.ledger)
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        return [
            Message(content, self.nodes.roster.nodes[i], MessageType.EVALUATE, ttl=self.nodes.ttl)
            for i in present.tolist()
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The nodes' metrics, averaged by their number of samples (`num-examples`)."""
        found = [next(iter(r.content.metric_records.values()), None) for r in replies if r.has_content()]
        sound = [numbers for numbers in found if numbers is not None and "num-examples" in numbers]
        sizes = np.array([numbers["num-examples"] for numbers in sound], dtype=np.float64)
        return _averaged(sound, sizes / sizes.sum()) if sound else None

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

    # -- records -------------------------------------------------------------------------------------------------------

    def _settings(self, rounds: int) -> Record:
        """The content of config.json."""
        knobs = {f.name: _plain(getattr(self.algorithm, f.name)) for f in fields(self.algorithm)}
        step_size = knobs.pop("step_size")
        assert self.out is not None
        return {
            "name": self.out.absolute().parent.name,
            "seed": self.seed,
            "rounds": rounds,
            "threshold": self.threshold,
            "take_part": self.take_part or "all",
            "graph": {"kind": self.graph, "weights": self.weights, "floor": self.floor},
            "local": {"step_size": step_size, **asdict(self.local)},
            "algorithm": {"name": type(self.algorithm).__name__.lower(), **knobs},
            "flower": {"half": self.half, "identity": self.identity, "max_norm": self.max_norm},
        }

    def _described(self, done: list[Record]) -> Record:
        """The content of summary.json."""
        assert self.out is not None
        knobs = {f.name: _plain(getattr(self.algorithm, f.name)) for f in fields(self.algorithm)}
        seconds = round(sum(record["seconds"] for record in done), 3)
        measured = all(key in done[-1] for key in ("train_loss", "test_loss", "test_accuracy"))
        return {
            "experiment": self.out.absolute().parent.name,
            "run": self.out.name,
            "algorithm": type(self.algorithm).__name__.lower(),
            "hyperparameters": knobs,
            **(
                records.summarise(done, self.threshold)
                if measured
                else {"status": "finished", "rounds": len(done), "seconds": seconds}
            ),
        }

    def _finished(self, folder: records.RunFolder, result: Result) -> bool:
        """Whether the folder holds the result already; then it is taken from there."""
        summary, done = folder.summary(), folder.records()
        saved = records.read_tensors(folder.path / "model.safetensors")
        if summary is None or saved is None or len(done) != summary.get("rounds"):
            return False
        log.info("%s is finished already", folder.path)
        result.arrays = unflatten(saved[0]["model"], self._like)
        _remember(result, done)
        return True


# -- for server apps ---------------------------------------------------------------------------------------------------


def initial_arrays(model: Model, seed: int = 0) -> ArrayRecord:
    """Where a fedkin model starts. (Of a `torch.nn.Module`: `ArrayRecord(net.state_dict())`.)"""
    return pack({"model": model.start(seed)})


def measured(model: Model, federation: Federation, l2: float = 0.0) -> Evaluate:
    """An `evaluate_fn` that measures what the engine measures, where the server has a federation to test on."""

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        (found,) = metrics.measure(model, flatten(arrays)[None], federation, [l2])
        return MetricRecord({**found})

    return evaluate


# -- helpers -----------------------------------------------------------------------------------------------------------


def _averaged(numbers: list[MetricRecord], share: NDArray[np.float64]) -> MetricRecord:
    """Σ pᵢ·metricᵢ of every plain number that all have, but for the number of samples."""
    common = [key for key in numbers[0] if key != "num-examples" and all(_is_number(n.get(key)) for n in numbers)]
    mean: dict[str, Any] = {key: float(share @ np.array([n[key] for n in numbers], dtype=float)) for key in common}
    return MetricRecord(mean)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _plain(hyper: Any) -> Any:
    if isinstance(hyper, Schedule):
        return {"from": hyper.start, "to": hyper.end, "over": hyper.over, "shape": hyper.shape}
    return hyper


def _remember(result: Result, done: list[Record]) -> None:
    """Put the measurements of earlier rounds into the result."""
    for record in done:
        numbers: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, float) and k != "seconds"}
        if numbers:
            result.evaluate_metrics_serverapp[record["round"] + 1] = MetricRecord(numbers)


def _in_words(record: Record) -> str:
    words = [f"{key.replace('_', ' ')} {value:.4f}" for key, value in record.items() if isinstance(value, float)]
    late = f"; left out: {', '.join(record['refused'])}" if record["refused"] else ""
    return f"{record['replies']} of {record['asked']} replies, {', '.join(words)}{late}"
