"""Per-client state, at the server or at the clients: one row per client."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.types import Integers, Tensors


class ClientRows:
    """An immutable table with one row (…, q) per client. Clients without a row of their own have the default.

    `updated` shares unchanged rows with the original: a round with 5 of 100,000 clients copies 5 rows.

    >>> rows = ClientRows(torch.zeros(1, 2)).updated(np.array([3]), torch.ones(1, 2))
    >>> rows.at(np.array([0, 3])).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, default: Tensor) -> None:
        """Create a table without rows; `default` is (…, 1, q)."""
        self.default = default
        self._blocks: dict[int, Tensor] = {}  # the tensors (…, n, q) given to `updated`
        self._live: dict[int, int] = {}  # number of rows of a block in use
        self._place: dict[int, tuple[int, int]] = {}  # block and row of each client with a row

    def __len__(self) -> int:
        return len(self._place)

    @property
    def owners(self) -> Integers:
        """Clients with a row of their own, ascending, (n,)."""
        return np.array(sorted(self._place), dtype=np.int64)

    @cached_property
    def values(self) -> Tensor:
        """Rows of the owners, (…, n, q)."""
        return self.at(self.owners)

    def at(self, who: Integers) -> Tensor:
        """Rows of these clients, (…, len(who), q); a view if they are contiguous."""
        places = [self._place.get(client) for client in who.tolist()]
        if not any(places):
            return self.default.expand(*self.default.shape[:-2], len(places), -1)
        blocks = {place[0] for place in places if place}
        if len(blocks) == 1 and all(places):
            rows = [place[1] for place in places if place]
            (block,) = (self._blocks[key] for key in blocks)
            if rows == list(range(rows[0], rows[0] + len(rows))):
                return block[..., rows[0] : rows[0] + len(rows), :]
            return block[..., rows, :]
        found = self.default.expand(*self.default.shape[:-2], len(places), -1).clone()
        for key in blocks:
            here = [(j, place[1]) for j, place in enumerate(places) if place and place[0] == key]
            found[..., [j for j, _ in here], :] = self._blocks[key][..., [row for _, row in here], :]
        return found

    def blocks(self) -> Iterator[tuple[Integers, Tensor, Integers]]:
        """The rows where they lie: places among the owners, a tensor (…, n, q) that holds these, and where in it."""
        lies = np.array([self._place[client] for client in self.owners.tolist()]).reshape(-1, 2)
        for key, block in self._blocks.items():
            here = np.flatnonzero(lies[:, 0] == key)
            yield here, block, lies[here, 1]

    def updated(self, who: Integers, values: Tensor) -> "ClientRows":
        """A table with new rows (…, len(who), q) for these clients."""
        new, key = ClientRows(self.default), max(self._blocks, default=-1) + 1
        new._blocks, new._live, new._place = (
            {**self._blocks, key: values},
            {**self._live, key: len(who)},
            {**self._place},
        )
        for row, client in enumerate(who.tolist()):
            if (before := new._place.get(client)) is not None:
                new._live[before[0]] -= 1
                if not new._live[before[0]]:
                    del new._blocks[before[0]], new._live[before[0]]
            new._place[client] = (key, row)
        held = sum(block.shape[-2] for block in new._blocks.values())
        return new._compacted() if held > 2 * len(new._place) + len(who) else new

    def _compacted(self) -> "ClientRows":
        """The same table in one block, without unused rows."""
        return ClientRows(self.default).updated(self.owners, self.values.clone())

    # -- lanes and files -----------------------------------------------------------------------------------------------

    def lane(self, lane: int) -> "ClientRows":
        """The table of one lane, if the first axis of rows is the lane."""
        part = ClientRows(self.default[lane])
        part._blocks = {key: block[lane] for key, block in self._blocks.items()}
        part._live, part._place = self._live, self._place
        return part

    @classmethod
    def stacked(cls, lanes: Sequence["ClientRows"]) -> "ClientRows":
        """Tables with the same owners as lanes of one table."""
        rows = cls(torch.stack([lane.default for lane in lanes]))
        return rows.updated(lanes[0].owners, torch.stack([lane.values for lane in lanes])) if len(lanes[0]) else rows

    def tensors(self) -> Tensors:
        """The contents as tensors, to be saved."""
        return {"default": self.default, "owners": torch.from_numpy(self.owners), "values": self.values}

    @classmethod
    def from_tensors(cls, saved: Tensors) -> "ClientRows":
        """The inverse of `tensors`."""
        rows, owners = cls(saved["default"]), saved["owners"].cpu().numpy()
        return rows.updated(owners, saved["values"]) if len(owners) else rows


def lane_of(value: Any, lane: int) -> Any:
    """One lane of a tensor or of `ClientRows`."""
    return value.lane(lane) if isinstance(value, ClientRows) else value[lane]
