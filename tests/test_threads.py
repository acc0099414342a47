"""Work on threads: numbers that processors are slow with count as zero, and only there."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedkin.engine.threads import flushes_denormals, on_threads, without_denormals

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the processor cannot flush them")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_zero_in_all_threads(threads: int) -> None:
    seen: dict[int, list[float]] = {}
    both = threading.Barrier(threads)
    tiny = torch.full((64,), 1e-40)

    def work(item: int) -> None:
        both.wait(10)  # so that each thread has an item
        seen[item] = [float((tiny * 1).sum()), float(np.full(64, 1e-40, dtype=np.float32).sum())]

    on_threads(work, range(threads), threads)
    assert seen == {item: [0.0, 0.0] for item in range(threads)}
    assert float((tiny * 1).sum()) > 0


@pytest.mark.parametrize("wanted", [False, True])
def test_the_setting_of_the_program_stays(wanted: bool) -> None:
    torch.set_flush_denormal(wanted)
    with without_denormals():
        assert flushes_denormals()
        with without_denormals():
            assert flushes_denormals()
        assert flushes_denormals()
    assert flushes_denormals() == wanted

    def fail(item: int) -> None:
        raise KeyError(item)

    with pytest.raises(KeyError):
        on_threads(fail, [1], 1)
    assert flushes_denormals() == wanted
