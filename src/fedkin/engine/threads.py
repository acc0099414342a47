"""Work that is shared by threads of one core each.

PyTorch's own threads would synchronise after every operation, thousands of times per round.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from fedkin.models import Model

Item = TypeVar("Item")


def threads_for(model: Model, device: torch.device) -> int:
    """Number of threads that can use a model at the same time."""
    return torch.get_num_threads() if device.type == "cpu" and model.parallel else 1


def on_threads(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Call a function with every item, in this order. With one thread PyTorch uses all cores for each call."""
    with without_denormals():
        if threads == 1 or len(items) == 1:
            for item in items:
                work(item)
            return
        with one_core(), ThreadPoolExecutor(threads, initializer=_prepare_thread) as pool:
            list(pool.map(work, items))


def _prepare_thread() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Numbers below 1.2 · 10⁻³⁸ count as 0 in this thread, where the processor can do that.

    Processors compute with them up to a hundred times as slowly as with others. Probabilities of classes that a model
    excludes are that small, and with long steps there are many of them.
    """
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushes_denormals() -> bool:
    """Whether they count as 0 in this thread: PyTorch can set it, and not tell."""
    return bool(np.float32(1e-40) * np.float32(1.0) == 0)


@contextmanager
def one_core() -> Iterator[None]:
    """PyTorch uses one core for its operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
