"""Work that is shared by threads of one core each.

PyTorch's own threads would synchronise after every operation, thousands of times per round.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from fedkin.models import Model

Item = TypeVar("Item")


def threads_for(model: Model, device: torch.device) -> int:
    """Number of threads that can use a model at the same time."""
    return torch.get_num_threads() if device.type == "cpu" and model.parallel else 1


def on_threads(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Call a function with every item, in this order. With one thread PyTorch uses all cores for each call."""
    if threads == 1 or len(items) == 1:
        for item in items:
            work(item)
        return
    with one_core(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, items))


@contextmanager
def one_core() -> Iterator[None]:
    """PyTorch uses one core for its operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
