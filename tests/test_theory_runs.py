"""The engine's runs beside the theory: quadratics with exact constants, softmax regression with estimated ones."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx
from fedkin.cli import app
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Softmax
from fedkin.paper import theory
from fedkin.paper.bounds import (
    Followed,
    Problem,
    SoftmaxLosses,
    at_convex_step,
    at_nonconvex_step,
    follow,
    kappa,
    nonconvex_theorem,
    progress,
    softmax_problem,
    theorem,
    tightened,
)
from fedkin.paper.quadratic import quadratic_problem
from fedkin.paper.theory_report import (
    BEGIN,
    CENTRES,
    CURVATURES,
    PAIRS,
    measured_factor,
    pairs_graph,
    quadratic,
    softmax,
)

ROUNDING = 1e-5  # of float32, in which the engine works, relative to what a bound compares


def quadratics(seed: int, indefinite: bool = False) -> tuple[Problem, int, float, float]:
    """A small federation at random, with E, α and β: few clients, ill-conditioned or not, alike or not."""
    rng = np.random.default_rng([seed, indefinite])
    clients, d = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    H = np.empty((clients, d, d))
    for i in range(clients):
        turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
        H[i] = turn @ np.diag(np.exp(-rng.uniform(0, rng.choice([0.5, 2, 5]), size=d))) @ turn.T
    strength = np.exp(rng.normal(size=(clients, clients)) * rng.choice([0.1, 1.0]))
    graph = SimilarityGraph((strength + strength.T) * (1 - np.eye(clients)))
    if indefinite:  # client 0 is concave, by half of what the others' curvature can bear
        others = np.einsum("c,cij->ij", graph.degrees[1:], H[1:])
        H[0] = -0.5 * np.linalg.eigvalsh(others)[0] / graph.degrees[0] * np.eye(d)
    centres = rng.normal(size=(clients, d)) * rng.choice([0.1, 1, 10])
    problem = quadratic_problem(centres, H, graph, rng.normal(size=d) * rng.choice([1, 10]))
    return problem, int(rng.integers(1, 7)), float(rng.choice([0.1, 1, 10])), float(rng.uniform(0.05, 0.95))


def two_pairs(graph: str, algorithm: Algorithm, rounds: int = 50) -> Followed:
    """The federation of `fedkin theory --quadratic`: E = 5, γ = 1/10."""
    problem = quadratic_problem(CENTRES, CURVATURES, pairs_graph(PAIRS[graph]), BEGIN)
    return follow(problem, at_convex_step(problem, algorithm, 5), 5, rounds, whole=True)


# -- quadratics: by hand -----------------------------------------------------------------------------------------------


def test_exact_constants() -> None:
    """f₁ = ½(w − 1)², f₂ = ½·3·(w + 1)², p = ½: F = w² + w + 1, w* = −½, F* = ¾ = Γ; L = 3, μ = 1; F(2) = 7."""
    problem = quadratic_problem([[1.0], [-1.0]], [[[1.0]], [[3.0]]], SimilarityGraph.uniform(2), [2.0])
    assert (problem.L, problem.mu) == (3, 1)
    assert problem.optimum == pytest.approx([-0.5])
    assert problem.minimum == problem.Gamma == pytest.approx(0.75)
    assert problem.value(np.array([2.0])) == pytest.approx(7)
    assert problem.gradient(np.array([2.0])) == pytest.approx([5])


def test_a_round_by_hand() -> None:
    """The federation above, E = 2, γ = 1/12, β = ½, from w̄ = u = 2.

    Client 1: w̃ = 2, g = 1, w = 23/12; w̃ = (23/12 + 2)/2 = 47/24, g = 23/24, w = 23/12 − 23/288 = 529/288.
    Client 2: w̃ = 2, g = 9, w = 5/4; w̃ = 13/8, g = 63/8, w = 5/4 − 63/96 = 19/32.
    w̄ = (529 + 171)/576 = 175/144, and the gap is (w̄ + ½)² = (247/144)². The largest ‖g‖² is 81.
    ‖wᵢ − w̄_0‖ is at most 2 − 19/32 = 45/32, and ‖w̄ − wᵢ‖ is (529 − 171)/576 = 179/288.
    """
    problem = quadratic_problem([[1.0], [-1.0]], [[[1.0]], [[3.0]]], SimilarityGraph.uniform(2), [2.0])
    run = follow(problem, at_convex_step(problem, FedKin(beta=0.5), 2), 2, 2, whole=True, slopes=True)
    assert run.algorithm.step_size == pytest.approx(1 / 12)
    assert run.models[1] == pytest.approx([175 / 144], rel=1e-6)
    assert run.gap[:2] == pytest.approx([6.25, (247 / 144) ** 2], rel=1e-6)
    assert run.largest[0] == pytest.approx(81)
    assert run.lemmas["deviation"][0] == pytest.approx((45 / 32) ** 2, rel=1e-5)
    assert run.lemmas["divergence"][0] == pytest.approx((179 / 288) ** 2, rel=1e-5)
    # After the round u₁ = w₂ and u₂ = w₁; and ∇F = 2w + 1 at w̄_0 = 2 and w̄_1 = (23/12 + 5/4)/2 = 19/12.
    assert run.lemmas["anchors"] == pytest.approx([0, (358 / 288) ** 2], rel=1e-5)
    assert run.slope[0] == pytest.approx((25 + (25 / 6) ** 2) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("graph", "by_hand"),
    [("kin", 0.771652), ("strangers", 0.714578), ("global", 0.749030)],
)
def test_measured_contraction_depends_on_who_is_kin(graph: str, by_hand: float) -> None:
    """β = ½ against FedAvg: kin with kin contracts *more slowly* than FedAvg, strangers much faster.

    γ = 1/10, E = 5. FedAvg: ½·0.99⁵ + ½·0.9⁵ = 0.770740. With q = (1 − γh/2)⁵, so q₁ = 0.995⁵ = 0.975249 and
    q₂ = 0.95⁵ = 0.773781, a client ends a round at q·w̄ − (1 − q)·u, as (1 − β)/β = 1, with all centres in 0.
    Clients of a pair stay equal to each other. With u = w̄: ½(2q₁ − 1 + 2q₂ − 1) = 0.749030. With uᵢ = wᵢ the errors go
    through [[3q₁/2 − 1, q₁/2], [q₂/2, 3q₂/2 − 1]] = [[.462873, .487624], [.386890, .160671]], whose largest
    eigenvalue is .311772 + √(.097202 + .114287) = 0.771652; with u₁ = w₂, u₂ = w₁ through
    [[.487624, .462873], [.160671, .386890]], where it is .437257 + √(.191194 − .114287) = 0.714578.
    """
    fedavg = measured_factor(two_pairs(graph, FedAvg()))
    assert fedavg == pytest.approx(0.770740, abs=5e-4)
    fedkin = measured_factor(two_pairs(graph, FedKin(beta=0.5)))
    assert fedkin == pytest.approx(by_hand, abs=5e-4)
    assert (fedkin > fedavg) == (graph == "kin")


def test_measured_ordering_where_clients_are_alike() -> None:
    """With one curvature h = μ = L for all, E = 5: FedAvg leaves (1 − 1/10)⁵ = 0.59049 of the error a round.

    FedKin, β = ½: 1 − 2 + 2·0.95⁵ = 0.547562. FedProx, α = L: γ = 1/20, a step leaves 1 − 2/20 and gives back 1/20 of
    w̄_0: ½ + ½·0.9⁵ = 0.795245. So ours ≤ FedAvg ≤ FedProx is what is measured, and it is a longer step that does it.
    """
    problem = quadratic_problem([[-1.0], [1.0]], np.ones((2, 1, 1)), SimilarityGraph.uniform(2), [8.0])
    for algorithm, factor in ((FedKin(beta=0.5), 0.547562), (FedAvg(), 0.59049), (FedProx(alpha=1.0), 0.795245)):
        run = follow(problem, at_convex_step(problem, algorithm, 5), 5, 8, whole=True)
        assert np.sqrt(run.distance[1:] / run.distance[:-1]) == pytest.approx(np.full(8, factor), rel=1e-3)
        assert kappa(run) >= factor**2


# -- quadratics: the bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_every_bound_holds_on_random_quadratics(seed: int) -> None:
    """Theorems, round lemmas, deviation lemmas and Lemma 1, also with the sharper factor."""
    problem, E, alpha, beta = quadratics(seed)
    for algorithm in (FedAvg(), FedProx(alpha=alpha * problem.L), FedKin(beta=beta)):
        run = follow(problem, at_convex_step(problem, algorithm, E), E, 6, whole=True, slopes=True)
        gamma, kin = run.algorithm.step_size, isinstance(algorithm, FedKin)
        sharper = theory.sharper_perturbation(run.beta)
        slack = 1 + ROUNDING
        assert (run.gap <= theorem(run) * slack).all()
        assert (run.gap <= tightened(run) * slack).all()
        assert (run.distance[1:] <= (kappa(run) * run.distance[:-1] + progress(run, sharper)) * slack).all()
        G2 = np.maximum(run.largest, np.concatenate([run.largest[:1], run.largest[:-1]]))
        moved = gamma**2 * E**2 * G2
        assert (run.lemmas["deviation"] <= moved * slack).all()
        assert (run.lemmas["divergence"] <= 4 * moved * slack).all()
        assert (run.lemmas["perturbed"] <= 4 * moved * sharper * slack).all()
        scale = float(np.abs(run.models).max())
        assert (run.lemmas["average"] <= (ROUNDING * scale) ** 2 + ROUNDING**2 * moved).all()
        if kin:
            assert (run.lemmas["anchors"] <= 4 * moved * slack + (ROUNDING * scale / (1 - run.beta)) ** 2).all()
        fall = run.gap[:-1] - run.gap[1:]
        for t, g2 in enumerate(G2):
            c = run.constants_with(g2, 0.0)
            if kin:
                bound = 2 / (gamma * E) * fall[t] + theory.fedkin_nonconvex_progress(c, gamma, E, run.beta, sharper)
            else:
                bound = 4 / (gamma * E) * fall[t] + theory.fedprox_nonconvex_progress(c, gamma, E, run.alpha)
            assert run.slope[t] <= bound * slack


@pytest.mark.parametrize("seed", range(8))
def test_nonconvex_bounds_hold_where_a_client_is_concave(seed: int) -> None:
    """F has a minimum, f₀ has none: only the nonconvex theorems speak, and they hold."""
    problem, E, alpha, beta = quadratics(seed, indefinite=True)
    assert problem.mu == 0
    for algorithm in (FedAvg(), FedProx(alpha=alpha * problem.L), FedKin(beta=beta)):
        run = follow(problem, at_nonconvex_step(problem, algorithm, E, 20), E, 20, whole=True, slopes=True)
        assert run.slope.mean() <= nonconvex_theorem(run) * (1 + ROUNDING)
        assert run.slope.mean() <= nonconvex_theorem(run, theory.sharper_perturbation(beta)) * (1 + ROUNDING)


def test_where_the_lemmas_are_tight() -> None:
    """One step, E = 1, from the middle between two centres: gradients ±h, so w = ±γh and uᵢ = −wᵢ.

    ‖wᵢ − w̄_0‖² = γ²G² and, a round later, ‖uᵢ − uⱼ‖² = 4γ²G²: both lemmas with equality.
    """
    problem = quadratic_problem([[-1.0], [1.0]], np.full((2, 1, 1), 0.5), SimilarityGraph.uniform(2), [0.0])
    run = follow(problem, at_convex_step(problem, FedKin(beta=0.999), 1), 1, 2, whole=True)
    gamma = run.algorithm.step_size
    assert run.lemmas["deviation"][0] == pytest.approx(theory.deviation(gamma, 1, run.largest[0]), rel=1e-5)
    assert run.lemmas["anchors"][1] == pytest.approx(theory.divergence(gamma, 1, run.largest[0]), rel=1e-2)


def test_the_floor_of_the_theorem_and_the_one_measured() -> None:
    """The theorem's floor grows as β falls under every graph. What is left in the end does so only among kin."""
    betas = (0.9, 0.7, 0.5, 0.3, 0.1)
    left = {graph: [two_pairs(graph, FedKin(beta=b)).gap[-1] for b in betas] for graph in ("kin", "global")}
    fedavg = two_pairs("kin", FedAvg()).gap[-1]
    assert all(b > a for a, b in pairwise([fedavg, *left["kin"]]))
    assert all(b < a for a, b in pairwise([fedavg, *left["global"]]))


def test_the_smaller_floor_of_fedprox_is_its_smaller_step() -> None:
    """α = ½, γ = 1/15: FedProx ends where FedAvg does at the same γ, at less than half of FedAvg's gap at γ = 1/10.

    A round leaves ½(1 − 1/150)⁵ + ½(14/15)⁵ = 0.837677 with FedAvg. With FedProx a client keeps (α + h·a⁵)/(α + h),
    a = 1 − γ(α + h): (0.5 + 0.1·0.96⁵)/0.6 = 0.969229 and (0.5 + 0.9⁵)/1.5 = 0.726993, 0.848111 in the mean.
    """
    problem = quadratic_problem(CENTRES, CURVATURES, pairs_graph(PAIRS["kin"]), BEGIN)
    slow = follow(problem, FedAvg(step_size=1 / 15), 5, 90, whole=True)
    prox = follow(problem, at_convex_step(problem, FedProx(alpha=0.5), 5), 5, 90, whole=True)
    assert prox.algorithm.step_size == pytest.approx(1 / 15)
    assert measured_factor(slow) == pytest.approx(0.837677, abs=5e-4)
    assert measured_factor(prox) == pytest.approx(0.848111, abs=5e-4)
    assert prox.gap[-1] == pytest.approx(slow.gap[-1], rel=0.02)
    assert prox.gap[-1] < 0.5 * two_pairs("kin", FedAvg()).gap[-1]


def test_the_floor_is_never_below_the_start() -> None:
    """On any federation: 2E²G²/μ ≥ 4E²Δ, so the bound of FedAvg and FedKin never falls below the first gap."""
    for seed in range(10):
        problem, E, _, beta = quadratics(seed)
        for algorithm in (FedAvg(), FedKin(beta=beta)):
            run = follow(problem, at_convex_step(problem, algorithm, E), E, 2, whole=True)
            A = theory.perturbation(beta) if algorithm.beta < 1 else 1.0
            assert theorem(run).min() >= theory.least_floor(run.constants, E, A) >= 4 * run.gap[0] * (1 - ROUNDING)


def test_lemma_1_needs_everyone_and_the_degrees() -> None:
    """Σ pᵢ uᵢ = w̄ over all clients, however few were present, if absent ones count as w̄; not if as their last model.

    Over those present alone, which is what a round of sampled clients sums over, it fails in either case; and with
    any weights but the degrees it fails with everyone there.
    """
    rng = np.random.default_rng(3)
    strength = rng.uniform(0.1, 3, (5, 5))
    graph = SimilarityGraph((strength + strength.T) * (1 - np.eye(5)))
    degrees, all_of_them = torch.as_tensor(graph.degrees), np.arange(5)

    def off(absent: str, weights: torch.Tensor, whole: bool = False) -> tuple[float, float]:
        """By how much Σ pᵢ uᵢ misses w̄ over all clients, and over those of the next round."""
        algorithm = FedKin(beta=0.5, absent=absent)
        server = algorithm.start(torch.zeros(3, dtype=torch.float64), 5)
        for who in ([0, 1, 2, 3, 4], [0, 1, 2]):
            chosen = np.array([0, 1, 2, 3, 4] if whole else who)
            p = weights[chosen] / weights[chosen].sum()
            replies = {"model": torch.as_tensor(rng.normal(size=(len(chosen), 3)))}
            server = algorithm.combine(server, replies, chosen, p)
        u = algorithm.send(server, graph, all_of_them)["anchor"]
        some = weights[1:4] / weights[1:4].sum()
        return float((weights @ u - server["model"]).norm()), float((some @ u[1:4] - server["model"]).norm())

    assert off("global", degrees, whole=True)[0] < 1e-12
    assert off("global", degrees)[0] < 1e-12
    assert off("last", degrees)[0] > 0.01
    assert off("global", degrees)[1] > 0.01
    assert off("global", torch.full((5,), 0.2, dtype=torch.float64), whole=True)[0] > 0.01


def test_quadratics_that_do_not_fit() -> None:
    """A sentence each."""
    with pytest.raises(BadInput, match="do not fit"):
        quadratic_problem([[1.0], [2.0]], np.ones((3, 1, 1)), SimilarityGraph.uniform(2), [0.0])
    with pytest.raises(BadInput, match="no minimum"):
        quadratic_problem([[1.0], [2.0]], -np.ones((2, 1, 1)), SimilarityGraph.uniform(2), [0.0])


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
        run = follow(digits, at_convex_step(digits, algorithm, 4), 4, 15, whole=whole)
        assert run.gap[-1] < 0.9 * run.gap[0]
        assert (run.gap <= theorem(run)).all()
        assert (run.gap <= tightened(run)).all()
        assert (run.variance > 0).all() != whole
        flat = follow(digits, at_nonconvex_step(digits, algorithm, 4, 10), 4, 10, whole=whole, slopes=True)
        assert 0 < flat.slope.mean() <= nonconvex_theorem(flat, theory.sharper_perturbation(flat.beta))


def test_following_changes_nothing(digits: Problem) -> None:
    """The witness leaves the run as it is, to the last bit."""
    algorithm = FedKin(beta=0.5, step_size=0.01)
    local = fedkin.Local(steps=4, order="shuffled", l2=digits.l2)
    plain = fedkin.train(digits.federation, algorithm, graph=digits.graph, local=local, rounds=3)
    followed = follow(digits, algorithm, 4, 3).models[-1]
    np.testing.assert_allclose(followed, plain.model.double().numpy(), rtol=1e-5, atol=1e-7)


# -- the command -------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {
    "name": "quick",
    "rounds": 3,
    "partition": {"clients": 4},
    "local": {"steps": 3, "l2": 0.1},
    "algorithm": [{"name": "fedavg"}, {"name": "fedkin", "beta": 0.5}],
}


def test_command_writes_table_and_figure(tmp_path: Path) -> None:
    """All that is promised is there, and says that the bounds hold."""
    (found,) = softmax(QUICK, out=tmp_path)
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
    (found,) = softmax(overrides=["rounds=1", "partition.clients=4"], out=tmp_path)
    assert len(found.tables[0].rows) == 5


def test_quadratic_command(tmp_path: Path) -> None:
    """Twenty-two runs, all below their bounds."""
    found = quadratic(tmp_path, rounds=26)
    assert len(found.tables[0].rows) == 22
    assert {row[-1] for row in found.tables[0].rows} == {"yes"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.kind=mlp", "set model.kind = 'softmax'"),
        ("algorithm.name=fedsgd", "choose fedavg, fedprox or fedkin"),
        ("take_part=2", "set take_part = 'all'"),
        ("graph.weights=samples", "set graph.weights = 'adjacency'"),
        ("local.clip=1.0", "set local.clip = inf"),
        ("local.l2=0", "set local.l2 above 0"),
        ("local.steps=1000", "too few for E = 1000"),
        ("device=cuda", "set device = 'cpu'"),
    ],
)
def test_what_the_theorems_exclude_is_said(override: str, words: str, tmp_path: Path) -> None:
    """One sentence with the way out."""
    settings = {**QUICK, "algorithm": {"name": "fedavg"}}
    with pytest.raises(BadInput, match=words):
        softmax(settings, overrides=[override], out=tmp_path)


def test_schedules_are_excluded(tmp_path: Path) -> None:
    """β must be fixed."""
    moving = {"name": "fedkin", "beta": {"from": 0.5, "to": 1.0, "over": 5}}
    with pytest.raises(BadInput, match="not a schedule"):
        softmax({**QUICK, "algorithm": moving}, out=tmp_path)


def test_quadratics_take_no_settings() -> None:
    """They have a federation of their own."""
    result = CliRunner().invoke(app, ["theory", "--quadratic", "--set", "rounds=2"])
    assert isinstance(result.exception, BadInput)
    assert "give it no file and no settings" in str(result.exception)


def test_command_line(tmp_path: Path) -> None:
    """A file, an override, a folder: tables on the terminal, paths at the end."""
    file = tmp_path / "mine.toml"
    file.write_text("rounds = 9\npartition.clients = 3\nlocal = {steps = 2, l2 = 0.2}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["theory", str(file), "--set", "rounds=2", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "E = 2 local steps, random batches, 2 rounds" in result.output
    assert (tmp_path / "out" / "mine" / "bounds.png").is_file()
