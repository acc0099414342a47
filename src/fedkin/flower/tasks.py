"""A round's work at a node: what was received, what the client remembers, and what is sent back.

What an algorithm's clients keep between rounds stays in the node's `context.state`, with the round after which it was
kept. Not every round of a node counts: a reply may come too late, the server may repeat a round or continue from an
earlier one. The order says which round counted last, and the client continues from what it kept then.
"""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.wire import FIRST, METRICS, NODE, ORDER, VECTORS, Order, pack, unpack
from fedkin.types import Tensors

KEPT = "fedkin, kept after round "  # the beginning of the names of records in the node's state


def memory_of(context: Context) -> Tensors:
    """What the client keeps to itself after its last round, tensors (1, q): Ditto's personal model, say."""
    rounds = _rounds(context.state)
    return _stacked(context.state, f"{KEPT}{rounds[-1]}") if rounds else {}


@dataclass(frozen=True)
class Task:
    """A round's work as a node receives it. Tensors are (1, q): stacks of a single client.

    memory  what the client remembers
    lost    whether that begins anew although the client has taken part before
    """

    message: Message
    context: Context | None
    order: Order
    got: Tensors
    memory: Tensors
    lost: bool

    @classmethod
    def received(cls, msg: Message, context: Context | None, size: int) -> "Task":
        """Read a message for a node whose model has `size` parameters."""
        content = msg.content
        order, got = Order.unpack(content.config_records[ORDER]), _stacked(content, VECTORS)
        if (sent := got["model"].shape[-1]) != size:
            raise BadInput(f"the server sent {sent} parameters where this node's model has {size}: use one model")
        first = _stacked(content, FIRST) if FIRST in content.array_records else got
        memory, lost = order.algorithm.remember(first["model"]), False
        if memory and context is None:
            raise BadInput(
                f"clients of {type(order.algorithm).__name__} keep a memory between rounds: "
                "pass the node's context too, Work(msg, net, context)"
            )
        if memory and context is not None and order.counted >= 0:
            lost = order.counted not in _rounds(context.state)
            memory = memory if lost else _stacked(context.state, f"{KEPT}{order.counted}")
        return cls(msg, context, order, got, memory, lost)

    def reply(
        self,
        w: Tensor,
        got: Tensors,
        memory: Tensors,
        steps: int,
        samples: int,
        metrics: dict[str, float] | None = None,
    ) -> Message:
        """Keep what the algorithm keeps, and send what it replies after so many steps."""
        sent, kept = self.order.algorithm.reply(w, got, memory, w.new_full((1, 1), steps))
        if self.memory and self.context is not None:
            self._keep(self.context.state, {**self.memory, **kept})
        content = RecordDict({VECTORS: pack({name: value[0] for name, value in sent.items()})})
        content[METRICS] = MetricRecord({"num-examples": samples, **(metrics or {})})
        content[NODE] = ConfigRecord({"memory-lost": self.lost})
        return Message(content, reply_to=self.message)

    def _keep(self, state: RecordDict, memory: Tensors) -> None:
        """Keep the memory beside that of the last two rounds that counted: the server has as many checkpoints."""
        counted = [round for round in _rounds(state) if round <= self.order.counted][-2:]
        for round in _rounds(state):
            if round not in counted:
                del state[f"{KEPT}{round}"]
        state[f"{KEPT}{self.order.round}"] = pack({name: value[0] for name, value in memory.items()})


def _rounds(state: RecordDict) -> list[int]:
    """After which rounds something was kept, ascending."""
    return sorted(int(name.removeprefix(KEPT)) for name in state.array_records if name.startswith(KEPT))


def _stacked(content: RecordDict, record: str) -> Tensors:
    """The vectors of a record as stacks of one client, (1, q)."""
    return {name: value[None] for name, value in unpack(content.array_records[record]).items()}
