"""A round's work at a node: what was received, what the client remembers, and what is sent back."""

import math
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.layout import Layout
from fedkin.flower.memory import ClientMemory
from fedkin.flower.protection import upload_of
from fedkin.flower.wire import FIRST, METRICS, NODE, ORDER, VECTORS, Order, pack, stacked, unpack
from fedkin.types import Tensors


@dataclass(frozen=True)
class Task:
    """A round's work as a node receives it. Tensors are (1, q): stacks of a single client.

    memory  what the client remembers
    lost    whether that begins anew although the client has taken part before
    layout  where the trained parameters are in the vectors of the server
    whole   the received model with all its entries
    """

    message: Message
    context: Context | None
    order: Order
    got: Tensors
    memory: Tensors
    lost: bool
    layout: Layout
    whole: Tensor

    @classmethod
    def received(cls, msg: Message, context: Context | None, layout: Layout) -> "Task":
        """Read a message for a node with this layout."""
        content = msg.content
        order, sent = Order.unpack(content.config_records[ORDER]), stacked(content, VECTORS)
        got = layout.taken(sent)
        first = layout.taken(stacked(content, FIRST)) if FIRST in content.array_records else got
        memory, lost = order.algorithm.remember(first["model"]), False
        if memory and context is None:
            raise BadInput(
                f"clients of {type(order.algorithm).__name__} keep a memory between rounds: "
                "pass the node's context too, Work(msg, net, context)"
            )
        if memory and context is not None and order.counted >= 0:
            found = ClientMemory(context, order).last(like=memory)
            memory, lost = found or memory, found is None
        return cls(msg, context, order, got, memory, lost, layout, sent["model"])

    def reply(
        self,
        w: Tensor,
        got: Tensors,
        memory: Tensors,
        steps: int,
        samples: int,
        metrics: dict[str, float] | None = None,
        own_loop: bool = False,
    ) -> Message:
        """Keep what the algorithm keeps, and send what it replies after so many steps.

        own_loop  whether the steps were those of a loop of the user's own, not of the server's `Local`
        """
        sent, kept = self.order.algorithm.reply(w, got, memory, w.new_full((1, 1), steps))
        if math.isfinite(self.order.clip):
            sent["model"] = upload_of(sent["model"], self.got["model"], self.order.clip, self.order.noise)
        if self.memory and self.context is not None:
            ClientMemory(self.context, self.order).keep({**self.memory, **kept})
        sent = self.layout.placed({name: value.cpu() for name, value in sent.items()}, self.whole)
        content = RecordDict({VECTORS: pack({name: value[0] for name, value in sent.items()})})
        content[METRICS] = MetricRecord({"num-examples": samples, **(metrics or {})})
        given = {"clip": self.order.clip, "noise": self.order.noise}
        content[NODE] = ConfigRecord({"memory-lost": self.lost, "own-loop": own_loop, **given})
        return Message(content, reply_to=self.message)


def model_in(msg: Message) -> Tensor:
    """The model that the server sent, with all its entries, (S,)."""
    return unpack(msg.content.array_records[VECTORS])["model"]
