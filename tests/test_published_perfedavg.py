"""Per-FedAvg as FedU's code measures it: the steps by hand, and its global model is that of the reproduction."""

from pathlib import Path

import pytest
import torch

from fedkin import FedAvg, Local, build_graph, build_model, federate, load, run
from fedkin.engine.simulation import Simulation
from fedkin.paper.reproduce import read_reproduction
from published_perfedavg import PART, best_rounds, simulations, stepped


def test_two_steps_by_hand() -> None:
    """Softmax regression: ∇W = Σ (p − e) xᵀ/n, of the first 20 samples with 0.03, then of the other 5 with 0.001."""
    federation = federate(load("digits"), clients=2)
    graph, model = build_graph(federation, "uniform"), build_model(federation)
    weights = graph.weights("samples", federation.train.sizes)
    simulation = Simulation(federation, model, FedAvg(), graph, weights, Local())
    x, y, order = federation.test.x[:25], federation.test.y[:25], torch.arange(24, -1, -1)
    w = 0.1 * torch.randn(650, generator=torch.Generator().manual_seed(1))
    expected = w.double()
    for rows, step in ((order[:20], 0.03), (order[20:], 0.001)):
        weight, bias = expected[:640].view(10, 64), expected[640:]
        wrong = torch.softmax(x[rows].double() @ weight.T + bias, dim=1)
        wrong[torch.arange(len(rows)), y[rows]] -= 1
        slope = torch.cat([(wrong.T @ x[rows].double()).flatten(), wrong.sum(0)]) / len(rows)
        expected = expected - step * slope
    torch.testing.assert_close(stepped(simulation, w, x, y, order).double(), expected, rtol=0, atol=1e-6)


def test_the_global_model_is_that_of_the_reproduction(tmp_path: Path) -> None:
    simulation, rounds = next(simulations(None, quick=True))
    found, adapted = best_rounds(simulation, rounds)
    part = next(one for one in read_reproduction("fedu", quick=True).parts if one.name == PART)
    (result,) = run({**part.settings, "seed": 0, "evaluate_every": 1}, out=tmp_path)
    assert found == pytest.approx(result.summary["best_test_accuracy"])
    assert adapted > found
