"""Large arrays of a round, in memory of the rounds before.

The system hands out large memory page by page, each filled with zeros at its first use, and takes it back as soon as it
is free. For arrays that are needed anew in every round that is as much work as computing what goes into them.
"""

import itertools
import math
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 1 << 20  # numbers (4 bytes each); what is smaller the C library keeps itself
ALIGNED = 16  # numbers: a line of the cache
LONG = 16  # times that room is asked for


@dataclass
class Block:
    """Memory, and who uses it: a view that the tensor made of it keeps alive, and all tensors that share it."""

    whole: NDArray[np.float32]
    user: weakref.ref[NDArray[np.float32]] | None = None
    asked: int = 0  # when it was last given out

    @property
    def free(self) -> bool:
        """Whether no tensor is left of it."""
        return self.user is None or self.user() is None

    def tensor(self) -> Tensor:
        """A new tensor of it."""
        view = self.whole[:]
        self.user = weakref.ref(view)
        return torch.from_numpy(view)


_blocks: list[Block] = []
_lock = threading.Lock()
_times = itertools.count()  # room was asked for so many times


def room(like: Tensor, *shape: int) -> Tensor:
    """A tensor of the shape, with anything in it, where the other is; memory is used again as soon as it is free."""
    size = math.prod(shape)
    if size < LARGE or like.device.type != "cpu" or like.dtype != torch.float32:
        return like.new_empty(shape)
    with _lock:
        now = next(_times)
        # What has not been wanted for so long will not be.
        _blocks[:] = [block for block in _blocks if not block.free or now - block.asked < LONG]
        block = next((block for block in _blocks if block.free and len(block.whole) == size), None)
        if block is None:
            block = Block(_aligned(size))
            _blocks.append(block)
        block.asked = now
        return block.tensor().view(shape)


def _aligned(size: int) -> NDArray[np.float32]:
    more = np.empty(size + ALIGNED, dtype=np.float32)
    return more[-(more.ctypes.data // 4) % ALIGNED :][:size]
