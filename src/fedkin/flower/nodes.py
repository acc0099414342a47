"""The nodes of a Flower federation: who they are, and which of them are available now.

Flower identifies a node by a random id that changes when the node is restarted. A client's number is bound to a stable
name instead (its partition, or its registered key). A node is asked to introduce itself when it connects, and all are
asked again when a run is continued, as their data may have changed in between.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.checks import (
    Introduction,
    Refused,
    Unavailable,
    Unfit,
    checked_introduction,
    checked_loss,
    content_of,
)
from fedkin.flower.keys import fingerprint
from fedkin.flower.ledger import Ledger, log
from fedkin.flower.roster import Roster, order
from fedkin.flower.transport import Transport, window
from fedkin.flower.wire import LOSSES, ORDER, VECTORS, pack
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Integers

GRACE = 60.0  # seconds in which nodes reconnect after the SuperLink was restarted
ANSWER = 120.0  # seconds for which a round waits for the introduction of a node that is asked for the first time
AGAIN, LATEST = (
    1.0,
    60.0,
)  # seconds until a node that failed to introduce itself is asked again: doubled up to the latter
SAID = 30.0  # seconds between two lines that say for whom the run waits


class Unanswered(Exception):  # noqa: N818 - no error: the round goes on without these clients
    """Clients that were asked for a loss did not give one."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(f"no loss from clients {', '.join(map(str, clients))}")
        self.clients = clients


class Nodes:
    """The nodes of a run.

    graph          the kind of graph for which the clients' messages are
    floor          the smallest misalignment that counts
    identity       what binds a node to its client's number: its `partition`-id, or the `key` it is registered with
    roster         the clients known from before
    transport      exchanges messages with nodes
    parameters     of the server's model (0: unknown); nodes that say another number are refused
    dimensions     of the model's arrays; they decide where as many nodes say one number of features as another
    changing_data  whether a client may come back with other data than it had
    message_noise  standard deviation of the noise that clients add to each number of their messages
    """

    def __init__(
        self,
        graph: str,
        floor: float,
        identity: str,
        roster: Roster | None = None,
        *,
        transport: Transport | None = None,
        parameters: int = 0,
        dimensions: Collection[int] = (),
        changing_data: bool = False,
        message_noise: float = 0.0,
    ) -> None:
        self.kind, self.floor, self.identity, self.message_noise = graph, floor, identity, message_noise
        self.parameters, self.dimensions, self.changing_data = parameters, dimensions, changing_data
        self.roster, self.transport = roster or Roster(), transport or Transport()
        self._graph: SimilarityGraph | None = None
        self._met: set[int] = set()  # nodes that are on the roster
        self._asked: dict[int, tuple[Message, float]] = {}  # introductions under way, and since when
        self._probed: dict[int, tuple[Message, float]] = {}  # nodes whose names others claim, asked if they are there
        self._arrived: dict[int, Introduction] = {}  # introduced, not yet on the roster; by node
        self._failed: dict[int, tuple[int, float, Refused]] = {}  # how often, when to ask again, and why

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
        began, timeout, said, pause = time.monotonic(), self.transport.timeout, SAID / 6, 0.05
        while True:
            nodes = {node.node_id: node for node in grid.get_nodes()}
            self.transport.settle(grid)
            self._ask(grid, nodes, ledger)
            self._hear(grid, nodes, ledger)
            waited = time.monotonic() - began
            if len(self.roster) or not self._is_pending():
                self._admit(grid, nodes, needed, ledger)
            available = self._available(nodes)
            enough = needed if waited > min(GRACE, timeout) else max(needed, wanted)
            if len(available) >= enough and (waited > timeout or not self._is_pending()):
                return np.array(available, dtype=np.int64)
            self._check_fit(nodes, len(available) < needed)
            if waited > timeout:
                raise RuntimeError(
                    f"only {len(available)} of the {needed} nodes that are needed are available after {timeout:g} s"
                    f"{self._missing(nodes)}: start more nodes; the same command continues"
                )
            if waited > said:
                log.info("waiting: %s of %s nodes are available%s", len(available), needed, self._missing(nodes))
                said += SAID
            time.sleep(pause)
            pause = min(1.5 * pause, 0.5)

    def losses(self, grid: Grid, model: Tensor, who: Integers, ledger: Ledger) -> Tensor:
        """fᵢ(model) of clients, (1, P) to (len(who), 1); `Unanswered` if some give none, which are refused."""
        content = RecordDict({VECTORS: pack({"model": model[0]})})
        clients = {self.roster.nodes[i]: i for i in who.tolist()}
        messages = [Message(content, node, LOSSES, ttl=self.transport.ttl) for node in clients]
        for client in clients.values():
            ledger.sent(self.roster.names[client], content)
        found: dict[int, float] = {}
        reasons = dict.fromkeys(clients.values(), "no loss in time")
        for node, reply in self.transport.exchange(grid, messages):
            try:
                found[clients[node]] = checked_loss(content_of(reply))
            except Refused as reason:
                reasons[clients[node]] = f"cannot say its loss, by which clients are selected ({reason})"
        if missing := [client for client in who.tolist() if client not in found]:
            for client in missing:
                ledger.refuse(self.roster.names[client], reasons[client])
            raise Unanswered(missing)
        return model.new_tensor([[found[i]] for i in who.tolist()])

    def _available(self, nodes: Mapping[int, NodeInfo]) -> list[int]:
        """Clients whose node is connected, has introduced itself, and is not known to be silent or busy."""
        return [
            client
            for client, i in enumerate(self.roster.nodes)
            if i in nodes
            and i in self._met
            and not self.transport.is_silent(nodes[i])
            and not self.transport.is_late(i)
        ]

    # -- introductions -------------------------------------------------------------------------------------------------

    def _question(self, node: int) -> Message:
        asked = ConfigRecord({"message": self.kind == "similarity", "parameters": self.parameters})
        asked["noise"] = self.message_noise
        content = RecordDict({ORDER: asked})
        return Message(content, node, MessageType.QUERY, ttl=self.transport.ttl)

    def _ask(self, grid: Grid, nodes: Mapping[int, NodeInfo], ledger: Ledger) -> None:
        """Ask nodes who they are: those that have connected, and after a while those that failed to say."""
        now = time.monotonic()
        self._met &= nodes.keys()
        for kept in (self._asked, self._probed, self._arrived, self._failed):
            for gone in [i for i in kept if i not in nodes]:
                del kept[gone]
        busy = self._met | self._asked.keys() | self._arrived.keys()
        due = [i for i in nodes if i not in busy and self._failed.get(i, (0, now))[1] <= now]
        due = [i for i in due if not self.transport.is_silent(nodes[i])]
        due = due[: max(0, window(grid) - len(self._asked))]
        failed, waiting = self.transport.post(grid, [self._question(i) for i in due])
        self._asked |= {i: (message, now) for i, message in waiting.items()}
        for i, _ in failed:
            self._fail(i, Refused("could not be asked who it is"), ledger)

    def _hear(self, grid: Grid, nodes: Mapping[int, NodeInfo], ledger: Ledger) -> None:
        """Read the introductions that have come."""
        now = time.monotonic()
        for i, reply in self.transport.fetch(grid, [message for message, _ in self._asked.values()]):
            del self._asked[i]
            try:
                arrival = self._introduced(reply, nodes[i])
            except Refused as reason:
                self._fail(i, reason, ledger)
                continue
            ledger.received(arrival.name, reply.content)
            self._arrived[i] = arrival
        for i in [i for i, (_, since) in self._asked.items() if now - since > self.transport.timeout]:
            del self._asked[i]
            self._fail(i, Refused("did not say who it is in time"), ledger)
        for i, reply in self.transport.fetch(grid, [message for message, _ in self._probed.values()]):
            del self._probed[i]
            try:
                content_of(reply)
            except Unavailable:
                self._met.discard(i)
                continue
            except Refused:  # an error is an answer, too
                pass
            self._refuse_claims(i, ledger)
        for i in [i for i, (_, since) in self._probed.items() if now - since > min(ANSWER, self.transport.timeout)]:
            del self._probed[i]
            self._met.discard(i)

    def _introduced(self, reply: Message, node: NodeInfo) -> Introduction:
        """What a node said, checked, under the name that it has here."""
        arrival = checked_introduction(reply, node.node_id, self.kind == "similarity")
        if self.parameters and arrival.parameters not in (0, self.parameters):
            raise Unfit(
                f"trains {arrival.parameters} parameters where the server's model has {self.parameters}: use one model"
            )
        if self.identity == "key":
            if not node.public_key:
                raise Refused("has no registered key: start it with one, or use identity = 'partition'")
            # What the SuperLink knows, not what the node claims, which only decides the order of new clients.
            arrival = replace(arrival, name=fingerprint(node.public_key), place=arrival.name)
        if not self.changing_data and (changed := self.roster.other_data(arrival)):
            raise Unfit(
                f"client {arrival.name} has other data than when it joined this run ({changed}): choose another "
                "folder for another run, or set changing_data = True"
            )
        return arrival

    def _fail(self, node: int, reason: Refused, ledger: Ledger) -> None:
        """Refuse an introduction; the node is asked again, later each time."""
        self._arrived.pop(node, None)
        count = self._failed[node][0] + 1 if node in self._failed else 1
        again = min(AGAIN * 2 ** (count - 1), LATEST)
        self._failed[node] = (count, time.monotonic() + again, reason)
        ledger.refuse(f"node {node}", str(reason), strike=False)

    def _is_pending(self) -> bool:
        """Whether to wait for an introduction, or for the holder of a name that another claims.

        A node is waited for once: not if it has failed before, and not for long.
        """
        latest = time.monotonic() - min(ANSWER, self.transport.timeout)
        fresh = (i not in self._failed and since >= latest for i, (_, since) in self._asked.items())
        return bool(self._probed) or any(fresh)

    def _check_fit(self, nodes: Mapping[int, NodeInfo], is_short: bool) -> None:
        """Raise if most nodes do not belong to this run and it cannot go on: waiting does not help then."""
        unfit = [reason for _, _, reason in self._failed.values() if isinstance(reason, Unfit)]
        if is_short and 2 * len(unfit) > len(nodes):
            raise BadInput(f"{len(unfit)} of {len(nodes)} nodes do not fit this run: one {unfit[0]}")

    def _missing(self, nodes: Mapping[int, NodeInfo]) -> str:
        """Who is missing, for a message."""
        away = [name for name, i in zip(self.roster.names, self.roster.nodes, strict=True) if i not in nodes]
        parts = [
            f"{len(nodes)} are connected",
            *([f"not connected: {', '.join(away[:10])}"] if away else []),
            *([f"not heard from: node {', '.join(map(str, list(self._asked)[:10]))}"] if self._asked else []),
            *[f"node {i} refused {n} times, {reason}" for i, (n, _, reason) in list(self._failed.items())[:5]],
        ]
        return f" ({'; '.join(parts)})"

    # -- the roster ----------------------------------------------------------------------------------------------------

    def _admit(self, grid: Grid, nodes: Mapping[int, NodeInfo], needed: int, ledger: Ledger) -> None:
        """Put arrivals on the roster: the first ones all at once, so that numbers do not depend on who was quicker."""
        is_first = not len(self.roster)
        if is_first and len(self._arrived) < needed:
            return
        arrivals = self._of_one_width(self._unclaimed(grid, nodes, ledger), ledger)
        if is_first and (len(arrivals) < needed or self._join(arrivals) is None):
            return
        # One by one: one with the data of another, for which there is no graph, is refused.
        for one in sorted(arrivals, key=order):
            if (reason := self._join([one])) is not None:
                self._fail(one.node, Refused(f"client {one.name} cannot join the graph ({reason})"), ledger)

    def _join(self, arrivals: Sequence[Introduction]) -> str | None:
        """Put arrivals on the roster, or say why there is no graph with them."""
        grown = self.roster.joined(arrivals)
        try:
            is_same = len(grown) == len(self.roster)
            graph = self._graph if is_same else grown.graph(self.kind, self.floor) if len(grown) > 1 else None
        except BadInput as error:
            return str(error)
        for one in arrivals:
            known = one.name in self.roster.names
            place = f", place {one.place}" if one.place else ""
            log.info("%s %s (node %s%s)", "back:" if known else "new client:", one.name, one.node, place)
            if known:
                self._met.discard(self.roster.nodes[self.roster.names.index(one.name)])
            self._met.add(one.node)
            self._arrived.pop(one.node, None)
            self._failed.pop(one.node, None)
        self.roster, self._graph = grown, graph
        return None

    def _unclaimed(self, grid: Grid, nodes: Mapping[int, NodeInfo], ledger: Ledger) -> list[Introduction]:
        """Arrivals whose names no other node has; a node that has such a name is asked whether it is still there."""
        holders = dict(zip(self.roster.names, self.roster.nodes, strict=True))
        names: set[str] = set()
        free: list[Introduction] = []
        for one in sorted(self._arrived.values(), key=order):
            holder = holders.get(one.name, one.node)
            is_there = holder in nodes and holder in self._met and not self.transport.is_silent(nodes[holder])
            if one.name in names:
                self._fail(one.node, _claimed(one), ledger)
            elif holder == one.node or not is_there:
                names.add(one.name)
                free.append(one)
            elif holder not in self._probed:
                _, sent = self.transport.post(grid, [self._question(holder)])
                self._probed |= {i: (message, time.monotonic()) for i, message in sent.items()}
        return free

    def _refuse_claims(self, holder: int, ledger: Ledger) -> None:
        """Refuse arrivals that claim the name of a node which has just answered."""
        name = self.roster.names[self.roster.nodes.index(holder)] if holder in self.roster.nodes else None
        for one in [one for one in self._arrived.values() if one.name == name and one.node != holder]:
            self._fail(one.node, _claimed(one), ledger)

    def _of_one_width(self, arrivals: list[Introduction], ledger: Ledger) -> list[Introduction]:
        """Arrivals whose messages have as many entries as those on the roster, or at first as most of them have."""
        counts = Counter(one.message.size for one in arrivals)
        most = [size for size, count in counts.items() if count == max(counts.values())]
        if len(most) > 1:
            most = [size for size in most if size in self.dimensions]
        width = self.roster.features if self.roster.features is not None else most[0] if len(most) == 1 else None
        for one in arrivals:
            if one.message.size != width:
                others = f"the others have {width}" if width is not None else "as many nodes have another number"
                self._fail(one.node, Refused(f"the message has {one.message.size} entries where {others}"), ledger)
        return [one for one in arrivals if one.message.size == width]


def _claimed(one: Introduction) -> Refused:
    return Refused(f"claims the name {one.name} of another node, which is connected: give each node a name of its own")
