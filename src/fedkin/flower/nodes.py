"""The clients of a Flower federation: every client keeps its number, whichever node answers for it.

Flower identifies a node by a random id that changes when the node is restarted. A client's number is bound to a stable
name instead (its partition, or its registered key), and the node that introduced itself last under that name answers
for the client.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.wire import LOSSES, NODE, ORDER, VECTORS, Refused, checked_loss, checked_message, pack, payload
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers, Tensors

log = logging.getLogger("flwr.fedkin")  # below Flower's own, so that `flwr log` shows it
GRACE = 60.0  # seconds in which nodes reconnect after the SuperLink was restarted


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself: its client's name, its number of samples, its message (empty if none is needed)."""

    name: str
    node: int
    samples: int
    message: Floats


@dataclass(frozen=True, eq=False)
class Roster:
    """All clients that have ever introduced themselves, in the order of their numbers.

    names     stable names, (C,)
    nodes     Flower's id of the node that answers for each client
    counted   the last round in which each client's reply was used, -1 if none was
    sizes     samples, (C,)
    messages  mᵢ, (C, D); (C, 0) where the graph needs none
    """

    names: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()
    sizes: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    messages: Floats | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def features(self) -> int | None:
        """D, once known."""
        return None if self.messages is None else self.messages.shape[1]

    def joined(self, arrivals: Sequence[Introduction]) -> "Roster":
        """The roster with the clients that introduced themselves.

        A known name keeps its number, with a new node and number of samples. Its message stays, as the graph must not
        change because a node was restarted. New names follow in natural order ("2" before "10"), so that the order of
        arrival does not matter.
        """
        names, nodes, counted, sizes = list(self.names), list(self.nodes), list(self.counted), self.sizes.tolist()
        rows = [] if self.messages is None else list(self.messages)
        for arrival in sorted(arrivals, key=lambda a: natural(a.name)):
            if arrival.name in names:
                client = names.index(arrival.name)
                nodes[client], sizes[client] = arrival.node, arrival.samples
            else:
                names.append(arrival.name)
                nodes.append(arrival.node)
                counted.append(-1)
                sizes.append(arrival.samples)
                rows.append(arrival.message)
        messages = np.stack(rows) if rows else None
        return Roster(tuple(names), tuple(nodes), tuple(counted), np.array(sizes, dtype=np.int64), messages)

    def counting(self, who: Integers, round: int) -> "Roster":
        """The roster after a round in which the replies of these clients were used."""
        used = set(who.tolist())
        return replace(self, counted=tuple(round if i in used else last for i, last in enumerate(self.counted)))

    def graph(self, kind: str, floor: float) -> SimilarityGraph:
        """The similarity graph of all clients on the roster."""
        match kind:
            case "similarity":
                return SimilarityGraph.from_messages(self.messages if self.messages is not None else [], floor)
            case "uniform":
                return SimilarityGraph.uniform(len(self))
            case _:
                return SimilarityGraph.edgeless(len(self))

    def tensors(self) -> Tensors:
        """Everything as tensors, to be saved in one file with the server's state."""
        plain = {"names": self.names, "nodes": self.nodes, "counted": self.counted, "sizes": self.sizes.tolist()}
        messages = np.zeros((0, 0)) if self.messages is None else self.messages
        text = torch.tensor(list(json.dumps(plain).encode()), dtype=torch.uint8)
        return {"roster": text, "messages": torch.from_numpy(messages)}

    @classmethod
    def from_tensors(cls, saved: Tensors) -> "Roster":
        """The inverse of `tensors`."""
        plain = json.loads(bytes(saved["roster"].tolist()).decode())
        names, nodes, counted = (tuple(plain[key]) for key in ("names", "nodes", "counted"))
        messages = saved["messages"].numpy() if names else None
        return cls(names, nodes, counted, np.array(plain["sizes"], dtype=np.int64), messages)


def natural(name: str) -> tuple[int, int, str]:
    """A key that sorts numbers by value, before words."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


@dataclass
class Ledger:
    """What a round cost, in bytes of arrays, and which clients failed in it and why, by their names.

    lost  clients that no longer have the memory they kept in earlier rounds
    """

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def sent(self, name: str, content: RecordDict) -> None:
        """Count a message to a client."""
        self.down[name] = self.down.get(name, 0) + payload(content)

    def received(self, name: str, content: RecordDict) -> None:
        """Count a message from a client."""
        self.up[name] = self.up.get(name, 0) + payload(content)

    def refuse(self, name: str, reason: str) -> None:
        """Record what a client did wrong. The round goes on without it."""
        log.warning("%s: %s", name, reason)
        self.refused[name] = reason

    def lose(self, name: str) -> None:
        """Record that a client begins with a new memory."""
        log.warning("%s: no longer has what it kept in earlier rounds, and begins anew", name)
        self.lost.append(name)


class Unanswered(Exception):  # noqa: N818 - no error: the round goes on without these clients
    """Clients that were asked for a loss did not give one."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(f"no loss from clients {', '.join(map(str, clients))}")
        self.clients = clients


class Nodes:
    """The nodes of a run: asks new ones who they are, and knows which are available now.

    graph     the kind of graph for which the clients' messages are
    floor     the smallest misalignment that counts
    identity  what binds a node to its client's number: its `partition`-id, or the `key` it is registered with
    roster    the clients known from before
    """

    def __init__(self, graph: str, floor: float, identity: str, roster: Roster | None = None) -> None:
        self.kind, self.floor, self.identity = graph, floor, identity
        self.roster = roster or Roster()
        self.timeout = 3600.0  # seconds until replies are no longer waited for
        self._graph: SimilarityGraph | None = None
        self._met: set[int] = set(self.roster.nodes)  # nodes that need not be asked who they are
        self._silent: dict[int, float] = {}  # nodes that did not answer, and their last heartbeat until then

    @property
    def ttl(self) -> float:
        """How long Flower keeps a message: a little longer than we wait, or its expiry would look like an answer."""
        return self.timeout + 60

    @property
    def graph(self) -> SimilarityGraph:
        """The similarity graph of all clients known so far."""
        if self._graph is None or len(self._graph) != len(self.roster):
            self._graph = self.roster.graph(self.kind, self.floor)
        return self._graph

    def gather(self, grid: Grid, needed: int, ledger: Ledger, wanted: int = 0) -> Integers:
        """The clients that are available now, ascending, once there are enough of them.

        needed  without so many there can be no round
        wanted  for so many it is worth waiting a while
        """
        began = time.monotonic()
        while True:
            nodes = {node.node_id: node for node in grid.get_nodes()}
            # The first graph is built of all at once, so that numbers do not depend on which node was quicker.
            if len(self.roster) or len(nodes) >= needed:
                new = [node for i, node in nodes.items() if i not in self._met and not self._is_silent(node)]
                if new:
                    self._welcome(grid, new, ledger)
            known = enumerate(self.roster.nodes)
            available = [client for client, i in known if i in nodes and not self._is_silent(nodes[i])]
            waited = time.monotonic() - began
            if len(available) >= (needed if waited > min(GRACE, self.timeout) else max(needed, wanted)):
                return np.array(available, dtype=np.int64)
            if waited > self.timeout:
                raise RuntimeError(
                    f"only {len(available)} of the {needed} nodes that are needed are available after "
                    f"{self.timeout:g} s: start more nodes; the same command continues"
                )
            time.sleep(0.5)

    def exchange(self, grid: Grid, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        """Send messages and wait for the replies: pairs of the node that was asked, and its reply.

        The sender of a reply is taken from the message it replies to: an error may come from the SuperLink in the name
        of a node that has disappeared.
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
            last = {node.node_id: node.online_until for node in grid.get_nodes()}
            self._silent |= {node: last.get(node, 0.0) for node in waiting.values()}
        return replies

    def losses(self, grid: Grid, model: Tensor, who: Integers, ledger: Ledger) -> Tensor:
        """fᵢ(model) of clients, (1, P) to (len(who), 1); `Unanswered` if some give none, which are refused."""
        content = RecordDict({VECTORS: pack({"model": model[0]})})
        clients = {self.roster.nodes[i]: i for i in who.tolist()}
        messages = [Message(content, node, LOSSES, ttl=self.ttl) for node in clients]
        for client in clients.values():
            ledger.sent(self.roster.names[client], content)
        found: dict[int, float] = {}
        reasons = dict.fromkeys(clients.values(), "no loss in time")
        for node, reply in self.exchange(grid, messages):
            try:
                found[clients[node]] = checked_loss(content_of(reply))
            except Refused as reason:
                reasons[clients[node]] = f"cannot say its loss, by which clients are selected ({reason})"
        if missing := [client for client in who.tolist() if client not in found]:
            for client in missing:
                ledger.refuse(self.roster.names[client], reasons[client])
            raise Unanswered(missing)
        return model.new_tensor([[found[i]] for i in who.tolist()])

    def _welcome(self, grid: Grid, new: Sequence[NodeInfo], ledger: Ledger) -> None:
        """Ask nodes who they are, and put those that answer properly on the roster."""
        content = RecordDict({ORDER: ConfigRecord({"message": self.kind == "similarity"})})
        nodes = {node.node_id: node for node in new}
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
        said = content_of(reply).config_records.get(NODE, ConfigRecord())
        name, samples = said.get("name"), said.get("samples")
        if not isinstance(name, str) or not isinstance(samples, int) or samples < 1:
            raise Refused("did not say its name and number of samples")
        if self.identity == "key":
            name = node.public_key.hex()  # what the SuperLink knows, not what the node claims
        m = checked_message(reply.content, features) if self.kind == "similarity" else np.zeros(0)
        return Introduction(name, node.node_id, samples, m)

    def _admit(self, arrivals: list[Introduction], ledger: Ledger) -> None:
        """Put arrivals on the roster; a late one with the data of another, for which there is no graph, is refused."""
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
                log.info("%s %s (node %s)", "reconnected:" if known else "new client:", one.name, one.node)
            self.roster, self._graph = grown, graph

    def _is_silent(self, node: NodeInfo) -> bool:
        """Whether a node that failed to answer has sent no heartbeat since."""
        last = self._silent.get(node.node_id)
        return last is not None and 0 < node.online_until <= last


def content_of(reply: Message) -> RecordDict:
    """The content of a reply, or `Refused` with its error in one line."""
    if reply.has_error():
        reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        raise Refused(f"error {reply.error.code}: {reason[0]}")
    return reply.content
