"""The theorems' bounds, evaluated for a trajectory: with its step size, its constants and its number of rounds."""

from dataclasses import replace

import numpy as np

from fedkin.algorithms import Algorithm, FedKin
from fedkin.paper import theory
from fedkin.paper.problem import Problem
from fedkin.paper.trajectories import Trajectory, fixed_value
from fedkin.types import Floats


def convex_bound(run: Trajectory) -> Floats:
    """The strongly convex theorem's bound on F(w̄_t) − F*, for t = 0 … T."""
    c, t = run.constants, np.arange(len(run.gap))
    if isinstance(run.algorithm, FedKin):
        return np.asarray(theory.fedkin_convex(c, run.steps, t, run.beta))
    return np.asarray(theory.fedprox_convex(c, run.steps, t, run.alpha))


def theorem_factor(run: Trajectory) -> float:
    """The contraction factor of the strongly convex theorem, per round."""
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_contraction(run.problem.L, run.problem.mu, run.beta)
    return theory.fedprox_contraction(run.problem.L, run.problem.mu, run.alpha)


def theorem_floor(run: Trajectory, A: float | None = None) -> float:
    """The limit of the theorem's bound for t → ∞."""
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_floor(run.constants, run.steps, run.beta, A)
    return theory.fedprox_floor(run.constants, run.steps, run.alpha)


def kappa(run: Trajectory) -> float:
    """κ of the round lemma, at the run's step size."""
    gamma, mu = run.gamma, run.problem.mu
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_kappa(gamma, run.steps, mu, run.beta)
    return theory.fedprox_kappa(gamma, run.steps, mu, run.alpha)


def round_terms(run: Trajectory, A: float | None = None) -> Floats:
    """The round lemma's additive term in each round, (T,), with the G² and σ² of that round and the one before.

    The lemma's proof uses no gradient of any other round.
    """
    gamma, E = run.gamma, run.steps
    terms = []
    for t in range(len(run.largest)):
        now = slice(max(t - 1, 0), t + 1)
        c = run.constants_with(float(run.largest[now].max()), float(run.variance[t]))
        if isinstance(run.algorithm, FedKin):
            terms.append(theory.fedkin_progress(c, gamma, E, run.beta, A))
        else:
            terms.append(theory.fedprox_progress(c, gamma, E))
    return np.array(terms)


def tightened_bound(run: Trajectory) -> Floats:
    """The same proof without its avoidable losses: (L/2)·Dₜ with D₀ measured and Dₜ₊₁ = κDₜ + Aₜ, for t = 0 … T.

    κ is not rounded, Aₜ takes the gradients of its own round, and FedKin's has the sharper factor (3−β)²/4.
    """
    D, k = [float(run.distance[0])], kappa(run)
    for A in round_terms(run, theory.sharper_perturbation(run.beta)):
        D.append(k * D[-1] + A)
    return run.problem.L / 2 * np.array(D)


def nonconvex_bound(run: Trajectory, A: float | None = None) -> float:
    """The nonconvex theorem's bound on the mean of ‖∇F‖² over all T·E means of local models."""
    T = len(run.largest)
    if isinstance(run.algorithm, FedKin):
        return float(theory.fedkin_nonconvex(run.constants, run.steps, T, run.beta, A))
    return float(theory.fedprox_nonconvex(run.constants, run.steps, T, run.alpha))


def at_convex_step(problem: Problem, algorithm: Algorithm, E: int) -> Algorithm:
    """The algorithm with the step size of the strongly convex theorems."""
    return replace(algorithm, step_size=theory.convex_step_size(problem.L, E, fixed_value(algorithm, "alpha")))


def at_nonconvex_step(problem: Problem, algorithm: Algorithm, E: int, T: int) -> Algorithm:
    """The algorithm with the step size of the nonconvex theorems."""
    return replace(algorithm, step_size=theory.nonconvex_step_size(problem.L, E, T, fixed_value(algorithm, "alpha")))
