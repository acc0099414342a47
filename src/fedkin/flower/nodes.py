"""Who is who in a Flower federation: every client keeps its place in the graph, whichever node speaks for it.

Flower names a node by a random id that changes when the node is started again. A client's place is bound to a stable
name instead (its partition, or its registered key), and the node that last introduced itself by it speaks for it.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.wire import NODE, WORK, Refused, checked_message, payload
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Tensors

log = logging.getLogger("flwr.fedkin")  # below Flower's own, so that `flwr log` shows it
GRACE = 60.0  # seconds in which nodes come back after the SuperLink was started again


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself: its client's name, its number of samples, its message (empty if none was asked)."""

    name: str
    node: int
    samples: int
    message: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Roster:
    """All clients that have ever introduced themselves, in the order of their places.

    names     stable names, (C,)
    nodes     Flower's id of the node that speaks for each client
    sizes     samples, (C,)
    messages  mᵢ, (C, D); (C, 0) where the graph needs none
    """

    names: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    messages: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def features(self) -> int | None:
        """D, once known."""
        return None if self.messages is None else self.messages.shape[1]

    def joined(self, arrivals: Sequence[Introduction]) -> "Roster":
        """The roster with those who introduced themselves.

        A known name keeps its place, with a new node and number of samples; its message stays, for the graph must not
        change under a client that was merely started again. New names follow in natural order ("2" before "10"), so
        that the order of arrival does not matter.
        """
        names, nodes, sizes = list(self.names), list(self.nodes), self.sizes.tolist()
        rows = [] if self.messages is None else list(self.messages)
        for arrival in sorted(arrivals, key=lambda a: natural(a.name)):
            if arrival.name in names:
                place = names.index(arrival.name)
                nodes[place], sizes[place] = arrival.node, arrival.samples
            else:
                names.append(arrival.name)
                nodes.append(arrival.node)
                sizes.append(arrival.samples)
                rows.append(arrival.message)
        return Roster(tuple(names), tuple(nodes), np.array(sizes, dtype=np.int64), np.stack(rows) if rows else None)

    def graph(self, kind: str, floor: float) -> SimilarityGraph:
        """Who is kin to whom, of all clients on the roster."""
        match kind:
            case "similarity":
                return SimilarityGraph.from_messages(self.messages if self.messages is not None else [], floor)
            case "uniform":
                return SimilarityGraph.uniform(len(self))
            case _:
                return SimilarityGraph.edgeless(len(self))

    def tensors(self) -> Tensors:
        """All of it as tensors, to be saved with the rest of the server's state in one file."""
        text = json.dumps({"names": self.names, "nodes": self.nodes, "sizes": self.sizes.tolist()})
        messages = np.zeros((0, 0)) if self.messages is None else self.messages
        return {"roster": torch.tensor(list(text.encode()), dtype=torch.uint8), "messages": torch.from_numpy(messages)}

    @classmethod
    def from_tensors(cls, saved: dict[str, Tensor]) -> "Roster":
        """What `tensors` gave."""
        plain = json.loads(bytes(saved["roster"].tolist()).decode())
        messages = saved["messages"].numpy() if len(plain["names"]) else None
        return cls(tuple(plain["names"]), tuple(plain["nodes"]), np.array(plain["sizes"], dtype=np.int64), messages)


def natural(name: str) -> tuple[int, int, str]:
    """A key that sorts numbers by value, before words."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


@dataclass
class Ledger:
    """What a round cost, in bytes of arrays, and who failed in it and why, by the names of the clients."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def sent(self, name: str, content: RecordDict) -> None:
        """A message went to a client."""
        self.down[name] = self.down.get(name, 0) + payload(content)

    def received(self, name: str, content: RecordDict) -> None:
        """A message came from a client."""
        self.up[name] = self.up.get(name, 0) + payload(content)

    def refuse(self, name: str, reason: str) -> None:
        """Note what a client did wrong. The round goes on without it."""
        log.warning("%s: %s", name, reason)
        self.refused[name] = reason


class Nodes:
    """The nodes of a run as the server meets them: asks new ones who they are, and knows which can be asked now.

    graph     the kind of graph the clients' messages are for
    floor     the smallest misalignment that counts
    identity  what binds a node to its place: its `partition`-id, or the `key` it is registered with
    roster    the clients known from before
    """

    def __init__(self, graph: str, floor: float, identity: str, roster: Roster | None = None) -> None:
        self.kind, self.floor, self.identity = graph, floor, identity
        self.roster = roster or Roster()
        self.timeout = 3600.0  # seconds until replies are no longer waited for
        self._graph: SimilarityGraph | None = None
        self._met: set[int] = set(self.roster.nodes)  # nodes that need not be asked who they are
        self._silent: dict[int, float] = {}  # nodes that did not answer, and their last sign of life until then

    @property
    def ttl(self) -> float:
        """How long Flower keeps a message: a little longer than we wait, lest its expiry look like an answer."""
        return self.timeout + 60

    @property
    def graph(self) -> SimilarityGraph:
        """Who is kin to whom, of all clients known by now."""
        if self._graph is None or len(self._graph) != len(self.roster):
            self._graph = self.roster.graph(self.kind, self.floor)
        return self._graph

    def gather(self, grid: Grid, needed: int, ledger: Ledger, wanted: int = 0) -> NDArray[np.int64]:
        """The places of all clients that can be asked now, once they are enough.

        needed  without so many there can be no round
        wanted  for so many it is worth waiting a while
        """
        began = time.monotonic()
        while True:
            nodes = {node.node_id: node for node in grid.get_nodes()}
            # The first graph is built of all at once, so that places do not depend on who was quicker.
            if len(self.roster) or len(nodes) >= needed:
                strangers = [node for i, node in nodes.items() if i not in self._met and not self._is_silent(node)]
                if strangers:
                    self._welcome(grid, strangers, ledger)
            speaking = enumerate(self.roster.nodes)
            present = [place for place, i in speaking if i in nodes and not self._is_silent(nodes[i])]
            waited = time.monotonic() - began
            if len(present) >= (needed if waited > min(GRACE, self.timeout) else max(needed, wanted)):
                return np.array(present)
            if waited > self.timeout:
                raise RuntimeError(
                    f"only {len(present)} of the {needed} nodes that are needed can be asked after {self.timeout:g} s: "
                    "start more nodes; the same command continues"
                )
            time.sleep(0.5)

    def exchange(self, grid: Grid, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        """Send messages and wait for the replies: pairs of the node that was asked, and its reply.

        Whom a reply is from is told by the message it replies to: an error may come from the SuperLink in the name of
        a node that has vanished.
        """
        if not messages:
            return []
        grid.push_messages(messages)
        waiting = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        replies: list[tuple[int, Message]] = []
        deadline, pause = time.monotonic() + self.timeout, 0.05
        while waiting and time.monotonic() < deadline:
            for reply in grid.pull_messages(list(waiting)):
                if (node := waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    self._silent.pop(node, None)
                    replies.append((node, reply))
            if waiting:
                time.sleep(pause)
                pause = min(1.5 * pause, 0.5)
        if waiting:
            life = {node.node_id: node.online_until for node in grid.get_nodes()}
            self._silent |= {node: life.get(node, 0.0) for node in waiting.values()}
        return replies

    def _welcome(self, grid: Grid, strangers: Sequence[NodeInfo], ledger: Ledger) -> None:
        """Ask nodes who they are, and give those who answer properly their place."""
        content = RecordDict({WORK: ConfigRecord({"message": self.kind == "similarity"})})
        nodes = {node.node_id: node for node in strangers}
        arrivals: list[Introduction] = []
        features = self.roster.features
        questions = [Message(content, i, MessageType.QUERY, ttl=self.ttl) for i in nodes]
        for i, reply in self.exchange(grid, questions):
            self._met.add(i)
            try:
                arrival = self._introduced(reply, nodes[i], features)
            except Refused as reason:
                ledger.refuse(f"node {i}", str(reason))
                continue
            features = arrival.message.size
            ledger.received(arrival.name, reply.content)
            arrivals.append(arrival)
        self._admit(arrivals, ledger)

    def _introduced(self, reply: Message, node: NodeInfo, features: int | None) -> Introduction:
        """What a node said, checked."""
        if reply.has_error():
            raise Refused(error_in_words(reply))
        said = reply.content.config_records.get(NODE, ConfigRecord())
        name, samples = said.get("name"), said.get("samples")
        if not isinstance(name, str) or not isinstance(samples, int) or samples < 1:
            raise Refused("did not say its name and number of samples")
        if self.identity == "key":
            name = node.public_key.hex()  # what the SuperLink knows, not what the node claims
        m = checked_message(reply.content, features) if self.kind == "similarity" else np.zeros(0)
        return Introduction(name, node.node_id, samples, m)

    def _admit(self, arrivals: list[Introduction], ledger: Ledger) -> None:
        """Put arrivals on the roster; a late one with whom there is no graph (its data is another's) is refused."""
        first = not len(self.roster)
        for together in [arrivals] if first and arrivals else [[one] for one in arrivals]:
            grown = self.roster.joined(together)
            try:
                graph = grown.graph(self.kind, self.floor) if len(grown) > 1 else None
            except BadInput as error:
                if first:
                    raise
                ledger.refuse(together[0].name, str(error))
                continue
            for one in together:
                known = one.name in self.roster.names
                log.info("%s %s (node %s)", "back again:" if known else "new client:", one.name, one.node)
            self.roster, self._graph = grown, graph

    def _is_silent(self, node: NodeInfo) -> bool:
        """Whether a node that failed to answer has given no sign of life (heartbeat) since."""
        last = self._silent.get(node.node_id)
        return last is not None and 0 < node.online_until <= last


def error_in_words(reply: Message) -> str:
    """The error of a reply, in a line."""
    reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
    return f"error {reply.error.code}: {reason[0]}"
