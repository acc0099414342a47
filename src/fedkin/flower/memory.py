"""What a client keeps between rounds: in the state that Flower holds for a run, and in a folder if the node has one.

Not every round of a node counts: a reply may come too late, the server may repeat a round or continue from an earlier
one. So a memory is kept with its round, and the order says from which one the client continues. Flower's state is lost
when the SuperNode or the server app is restarted; a folder outlives both.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Context

from fedkin.errors import BadInput
from fedkin.experiments.tensor_files import read_tensors, write_tensors
from fedkin.files import writable_folder
from fedkin.flower.wire import Order, pack, stacked
from fedkin.types import Tensors

MEMORY_FOLDER = "memory-folder"  # in the node's --node-config
KEPT, ROUND = "fedkin, run ", ", kept after round "  # in the names of records in Flower's state
CHECKPOINTS = 2  # of the server, which may return to either


def memory_of(context: Context) -> Tensors:
    """What the client keeps to itself after its last round, tensors (1, q): Ditto's personal model, say."""
    names = [name for name in context.state.array_records if name.startswith(KEPT)]
    return stacked(context.state, max(names, key=lambda name: int(name.rpartition(ROUND)[2]))) if names else {}


class ClientMemory:
    """The memories of a client in the run of an order, by the round after which they were kept."""

    def __init__(self, context: Context, order: Order) -> None:
        if not re.fullmatch("[0-9a-f]{16}", order.run):  # it becomes the name of a file
            raise BadInput(f"the order is of the run {order.run!r}, which no server of fedkin sends: use one version")
        self._state, self._order = context.state, order
        self._record = f"{KEPT}{order.run}{ROUND}"
        folder = context.node_config.get(MEMORY_FOLDER)
        self._folder = Path(str(folder)) if folder else None
        self._file = f"{order.run}-client-{order.client}-round-"

    def last(self, like: Tensors) -> Tensors | None:
        """The memory after the last round that counted; None if it is lost, or has not the form of `like`."""
        name, found = f"{self._record}{self._order.counted}", None
        if name in self._state.array_records:
            found = stacked(self._state, name)
        elif self._folder and (saved := read_tensors(self._path(self._folder, self._order.counted))):
            found = saved[0]
        return found if found and _forms(found) == _forms(like) else None

    def keep(self, memory: Tensors) -> None:
        """Keep a memory after the order's round. What was kept after rounds that no longer matter is forgotten."""
        names = [name for name in self._state.array_records if name.startswith(KEPT)]
        current = {self._number(name): name for name in names if name.startswith(self._record)}
        for name in set(names) - {current[round] for round in self._needed(current)}:
            del self._state[name]
        self._state[f"{self._record}{self._order.round}"] = pack({name: value[0] for name, value in memory.items()})
        if self._folder:
            self._write(self._folder, memory)

    def _write(self, folder: Path, memory: Tensors) -> None:
        writable_folder(folder, f"{MEMORY_FOLDER} in --node-config")
        before = os.umask(0o077)  # a memory may be a model of the client's own
        try:
            write_tensors(self._path(folder, self._order.round), memory, {"round": str(self._order.round)})
        finally:
            os.umask(before)
        files = {self._number(path.stem): path for path in folder.glob(f"{self._file}*.safetensors")}
        for round in set(files) - {*self._needed(files), self._order.round}:
            files[round].unlink(missing_ok=True)

    def _needed(self, rounds: Iterable[int]) -> list[int]:
        """The last of these rounds that counted, as many as the server has checkpoints."""
        return sorted(round for round in rounds if round <= self._order.counted)[-CHECKPOINTS:]

    def _path(self, folder: Path, round: int) -> Path:
        return folder / f"{self._file}{round}.safetensors"

    @staticmethod
    def _number(name: str) -> int:
        """The round at the end of a name."""
        return int(re.findall(r"\d+", name)[-1])


def _forms(vectors: Tensors) -> dict[str, object]:
    return {name: (value.shape, value.dtype) for name, value in vectors.items()}
