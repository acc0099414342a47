"""The clients of a run, by number: a client keeps its number, whichever node answers for it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.flower.checks import Introduction
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers, Tensors

ROSTER, MESSAGES = "roster", "messages"  # names of tensors in a checkpoint
SAME_DATA = 1e-3  # messages of the same data, computed by two machines, are nearer than this


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
        change because a node was restarted. New names follow in natural order of their places ("2" before "10"), so
        that the order of arrival does not matter.
        """
        names, nodes, counted, sizes = list(self.names), list(self.nodes), list(self.counted), self.sizes.tolist()
        rows = [] if self.messages is None else list(self.messages)
        for arrival in sorted(arrivals, key=order):
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

    def other_data(self, arrival: Introduction) -> str:
        """In which way a known client comes back with other data than it had; empty if it does not."""
        if arrival.name not in self.names:
            return ""
        client = self.names.index(arrival.name)
        if (before := int(self.sizes[client])) != arrival.samples:
            return f"{before} samples before, {arrival.samples} now"
        known = np.zeros(0) if self.messages is None else self.messages[client]
        is_same = known.shape == arrival.message.shape and np.linalg.norm(known - arrival.message) <= SAME_DATA
        return "" if is_same else "another message than before"

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
        return {ROSTER: text_tensor(plain), MESSAGES: torch.from_numpy(messages)}

    @classmethod
    def from_tensors(cls, saved: Tensors) -> "Roster":
        """The inverse of `tensors`."""
        plain = from_text_tensor(saved[ROSTER])
        names, nodes, counted = (tuple(plain[key]) for key in ("names", "nodes", "counted"))
        messages = saved[MESSAGES].numpy() if names else None
        return cls(names, nodes, counted, np.array(plain["sizes"], dtype=np.int64), messages)


def order(arrival: Introduction) -> tuple[tuple[int, int, str], str, int]:
    """A key that sorts arrivals as they are numbered."""
    return natural(arrival.place or arrival.name), arrival.name, arrival.node


def natural(name: str) -> tuple[int, int, str]:
    """A key that sorts numbers by value, before words."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def text_tensor(plain: Any) -> Tensor:
    """What JSON can represent, as a tensor of bytes."""
    return torch.tensor(list(json.dumps(plain).encode()), dtype=torch.uint8)


def from_text_tensor(text: Tensor) -> Any:
    """The inverse of `text_tensor`."""
    return json.loads(bytes(text.tolist()).decode())
