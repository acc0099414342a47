"""The engine's runs on softmax regression, with estimated constants, the theory's bounds, and the command."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin.algorithms import FedAvg, FedKin, FedProx, FedSGD, Schedule
from fedkin.cli import app
from fedkin.errors import BadInput
from fedkin.models import Softmax
from fedkin.paper import theory
from fedkin.paper.bounds import (
    at_convex_step,
    at_nonconvex_step,
    convex_bound,
    nonconvex_bound,
    tightened_bound,
)
from fedkin.paper.problem import Problem
from fedkin.paper.softmax_problem import SoftmaxLosses, softmax_problem
from fedkin.paper.theory_report import quadratic_report, softmax_report
from fedkin.paper.trajectories import trajectory_of

# -- softmax regression ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> Problem:
    """Six clients with few classes each, λ = 0.1."""
    federation = fedkin.federate(fedkin.load("digits"), clients=6, class_imbalance=10)
    return softmax_problem(federation, fedkin.build_graph(federation), 0.1)


def test_softmax_constants(digits: Problem) -> None:
    """L is above every curvature seen and μ below; the minimum is one; Γ ≥ 0, and F*'s certificate is tiny."""
    losses = SoftmaxLosses(Softmax(64, 10), digits.federation.train, digits.p, digits.l2)
    assert np.linalg.norm(digits.gradient(digits.optimum)) < 1e-5
    assert digits.Gamma > 0.01
    rng = np.random.default_rng(0)
    x = digits.federation.train.x.double().numpy()
    flattest, steepest = np.inf, 0.0
    for i in range(6):
        top = np.linalg.svd(x[digits.federation.train.rows(i)], full_matrices=False)[2][0]
        for contrast in (rng.normal(size=10), np.array([1, -1] + 8 * [0]), np.ones(10)):
            v = np.concatenate([np.outer(contrast, top).ravel(), np.zeros(10)])
            v *= 1e-4 / np.linalg.norm(v)
            curvature = float((losses.own(i)(v)[1] - losses.own(i)(-v)[1]) @ v / (2 * v @ v))
            flattest, steepest = min(flattest, curvature), max(steepest, curvature)
    # along a constant added to all scores only the penalty bends; the steepest is within π(1 − π) ≤ 1/4 of 1/2
    assert flattest == pytest.approx(digits.mu, rel=1e-4)
    assert digits.L / 10 < steepest < digits.L


def test_softmax_losses_add_up(digits: Problem) -> None:
    """F = Σ pᵢ fᵢ, and its gradient is what differences of it give."""
    losses = SoftmaxLosses(Softmax(64, 10), digits.federation.train, digits.p, digits.l2)
    rng = np.random.default_rng(1)
    w, v = rng.normal(size=(2, 650)) * 0.1
    assert digits.value(w) == pytest.approx(sum(p * losses.own(i)(w)[0] for i, p in enumerate(digits.p)))
    slope = (digits.value(w + 1e-5 * v) - digits.value(w - 1e-5 * v)) / 2e-5
    assert digits.gradient(w) @ v == pytest.approx(slope, rel=1e-6)


def test_variance_of_batches_against_drawing_them(digits: Problem) -> None:
    """The closed form against 4,000 random batches of ⌊n/4⌋ at one point."""
    clients = digits.federation.train
    one = replace(clients, x=clients.x[clients.rows(0)], y=clients.y[clients.rows(0)], offsets=clients.offsets[:2])
    losses = SoftmaxLosses(Softmax(64, 10), one, np.ones(1), 0.0)
    w = torch.as_tensor(np.random.default_rng(2).normal(size=650) * 0.1)
    n, rng, model = len(one.y), np.random.default_rng(3), Softmax(64, 10)
    single = torch.stack(
        [model.gradient(w, one.x[j : j + 1].double(), one.y[j : j + 1], torch.ones(1).double()) for j in range(n)]
    )
    mean = single.mean(dim=0)
    drawn = [float(((single[rng.permutation(n)[: n // 4]].mean(dim=0) - mean) ** 2).sum()) for _ in range(4000)]
    assert losses.variance(w[None, None], 4) == pytest.approx(np.mean(drawn), rel=0.03)


@pytest.mark.parametrize("whole", [True, False])
def test_softmax_runs_lie_below_the_bounds(digits: Problem, whole: bool) -> None:
    """FedAvg, FedProx and FedKin at the theorems' step sizes: convex and nonconvex theorem, and the tightened bound."""
    for algorithm in (FedAvg(), FedProx(alpha=5.0), FedKin(beta=0.5)):
        run = trajectory_of(digits, at_convex_step(digits, algorithm, 4), 4, 15, whole=whole)
        assert run.gap[-1] < 0.9 * run.gap[0]
        assert (run.gap <= convex_bound(run)).all()
        assert (run.gap <= tightened_bound(run)).all()
        assert (run.variance > 0).all() != whole
        flat = trajectory_of(digits, at_nonconvex_step(digits, algorithm, 4, 10), 4, 10, whole=whole, slopes=True)
        assert 0 < flat.slope.mean() <= nonconvex_bound(flat, theory.sharper_perturbation(flat.beta))


def test_recording_changes_nothing(digits: Problem) -> None:
    """A recorded run is the same run, up to the rounding of another order of operations."""
    algorithm = FedKin(beta=0.5, step_size=0.01)
    local = fedkin.Local(steps=4, order="shuffled", l2=digits.l2)
    plain = fedkin.train(digits.federation, algorithm, graph=digits.graph, weights="adjacency", local=local, rounds=3)
    recorded = trajectory_of(digits, algorithm, 4, 3).models[-1]
    np.testing.assert_allclose(recorded, plain.model.double().numpy(), rtol=1e-5, atol=1e-7)


def test_algorithms_that_the_theorems_do_not_cover(digits: Problem) -> None:
    with pytest.raises(BadInput, match="do not cover FedSGD: choose FedAvg, FedProx or FedKin"):
        trajectory_of(digits, FedSGD(), 4, 1)
    with pytest.raises(BadInput, match="constant beta: give FedKin a number"):
        trajectory_of(digits, FedKin(beta=Schedule(0.5, 1.0, over=5)), 4, 1)


# -- the command -------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {
    "name": "quick",
    "rounds": 3,
    "partition": {"clients": 4},
    "local": {"steps": 3, "l2": 0.1},
    "algorithm": [{"name": "fedavg"}, {"name": "fedkin", "beta": 0.5}],
}


def test_command_writes_table_and_figure(tmp_path: Path) -> None:
    """All files are written, and the tables show that the bounds hold."""
    (found,) = softmax_report(QUICK, out=tmp_path)
    assert {path.name for path in found.files} == {
        "bounds.png",
        "bounds.pdf",
        "theory.md",
        "convex.csv",
        "nonconvex.csv",
    }
    assert all(path.stat().st_size > 0 for path in found.files)
    convex, nonconvex = found.tables
    assert [row[0] for row in convex.rows] == ["FedAvg", "FedKin, β = 0.5"]
    assert [row[-1] for row in convex.rows] == ["both", "both"]
    assert [row[-1] for row in nonconvex.rows] == ["yes", "yes"]


def test_embedded_default(tmp_path: Path) -> None:
    """The file in the package describes five algorithms."""
    (found,) = softmax_report(overrides=["rounds=1", "partition.clients=4"], out=tmp_path)
    assert len(found.tables[0].rows) == 5


def test_quadratic_command(tmp_path: Path) -> None:
    """Twenty-two runs, all below their bounds."""
    found = quadratic_report(tmp_path, rounds=26)
    assert len(found.tables[0].rows) == 22
    assert {row[-1] for row in found.tables[0].rows} == {"yes"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.kind=mlp", "set model.kind = 'linear'"),
        ("algorithm.name=fedsgd", "choose fedavg, fedprox or fedkin"),
        ("take_part=2", "set take_part = 'all'"),
        ("graph.weights=samples", "set graph.weights = 'adjacency'"),
        ("local.clip=1.0", "set local.clip = inf"),
        ("local.l2=0", "set local.l2 above 0"),
        ("local.steps=1000", "too few for E = 1000"),
        ("device=cuda", "set device = 'cpu'"),
    ],
)
def test_settings_that_the_theorems_exclude_are_refused(override: str, words: str, tmp_path: Path) -> None:
    """One sentence with the way out."""
    settings = {**QUICK, "algorithm": {"name": "fedavg"}}
    with pytest.raises(BadInput, match=words):
        softmax_report(settings, overrides=[override], out=tmp_path)


def test_schedules_are_excluded(tmp_path: Path) -> None:
    """β must be fixed."""
    moving = {"name": "fedkin", "beta": {"from": 0.5, "to": 1.0, "over": 5}}
    with pytest.raises(BadInput, match="not a schedule"):
        softmax_report({**QUICK, "algorithm": moving}, out=tmp_path)


def test_quadratics_take_no_settings(tmp_path: Path) -> None:
    """They have a federation of their own."""
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["theory", "--quadratic", "--set", "rounds=2", "--out", str(out)])
    assert result.exit_code == 2
    assert "give it no file and no settings" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists(), "nothing was computed"


def test_command_line(tmp_path: Path) -> None:
    """A file, an override, a folder: tables on the terminal, paths at the end."""
    file = tmp_path / "mine.toml"
    file.write_text("rounds = 9\npartition.clients = 3\nlocal = {steps = 2, l2 = 0.2}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["theory", str(file), "--set", "rounds=2", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "E = 2 local steps, random batches, 2 rounds" in result.output
    assert (tmp_path / "out" / "mine" / "bounds.png").is_file()
