"""Reuse of the memory of large tensors between rounds.

The operating system zeroes every page of a large allocation at its first use and reclaims it on release. For tensors
that are allocated in every round this takes as long as computing their contents.
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

LARGE = 1 << 20  # float32 numbers; the C library itself reuses smaller allocations
ALIGNED = 16  # float32 numbers: a cache line
LONG = 16  # calls of `room` after which an unused block is released


@dataclass
class Block:
    """A block of memory. It is in use as long as a tensor keeps the view `user` alive."""

    whole: NDArray[np.float32]
    user: weakref.ref[NDArray[np.float32]] | None = None
    asked: int = 0  # number of the `room` call that last used it

    @property
    def free(self) -> bool:
        """Whether no tensor uses it."""
        return self.user is None or self.user() is None

    def tensor(self) -> Tensor:
        """A new tensor in this memory."""
        view = self.whole[:]
        self.user = weakref.ref(view)
        return torch.from_numpy(view)


_blocks: list[Block] = []
_lock = threading.Lock()
_times = itertools.count()  # number of calls of `room`


def room(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor of this shape, with the device and type of `like`, in reused memory if it is large."""
    size = math.prod(shape)
    if size < LARGE or like.device.type != "cpu" or like.dtype != torch.float32:
        return like.new_empty(shape)
    with _lock:
        now = next(_times)
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
