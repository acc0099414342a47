"""MOCHA beside the form that a benchmark has of it."""

from typing import Any

import numpy as np
import pytest
import torch

from conftest import small_federation
from fedkin.algorithms import MOCHA, FedAvg, Local
from fedkin.algorithms.rows import ClientRows
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import build_graph
from fedkin.models import Softmax
from fedkin.paper.motley import BenchmarkMOCHA


def simulation(algorithm: Any) -> Simulation:
    federation = small_federation((7, 4), features=2, classes=3)
    graph = build_graph(federation, "uniform")
    return Simulation(federation, Softmax(2, 3), algorithm, graph, np.ones(2), Local(epochs=2, batch_size=3))


def coupled(algorithm: MOCHA, models: torch.Tensor) -> torch.Tensor:
    known = ClientRows(torch.zeros(1, 2)).updated(np.arange(2), models)
    return algorithm.coupling(known, models, simulation(algorithm).available(0))


@pytest.mark.parametrize("d", [0.5, 0.1])
def test_by_hand(d: float) -> None:
    """Models (1, d) and (1, −d): the roots of 2 and 2d² have the shares 1/(1+d) and d/(1+d)."""
    models, ridge = torch.tensor([[1.0, d], [1.0, -d]]), 0.01
    common, differing = 1 / (1 + d), d / (1 + d)
    published = torch.tensor([[1 / (common + ridge), d / (differing + ridge)]])
    benchmark = torch.tensor([[common, d * differing]])
    sign = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    torch.testing.assert_close(coupled(MOCHA(ridge=ridge), models), published * sign)
    torch.testing.assert_close(coupled(BenchmarkMOCHA(ridge=ridge), models), benchmark * sign)


def test_without_coupling_it_is_training_alone_and_with_it_it_is_not_mocha() -> None:
    def model(algorithm: Any) -> torch.Tensor:
        run = simulation(algorithm)
        return run.advance(run.advance(run.start())).model

    alone = model(MOCHA(step_size=0.1, pull=0.0))
    assert torch.equal(model(BenchmarkMOCHA(step_size=0.1, pull=0.0)), alone)
    assert not torch.allclose(model(BenchmarkMOCHA(step_size=0.1, pull=0.5)), alone)
    assert not torch.allclose(model(BenchmarkMOCHA(step_size=0.1, pull=0.5)), model(MOCHA(step_size=0.1, pull=0.5)))
    assert not torch.allclose(alone, model(FedAvg(step_size=0.1)))
