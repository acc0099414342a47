"""The engine's runs on quadratics, whose constants are exact, and the theory's bounds."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Round
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.paper import theory
from fedkin.paper.bounds import (
    at_convex_step,
    at_nonconvex_step,
    convex_bound,
    kappa,
    nonconvex_bound,
    round_terms,
    tightened_bound,
)
from fedkin.paper.problem import Problem
from fedkin.paper.quadratic import quadratic_problem, two_pairs
from fedkin.paper.trajectories import Trajectory, trajectory_of
from fedkin.types import Floats

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


def run_two_pairs(graph: str, algorithm: Algorithm, rounds: int = 50) -> Trajectory:
    """A run on the federation of `fedkin theory --quadratic`: E = 5, γ = 1/10."""
    problem = two_pairs(graph)
    return trajectory_of(problem, at_convex_step(problem, algorithm, 5), 5, rounds, whole=True)


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
    run = trajectory_of(problem, at_convex_step(problem, FedKin(beta=0.5), 2), 2, 2, whole=True, slopes=True)
    assert run.gamma == pytest.approx(1 / 12)
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
    fedavg = run_two_pairs(graph, FedAvg()).contraction()
    assert fedavg == pytest.approx(0.770740, abs=5e-4)
    fedkin = run_two_pairs(graph, FedKin(beta=0.5)).contraction()
    assert fedkin == pytest.approx(by_hand, abs=5e-4)
    assert (fedkin > fedavg) == (graph == "kin")


def test_measured_ordering_where_clients_are_alike() -> None:
    """With one curvature h = μ = L for all, E = 5: FedAvg leaves (1 − 1/10)⁵ = 0.59049 of the error a round.

    FedKin, β = ½: 1 − 2 + 2·0.95⁵ = 0.547562. FedProx, α = L: γ = 1/20, a step leaves 1 − 2/20 and gives back 1/20 of
    w̄_0: ½ + ½·0.9⁵ = 0.795245. So ours ≤ FedAvg ≤ FedProx is what is measured, and it is a longer step that does it.
    """
    problem = quadratic_problem([[-1.0], [1.0]], np.ones((2, 1, 1)), SimilarityGraph.uniform(2), [8.0])
    for algorithm, factor in ((FedKin(beta=0.5), 0.547562), (FedAvg(), 0.59049), (FedProx(alpha=1.0), 0.795245)):
        run = trajectory_of(problem, at_convex_step(problem, algorithm, 5), 5, 8, whole=True)
        assert np.sqrt(run.distance[1:] / run.distance[:-1]) == pytest.approx(np.full(8, factor), rel=1e-3)
        assert kappa(run) >= factor**2


# -- quadratics: the bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_every_bound_holds_on_random_quadratics(seed: int) -> None:
    """Theorems, round lemmas, deviation lemmas and Lemma 1, also with the sharper factor."""
    problem, E, alpha, beta = quadratics(seed)
    for algorithm in (FedAvg(), FedProx(alpha=alpha * problem.L), FedKin(beta=beta)):
        run = trajectory_of(problem, at_convex_step(problem, algorithm, E), E, 6, whole=True, slopes=True)
        gamma, kin = run.gamma, isinstance(algorithm, FedKin)
        sharper = theory.sharper_perturbation(run.beta)
        slack = 1 + ROUNDING
        assert (run.gap <= convex_bound(run) * slack).all()
        assert (run.gap <= tightened_bound(run) * slack).all()
        assert (run.distance[1:] <= (kappa(run) * run.distance[:-1] + round_terms(run, sharper)) * slack).all()
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
        run = trajectory_of(problem, at_nonconvex_step(problem, algorithm, E, 20), E, 20, whole=True, slopes=True)
        assert run.slope.mean() <= nonconvex_bound(run) * (1 + ROUNDING)
        assert run.slope.mean() <= nonconvex_bound(run, theory.sharper_perturbation(beta)) * (1 + ROUNDING)


def test_where_the_lemmas_are_tight() -> None:
    """One step, E = 1, from the middle between two centres: gradients ±h, so w = ±γh and uᵢ = −wᵢ.

    ‖wᵢ − w̄_0‖² = γ²G² and, a round later, ‖uᵢ − uⱼ‖² = 4γ²G²: both lemmas with equality.
    """
    problem = quadratic_problem([[-1.0], [1.0]], np.full((2, 1, 1), 0.5), SimilarityGraph.uniform(2), [0.0])
    run = trajectory_of(problem, at_convex_step(problem, FedKin(beta=0.999), 1), 1, 2, whole=True)
    gamma = run.gamma
    assert run.lemmas["deviation"][0] == pytest.approx(theory.deviation(gamma, 1, run.largest[0]), rel=1e-5)
    assert run.lemmas["anchors"][1] == pytest.approx(theory.divergence(gamma, 1, run.largest[0]), rel=1e-2)


def test_the_floor_of_the_theorem_and_the_one_measured() -> None:
    """The theorem's floor grows as β falls under every graph. What is left in the end does so only among kin."""
    betas = (0.9, 0.7, 0.5, 0.3, 0.1)
    left = {graph: [run_two_pairs(graph, FedKin(beta=b)).gap[-1] for b in betas] for graph in ("kin", "global")}
    fedavg = run_two_pairs("kin", FedAvg()).gap[-1]
    assert all(b > a for a, b in pairwise([fedavg, *left["kin"]]))
    assert all(b < a for a, b in pairwise([fedavg, *left["global"]]))


def test_the_smaller_floor_of_fedprox_is_its_smaller_step() -> None:
    """α = ½, γ = 1/15: FedProx ends where FedAvg does at the same γ, at less than half of FedAvg's gap at γ = 1/10.

    A round leaves ½(1 − 1/150)⁵ + ½(14/15)⁵ = 0.837677 with FedAvg. With FedProx a client keeps (α + h·a⁵)/(α + h),
    a = 1 − γ(α + h): (0.5 + 0.1·0.96⁵)/0.6 = 0.969229 and (0.5 + 0.9⁵)/1.5 = 0.726993, 0.848111 in the mean.
    """
    problem = two_pairs("kin")
    slow = trajectory_of(problem, FedAvg(step_size=1 / 15), 5, 90, whole=True)
    prox = trajectory_of(problem, at_convex_step(problem, FedProx(alpha=0.5), 5), 5, 90, whole=True)
    assert prox.gamma == pytest.approx(1 / 15)
    assert slow.contraction() == pytest.approx(0.837677, abs=5e-4)
    assert prox.contraction() == pytest.approx(0.848111, abs=5e-4)
    assert prox.gap[-1] == pytest.approx(slow.gap[-1], rel=0.02)
    assert prox.gap[-1] < 0.5 * run_two_pairs("kin", FedAvg()).gap[-1]


def test_the_floor_is_never_below_the_start() -> None:
    """On any federation: 2E²G²/μ ≥ 4E²Δ, so the bound of FedAvg and FedKin never falls below the first gap."""
    for seed in range(10):
        problem, E, _, beta = quadratics(seed)
        for algorithm in (FedAvg(), FedKin(beta=beta)):
            run = trajectory_of(problem, at_convex_step(problem, algorithm, E), E, 2, whole=True)
            A = theory.perturbation(beta) if isinstance(algorithm, FedKin) else 1.0
            assert convex_bound(run).min() >= theory.least_floor(run.constants, E, A) >= 4 * run.gap[0] * (1 - ROUNDING)


def test_lemma_1_needs_all_clients_and_the_degrees() -> None:
    """Σ pᵢ uᵢ = w̄ over all clients, however few were sampled, if absent ones count as w̄; not if as their last model.

    Over the sampled clients alone, over which the server averages, it fails in either case; and with any weights but
    the degrees it fails with all clients.
    """
    rng = np.random.default_rng(3)
    strength = rng.uniform(0.1, 3, (5, 5))
    graph = SimilarityGraph((strength + strength.T) * (1 - np.eye(5)))

    def off(absent: str, weights: Floats, whole: bool = False) -> tuple[float, float]:
        """The distance of Σ pᵢ uᵢ from w̄ over all clients, and over the sampled ones of the next round."""
        algorithm = FedKin(beta=0.5, absent=absent)
        everyone = Round(0, np.arange(5), weights, graph, 5)
        server = algorithm.start(torch.zeros(1, 3, dtype=torch.float64), everyone)
        for who in (np.arange(5), np.arange(5 if whole else 3)):
            round = everyone.of(who, weights[who])
            server = algorithm.combine(server, {"model": torch.as_tensor(rng.normal(size=(len(who), 3)))}, round)
        u = algorithm.send(server, everyone)["anchor"]
        some = everyone.of(np.arange(1, 4), weights[1:4])
        return tuple(float((r.average(u[r.who]) - server["model"]).norm()) for r in (everyone, some))  # type: ignore[return-value]

    assert off("global", graph.degrees, whole=True)[0] < 1e-12
    assert off("global", graph.degrees)[0] < 1e-12
    assert off("last", graph.degrees)[0] > 0.01
    assert off("global", graph.degrees)[1] > 0.01
    assert off("global", np.full(5, 0.2), whole=True)[0] > 0.01


def test_quadratics_that_do_not_fit() -> None:
    """A sentence each."""
    with pytest.raises(BadInput, match="do not fit"):
        quadratic_problem([[1.0], [2.0]], np.ones((3, 1, 1)), SimilarityGraph.uniform(2), [0.0])
    with pytest.raises(BadInput, match="no minimum"):
        quadratic_problem([[1.0], [2.0]], -np.ones((2, 1, 1)), SimilarityGraph.uniform(2), [0.0])
