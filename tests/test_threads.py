"""Work on threads: how many PyTorch has, and numbers that processors are slow with count as zero, and only there."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import loops
from conftest import small_federation
from fedkin.algorithms import Algorithm, Ditto, FedAvg, FedKin, Local
from fedkin.engine import cohorts, measure, simulation
from fedkin.graph.mixing import COLUMNS_AT_ONCE
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP
from fedkin.threads import (
    all_cores,
    cores,
    flushes_denormals,
    on_threads,
    one_core,
    torch_threads,
    without_denormals,
)

flushing = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the processor cannot flush them")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@flushing
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


@flushing
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


def test_a_round_runs_on_one_core_and_uses_all_for_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("order", ["fixed", "shuffled"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("algorithm", [FedAvg(step_size=0.05), FedKin(step_size=0.05, beta=0.7), Ditto(step_size=0.05)])
def test_large_models_are_the_same_to_the_bit(
    algorithm: Algorithm, compiled: bool, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one client has nearly all samples, and several threads share the average of models."""
    if not compiled:
        monkeypatch.setattr(cohorts, "compiled_spaces", lambda: None)
    made = small_federation(sizes=[600, 30, 30, 20, 9, 9], features=256)
    model = MLP(256, 3, 300)
    assert model.size > COLUMNS_AT_ONCE
    local = Local(epochs=2, batch_size=256, order=order)
    graph = SimilarityGraph.uniform(6)
    found = []
    for threads in (1, 2, 5):
        with torch_threads(threads):
            run = simulation.Simulation(made, model, algorithm, graph, graph.degrees, local, seed=1)
            state = loops.played(run)
            ((measured,),) = [measure(model, state.model.view(1, -1), made)]
            found.append((state.model, measured))
    for model_of_more, measured_of_more in found[1:]:
        assert torch.equal(model_of_more, found[0][0])
        assert measured_of_more == found[0][1]
