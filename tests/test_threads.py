"""Work on threads: how many PyTorch has, and numbers that processors are slow with count as zero, and only there."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import loops
from fedkin.algorithms import FedAvg
from fedkin.engine import simulation
from fedkin.engine.threads import (
    SHARED_NUMBERS,
    all_cores,
    cores,
    cores_for,
    flushes_denormals,
    on_threads,
    one_core,
    torch_threads,
    without_denormals,
)

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


def test_one_core_and_all_cores_nest() -> None:
    with torch_threads(3):
        assert (cores(), torch.get_num_threads()) == (3, 3)
        with one_core():
            assert (cores(), torch.get_num_threads()) == (3, 1), "a thread of ours each"
            with one_core():
                assert (cores(), torch.get_num_threads()) == (3, 1)
            with all_cores():
                assert (cores(), torch.get_num_threads()) == (3, 3)
            assert (cores(), torch.get_num_threads()) == (3, 1)
        assert (cores(), torch.get_num_threads()) == (3, 3)
        with pytest.raises(KeyError), one_core():
            raise KeyError
        assert (cores(), torch.get_num_threads()) == (3, 3), "after an error, too"


@pytest.mark.parametrize(("numbers", "shared"), [(SHARED_NUMBERS - 1, False), (SHARED_NUMBERS, True)])
def test_long_vectors_are_shared_by_all_cores(numbers: int, shared: bool) -> None:
    with torch_threads(2):
        with cores_for(numbers):
            assert (cores(), torch.get_num_threads()) == (2, 2 if shared else 1)
        assert torch.get_num_threads() == 2


def test_a_short_round_runs_on_one_core_and_uses_all_for_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []

    def on_threads(work: Any, items: Any, threads: int) -> None:
        seen.append((threads, cores(), torch.get_num_threads()))
        for item in items:
            work(item)

    monkeypatch.setattr(simulation, "on_threads", on_threads)
    with torch_threads(2):
        loops.played(loops.simulation(FedAvg(step_size=0.1)), rounds=1)
        assert torch.get_num_threads() == 2
    assert seen == [(2, 2, 1)]
