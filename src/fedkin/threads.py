"""Work that is shared by threads of one core each.

PyTorch's own threads would synchronise after every operation, thousands of times per round. After an operation that
they have shared they wait for the next one in a loop, which takes a core from ours for some milliseconds. And the last
bits of a product depend on how many of them share it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import torch

Item = TypeVar("Item")


_cores: ContextVar[int | None] = ContextVar("cores", default=None)  # those that `one_core` leaves to threads of ours


def cores() -> int:
    """Number of cores for PyTorch: its own number of threads, also where `one_core` lets it use one at a time."""
    return _cores.get() or torch.get_num_threads()


def threads_for(device: torch.device, parallel: bool = True) -> int:
    """Number of threads for work on a device, of which parts can be done at the same time or not."""
    return cores() if device.type == "cpu" and parallel else 1


def on_threads(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Call a function with every item, in this order. One thread is this one, with the cores that PyTorch has here."""
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
    """PyTorch uses one core for an operation, so that its threads neither meet nor wait."""
    token = _cores.set(cores())
    try:
        with torch_threads(1):
            yield
    finally:
        _cores.reset(token)


@contextmanager
def all_cores() -> Iterator[None]:
    """PyTorch's threads share long operations, within `one_core` too."""
    with torch_threads(cores()):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
