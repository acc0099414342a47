"""Reuse of memory: only when no tensor or view uses it."""

import gc

import pytest
import torch

from fedkin import buffers as memory
from fedkin.buffers import room

LIKE = torch.zeros(1)
SIZE = memory.LARGE


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_blocks", [])


def test_free_memory_is_reused() -> None:
    first = room(LIKE, 4, SIZE // 4)
    assert first.shape == (4, SIZE // 4)
    assert first.dtype == torch.float32
    assert first.data_ptr() % 64 == 0, "lines of the cache"
    place = first.data_ptr()
    second = room(LIKE, SIZE)
    assert second.data_ptr() != place
    del first
    gc.collect()
    assert room(LIKE, SIZE).data_ptr() == place


@pytest.mark.parametrize("part", [lambda t: t[1], lambda t: t.mT, lambda t: t.view(-1)[5:], lambda t: t.numpy()])
def test_memory_with_a_view_is_not_reused(part: object) -> None:
    assert callable(part)
    whole = room(LIKE, 4, SIZE // 4).fill_(1.0)
    kept = part(whole)
    del whole
    gc.collect()
    room(LIKE, 4, SIZE // 4).fill_(2.0)
    assert (kept == 1).all()


def test_unused_memory_is_released() -> None:
    room(LIKE, SIZE)
    kept = room(LIKE, 2 * SIZE)
    for _ in range(memory.LONG):
        room(LIKE, 3 * SIZE)
    assert [len(block.whole) for block in memory._blocks] == [2 * SIZE, 3 * SIZE]
    assert kept.numel() == 2 * SIZE


def test_small_tensors_and_other_types_are_not_reused() -> None:
    room(LIKE, SIZE - 1)
    assert room(LIKE.double(), SIZE).dtype == torch.float64
    assert not memory._blocks
