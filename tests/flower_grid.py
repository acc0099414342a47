"""A Flower grid whose nodes run in this process, with faults on demand."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message, Message], Message | None]  # (question, honest reply) → what is sent instead


class Direct(Grid):
    """Every node runs the same app. `faults` maps a partition to what happens to its replies.

    nodes      node id → context; ids are random to Flower, here 1000 + partition to begin with
    heartbeat  node id → until when its last heartbeat is valid; without an entry none is known
    more       what else the nodes have in their --node-config
    """

    def __init__(self, app: ClientApp, partitions: Iterable[int], seen: int = 5, more: Mapping[str, str] = {}) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.total, self.more = app, seen, dict(more)
        self.nodes: dict[int, Context] = {}
        self.faults: dict[int, Fault] = {}
        self.heartbeat: dict[int, float] = {}
        self.questions: list[Message] = []
        self._replies: dict[str, Message] = {}
        for partition in partitions:
            self.join(partition)

    def join(self, partition: int, node: int | None = None) -> None:
        """A node connects."""
        node = 1000 + partition if node is None else node
        config: dict[str, bool | float | int | str] = {"partition-id": partition, "num-partitions": self.total}
        config.update(self.more)
        self.nodes[node] = Context(1, node, config, RecordDict(), {})

    def leave(self, node: int) -> None:
        """A node disconnects."""
        del self.nodes[node]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=i, online_until=self.heartbeat.get(i, 0.0), public_key=f"key of {i}".encode())
            for i in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self.questions.append(message)
            context = self.nodes.get(message.metadata.dst_node_id)
            if context is None:
                reply: Message | None = Message(Error(5, "node unavailable"), reply_to=message)
            else:
                try:
                    reply = self.app(message, context)
                except Exception as error:
                    reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
                fault = self.faults.get(int(context.node_config["partition-id"]))
                if fault is not None:
                    reply = fault(message, reply)
            if reply is not None:
                self._replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        raise AssertionError("the strategy asked for the run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def recorded(folder: Path) -> list[Any]:
    """The rounds on record in the folder of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
