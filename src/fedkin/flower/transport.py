"""Messages to nodes, and the replies that come in time."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

WINDOW = 48  # messages on their way in a simulation
Replies = list[tuple[int, Message]]  # the node that was asked, and its reply


@dataclass(frozen=True)
class Asked:
    """The messages of a round, with the clients they went to, and the shapes (q,) of what is to be replied."""

    messages: tuple[tuple[Message, int], ...] = ()
    expected: dict[str, tuple[int, ...]] | None = None

    def clients(self) -> dict[str, int]:
        """The clients by the ids of their messages, which have one once they are sent."""
        return {message.metadata.message_id: client for message, client in self.messages}


class Transport:
    """Sends messages, and waits for replies: all of them, a fraction, or those that come in time.

    timeout   seconds until replies are no longer waited for
    fraction  of the replies to a round, with which it closes
    deadline  seconds after which a round closes (None: the timeout)

    The sender of a reply is taken from the message it replies to: an error may come from the SuperLink in the name of a
    node that has disappeared. Replies are fetched one by one, so that one that Flower cannot decode costs no other.
    """

    def __init__(self, fraction: float = 1.0, deadline: float | None = None) -> None:
        self.timeout = 3600.0
        self.fraction, self.deadline = fraction, deadline
        self._silent: dict[int, float] = {}  # nodes that did not answer, and their last heartbeat until then
        self._late: dict[int, tuple[Message, float]] = {}  # nodes that work for a round that has closed, and till when

    @property
    def ttl(self) -> float:
        """How long Flower keeps a message: a little longer than we wait, or its expiry would look like an answer."""
        return self.timeout + 60

    def exchange(self, grid: Grid, messages: Sequence[Message], least: int | None = None) -> Replies:
        """Send messages and wait for the replies.

        least  where the exchange may close early, with so many replies at least (None: it may not)
        """
        most, later = window(grid), list(messages)
        replies, waiting = self.post(grid, later[:most])
        del later[:most]
        began, pause = time.monotonic(), 0.05
        enough, deadline = len(messages), self.timeout
        if least is not None:
            enough = min(enough, max(least, math.ceil(self.fraction * len(messages) - 1e-9)))
            deadline = min(deadline, self.deadline or deadline)
        while waiting or later:
            found = self.fetch(grid, list(waiting.values()))
            for node, _ in found:
                del waiting[node]
                self._silent.pop(node, None)
            replies += found
            if later and len(waiting) < most:
                more = most - len(waiting)
                failed, sent = self.post(grid, later[:more])
                del later[:more]
                replies, waiting = replies + failed, waiting | sent
            waited, sound = time.monotonic() - began, sum(not reply.has_error() for _, reply in replies)
            if not (waiting or later) or waited >= self.timeout:
                break
            if sound >= enough or (waited >= deadline and sound >= (least or 0)):
                self._late |= {node: (message, began + self.ttl) for node, message in waiting.items()}
                return replies
            time.sleep(min(pause, max(0.0, self.timeout - waited)))
            pause = 0.05 if later else min(1.5 * pause, 0.5)
        if waiting:
            last = {node.node_id: node.online_until for node in grid.get_nodes()}
            self._silent |= {node: last.get(node, 0.0) for node in waiting}
        return replies

    def post(self, grid: Grid, messages: Sequence[Message]) -> tuple[Replies, dict[int, Message]]:
        """Send messages: errors for those that cannot be sent, and the others by the node they went to."""
        ids = list(grid.push_messages(messages)) if messages else []
        sent = [bool(i) for i in ids] if len(ids) == len(messages) else [True] * len(messages)
        failed, waiting = [], {}
        for message, is_sent in zip(messages, sent, strict=True):
            node = message.metadata.dst_node_id
            if is_sent:
                waiting[node] = message
            else:
                failed.append(
                    (
                        node,
                        Message(Error(ErrorCode.NODE_UNAVAILABLE, "the message could not be sent"), reply_to=message),
                    )
                )
        return failed, waiting

    def fetch(self, grid: Grid, messages: Sequence[Message]) -> Replies:
        """The replies that are there.

        Each is fetched by itself, as one that cannot be decoded would take all others with it. In a simulation nothing
        is decoded, and all are fetched at once: a question takes milliseconds, and there may be hundreds of nodes.
        """
        found: Replies = []
        if isinstance(grid, InMemoryGrid):
            nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
            replies = grid.pull_messages(list(nodes)) if nodes else []
            return [(nodes[reply.metadata.reply_to_message_id], reply) for reply in replies]
        for message in messages:
            number, node = message.metadata.message_id, message.metadata.dst_node_id
            try:
                replies = [r for r in grid.pull_messages([number]) if r.metadata.reply_to_message_id == number]
            except Exception as error:  # whatever Flower's decoders raise
                grid.get_nodes()  # raises if it is the connection that has failed
                reason = f"the reply cannot be read ({type(error).__name__})"
                replies = [Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)]
            found += [(node, reply) for reply in replies[:1]]
        return found

    def is_silent(self, node: NodeInfo) -> bool:
        """Whether a node that failed to answer has sent no heartbeat since."""
        last = self._silent.get(node.node_id)
        return last is not None and 0 < node.online_until <= last

    def is_late(self, node: int) -> bool:
        """Whether a node still works for a round that has closed."""
        return node in self._late

    def settle(self, grid: Grid) -> None:
        """Fetch what nodes have sent for rounds that have closed; it is not used, but they are free again."""
        if self._late:
            now = time.monotonic()
            done = {node for node, _ in self.fetch(grid, [message for message, _ in self._late.values()])}
            self._late = {n: kept for n, kept in self._late.items() if n not in done and now < kept[1]}


def window(grid: Grid) -> int:
    """How many messages may be on their way at once.

    Flower's simulation looks for the messages of every node among all messages, again and again: with hundreds of
    each that takes most of the time, and only as many are worked on at once as there are cores.
    """
    return WINDOW if isinstance(grid, InMemoryGrid) else sys.maxsize


def all_raised(replies: Sequence[Message], asked: int) -> bool:
    """Whether the apps of all nodes that were asked have raised an exception, as they would again."""
    codes = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
    return len(replies) == asked and all(reply.has_error() and reply.error.code in codes for reply in replies)
