"""Secure aggregation: the server learns the sum of the clients' updates, and of no client its own.

The protocol is SecAgg+ (Bell et al. 2020) in Flower's implementation: `secaggplus_mod` at the nodes and the stages of
`SecAggPlusWorkflow` at the server. Flower has them for its former strategies and clients, which exchange `FitIns` and
`FitRes`. Here the stages are given the messages of our `Strategy` instead, and the mod the update of our client app.

    setup → share keys → (begin → step × E → reply, masked) → unmask
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.flower.checks import in_line
from fedkin.flower.ledger import log
from fedkin.flower.wire import METRICS, VECTORS, unpack

SendAndReceive = Callable[[Sequence[Message]], Iterable[Message]]
LEVELS = 1 << 22  # an entry of an update is rounded to so many values, at random up or down
MOST_SUMMED = 1000  # sums of more clients would not fit into the 2³² values of a masked entry
WEIGHED = "secure"  # the record that says whether a node's update counts by its number of samples


@dataclass(frozen=True)
class SecureSum:
    """How updates are summed.

    limit      the largest entry |wᵢ − w̄| that can be sent; larger ones are cut off, and a small limit rounds finely
    survivors  share of the sampled nodes that must stay until the end, above a half: with as many of them the masks of
               the others are found; with fewer nobody learns anything, and the round is repeated
    """

    limit: float = 1.0
    survivors: float = 0.6

    def __post_init__(self) -> None:
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise BadInput(f"limit = {self.limit:g} is out of range: it must be above 0")
        if not 0.5 < self.survivors <= 1:
            raise BadInput(f"survivors = {self.survivors:g} is out of range: it must be above 0.5 and at most 1")

    def average(
        self,
        exchange: SendAndReceive,
        orders: Mapping[int, RecordDict],
        round: int,
        heaviest: float = 1.0,
        by_samples: bool = False,
    ) -> "Summed | None":
        """The weighted mean of the updates; None if too few nodes stayed.

        exchange    sends messages and returns the replies
        orders      what each node receives, by its id
        heaviest    the largest weight of a node
        by_samples  whether weights are numbers of samples, or all are 1
        """
        if len(orders) < 2:
            return None
        if len(orders) > MOST_SUMMED:
            raise BadInput(f"{len(orders)} nodes are too many for one secure sum: sample at most {MOST_SUMMED}")
        for content in orders.values():
            content[WEIGHED] = ConfigRecord({"samples": by_samples})
        flow = SecAggPlusWorkflow(
            1.0, self.survivors, max_weight=heaviest, clipping_range=float(self.limit), quantization_range=LEVELS
        )
        grid, context, state = _Grid(exchange), _Context(sorted(orders), round), WorkflowState()
        stages = (flow.setup_stage, flow.share_keys_stage, flow.collect_masked_vectors_stage, flow.unmask_stage)
        for stage in stages:
            if stage is stages[2]:
                state.nid_to_fitins = {node: orders[node] for node in state.active_node_ids}
            try:
                if not stage(cast(Any, grid), cast(Any, context), state):
                    return None
            except Exception as error:  # whatever a node sends that is not of the protocol
                log.warning("a secure sum failed (%s: %s)", type(error).__name__, in_line(error))
                return None
        if context.mean is None:
            return None
        return Summed(torch.from_numpy(context.mean.astype(np.float32)), tuple(sorted(context.nodes)), grid.bytes_up)


@dataclass(frozen=True)
class Summed:
    """What the server learns: the mean of the updates (P,), the nodes in it, and the bytes that each has sent."""

    update: Tensor
    nodes: tuple[int, ...]
    sent: Mapping[int, int]


@dataclass
class _Grid:
    """The part of a grid that the stages use. Every message has a content of its own, which a node may change."""

    exchange: SendAndReceive
    bytes_up: dict[int, int] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        own = [
            Message(
                copy.deepcopy(m.content),
                m.metadata.dst_node_id,
                m.metadata.message_type,
                group_id=m.metadata.group_id,
            )
            for m in messages
        ]
        replies = list(self.exchange(own))
        for reply in replies:
            if not reply.has_error():
                said = reply.content.config_records.get(RECORD_KEY_CONFIGS, ConfigRecord())
                sent = said.get(Key.MASKED_PARAMETERS, [])
                node = reply.metadata.src_node_id
                self.bytes_up[node] = self.bytes_up.get(node, 0) + sum(map(len, cast(list[bytes], sent)))
        return replies


class _Context:
    """The part of a former context that the stages use; it keeps what they hand to a strategy."""

    def __init__(self, nodes: Sequence[int], round: int) -> None:
        configs = {MAIN_CONFIGS_RECORD: {WorkflowKey.CURRENT_ROUND: round}}
        self.state = SimpleNamespace(config_records=configs, array_records={MAIN_PARAMS_RECORD: ArrayRecord()})
        self.client_manager = SimpleNamespace(num_available=lambda: len(nodes))
        self.history = SimpleNamespace(add_metrics_distributed_fit=lambda **_: None)
        self.strategy = self
        self.sampled = nodes
        self.nodes: list[int] = []
        self.mean: np.ndarray[Any, Any] | None = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """Which nodes are asked; what they are sent is added later."""
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.sampled]

    def aggregate_fit(
        self, round: int, results: Sequence[tuple[Any, FitRes]], failures: Any
    ) -> tuple[None, dict[str, Any]]:
        """Every result has the same parameters: the mean."""
        self.nodes = [proxy.node_id for proxy, _ in results]
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def secured(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod for client apps: takes part in secure aggregation if the server asks for it.

    What the app replies is its model. What leaves the node is the masked update.
    """
    if RECORD_KEY_CONFIGS not in msg.content.config_records:
        return call_next(msg, context)

    def masked(message: Message, context: Context) -> Message:
        reply = call_next(message, context)
        after, before = (unpack(one.content.array_records[VECTORS]) for one in (reply, message))
        if set(after) != {"model"}:
            raise BadInput(f"only a model can be summed, not {', '.join(sorted(after))}: use another algorithm")
        update = (after["model"] - before["model"]).numpy()
        by_samples = message.content.config_records[WEIGHED]["samples"]
        weight = reply.content.metric_records[METRICS]["num-examples"] if by_samples else 1
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), int(cast(int, weight)), {})
        return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)

    return secaggplus_mod(msg, context, masked)
