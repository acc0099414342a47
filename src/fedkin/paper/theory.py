"""The paper's theory as functions: bounds of the theorems and lemmas, contraction factors, floors, rounds to accuracy.

Letters are the paper's. fᵢ is the loss of client i, F = Σ pᵢ fᵢ with minimum F* at w*, and a round is E local steps of
size γ. FedAvg is FedProx with α = 0; the paper's own algorithm is FedKin with β < 1. All bounds assume that every
client takes part in every round, and that the server averages by the degrees pᵢ of the graph.

Functions take and return plain numbers; the number of rounds may be an array. Where the paper's proof can be tightened,
the tighter constant is given in addition to the paper's (`sharper_perturbation`, `unrolled`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedkin.errors import BadInput

Rounds = Any  # an int, or an array of them: then the bound is an array too


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of the assumptions.

    L       smoothness: ‖∇fᵢ(v) − ∇fᵢ(w)‖ ≤ L ‖v − w‖ for every client
    mu      μ, strong convexity of every fᵢ (the nonconvex theorems do not use it)
    sigma2  σ² ≥ E‖g − ∇fᵢ‖², the variance of stochastic gradients
    G2      G² ≥ E‖g‖², at every point where a gradient is taken
    Gamma   Γ = F* − Σ pᵢ fᵢ*, the heterogeneity
    Delta   Δ = F(w̄₀) − F*
    S       Σ pᵢ²
    """

    L: float
    mu: float
    sigma2: float
    G2: float
    Gamma: float
    Delta: float
    S: float

    def __post_init__(self) -> None:
        for name in ("sigma2", "G2", "Gamma", "Delta", "S"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} = {getattr(self, name):g} is out of range: it must be at least 0")
        if not 0 <= self.mu <= self.L or not self.L > 0:
            raise BadInput(f"mu = {self.mu:g} and L = {self.L:g} are out of range: 0 ≤ mu ≤ L and L > 0 must hold")


# -- step sizes --------------------------------------------------------------------------------------------------------


def convex_step_size(L: float, E: int, alpha: float = 0.0) -> float:
    """γ = 1 / (2E(L + α)), the step size of the strongly convex theorems (FedKin: α = 0).

    >>> convex_step_size(L=1.0, E=5)
    0.1
    """
    return 1 / (2 * E * (L + alpha))


def nonconvex_step_size(L: float, E: int, T: int, alpha: float = 0.0) -> float:
    """γ = 1 / (2(L + α)√(TE)), the step size of the nonconvex theorems.

    >>> nonconvex_step_size(L=1.0, E=4, T=25)
    0.05
    """
    return 1 / (2 * (L + alpha) * math.sqrt(T * E))


# -- how far clients get from each other -------------------------------------------------------------------------------


def perturbation(beta: float) -> float:
    """A(β) = 4 + (1−β)² + 8(1−1/β)², the factor of E²G² in FedKin's bounds: it grows as 1/β².

    >>> perturbation(0.5)
    12.25
    """
    return 4 + (1 - beta) ** 2 + 8 * (1 - 1 / beta) ** 2


def sharper_perturbation(beta: float) -> float:
    """(3−β)²/4, which may stand wherever the paper has A(β): it stays below 9/4, and is FedAvg's own 1 at β = 1.

    Everything in the proof goes through E‖w̄_k − w̃ᵢ‖² ≤ 4γ²E²G²·A(β), for which the paper divides Lemma 1 by β.
    Without doing so, w̄_k − w̃ᵢ = β(w̄_k − wᵢ) + (1−β)(w̄_k − w̄_0) + (1−β)(w̄_0 − uᵢ), where in root mean square
    ‖w̄_k − wᵢ‖ ≤ 2γEG and ‖w̄_k − w̄_0‖ ≤ γEG, as all w start the round in w̄_0, and ‖w̄_0 − uᵢ‖ ≤ 2γEG, as both are
    averages of models within γEG of the last w̄_0. That is at most γEG(2β + 3(1−β)) = γEG(3−β).

    >>> sharper_perturbation(1.0), sharper_perturbation(0.5)
    (1.0, 1.5625)
    """
    return (3 - beta) ** 2 / 4


def average_perturbed(beta: float, mean: Any, start: Any) -> Any:
    """Lemma 1: Σ pᵢ w̃ᵢ = β w̄_k + (1−β) w̄_0, with the mean w̄_k = Σ pᵢ wᵢ of the local models at step k."""
    return beta * mean + (1 - beta) * start


def deviation(gamma: float, E: int, G2: float) -> float:
    """E‖wᵢ − w̄_0‖² ≤ γ²E²G² within a round (γ ≤ 1/α).

    >>> deviation(0.5, 2, 3.0)
    3.0
    """
    return gamma**2 * E**2 * G2


def divergence(gamma: float, E: int, G2: float) -> float:
    """E‖w̄_k − wᵢ‖² ≤ 4γ²E²G² within a round (γ ≤ 1/α), and so is E‖uᵢ − uⱼ‖² after the first round."""
    return 4 * deviation(gamma, E, G2)


def perturbed_deviation(gamma: float, E: int, G2: float, A: float) -> float:
    """E‖w̄_k − w̃ᵢ‖² ≤ 4γ²E²G²·A, with A = `perturbation(β)`, the paper's, or `sharper_perturbation(β)`."""
    return 4 * deviation(gamma, E, G2) * A


# -- one round ---------------------------------------------------------------------------------------------------------


def fedprox_kappa(gamma: float, E: int, mu: float, alpha: float = 0.0) -> float:
    """κ = (α + μ(1 − γ(α+μ))^E) / (α + μ): what a round of FedProx leaves of ‖w̄ − w*‖².

    >>> fedprox_kappa(0.5, 2, 1.0), fedprox_kappa(0.25, 2, 1.0, alpha=1.0)
    (0.25, 0.625)
    """
    return (alpha + mu * (1 - gamma * (alpha + mu)) ** E) / (alpha + mu)


def fedkin_kappa(gamma: float, E: int, mu: float, beta: float) -> float:
    """κ = 1 − 1/β + (1 − βμγ)^E / β: what a round of FedKin leaves of ‖w̄ − w*‖².

    >>> fedkin_kappa(0.5, 2, 1.0, beta=0.5)
    0.125
    """
    return 1 - 1 / beta + (1 - beta * mu * gamma) ** E / beta


def fedprox_progress(c: Constants, gamma: float, E: int) -> float:
    """A in E‖w̄_{t+1} − w*‖² ≤ κ E‖w̄_t − w*‖² + A:  γ²ESσ² + 6γ²LEΓ + 8γ²E³G²  (γ ≤ 1/(2L), 1/(α+μ))."""
    return gamma**2 * E * (c.S * c.sigma2 + 6 * c.L * c.Gamma + 8 * E**2 * c.G2)


def fedkin_progress(c: Constants, gamma: float, E: int, beta: float, A: float | None = None) -> float:
    """The same for FedKin:  γ²ESσ² + 6γ²LEΓ + 8γ²E³G²·A(β) + μγ³β(1−β)E³G²  (γ ≤ 1/(2L), 1/(βμ))."""
    A = perturbation(beta) if A is None else A
    drift = 8 * E**2 * c.G2 * A + c.mu * gamma * beta * (1 - beta) * E**2 * c.G2
    return gamma**2 * E * (c.S * c.sigma2 + 6 * c.L * c.Gamma + drift)


def fedprox_nonconvex_progress(c: Constants, gamma: float, E: int, alpha: float = 0.0) -> float:
    """A in mean_k E‖∇F(w̄_k)‖² ≤ 4/(γE)·E[F(w̄_t) − F(w̄_{t+1})] + A  (γ ≤ 1/L, 1/(2α)).

    A = 2γLSσ² + 2γαE²G² + 8γ²L²E²G² + γ³α²LE²G²/2
    """
    local = 2 * gamma * alpha + 8 * gamma**2 * c.L**2 + gamma**3 * alpha**2 * c.L / 2
    return 2 * gamma * c.L * c.S * c.sigma2 + local * E**2 * c.G2


def fedkin_nonconvex_progress(c: Constants, gamma: float, E: int, beta: float, A: float | None = None) -> float:
    """A in mean_k E‖∇F(w̄_k)‖² ≤ 2/(γE)·E[F(w̄_t) − F(w̄_{t+1})] + A:  γLSσ² + 4γ²L²E²G²·A(β)  (γ ≤ 1/L)."""
    A = perturbation(beta) if A is None else A
    return gamma * c.L * c.S * c.sigma2 + 4 * gamma**2 * c.L**2 * E**2 * c.G2 * A


# -- strongly convex theorems ------------------------------------------------------------------------------------------


def fedprox_contraction(L: float, mu: float, alpha: float = 0.0) -> float:
    """1 − μ/(3(L+α)), the factor a round in the theorem on FedProx; α = 0 is FedAvg.

    >>> round(fedprox_contraction(1.0, 0.3), 12), round(fedprox_contraction(1.0, 0.3, alpha=1.0), 12)
    (0.9, 0.95)
    """
    return 1 - mu / (3 * (L + alpha))


def fedkin_contraction(L: float, mu: float, beta: float) -> float:
    """1 − μ/((β+2)L), the factor a round in the theorem on FedKin: never above FedAvg's, which is β = 1."""
    return 1 - mu / ((beta + 2) * L)


def fedprox_floor(c: Constants, E: int, alpha: float = 0.0) -> float:
    """L/(L+α) · [ Sσ²/(4μ) + 3LΓ/(2μ) + 2E²G²/μ ], the limit of the bound on FedProx for t → ∞."""
    return c.L / (c.L + alpha) * (c.S * c.sigma2 / 4 + 1.5 * c.L * c.Gamma + 2 * E**2 * c.G2) / c.mu


def fedkin_floor(c: Constants, E: int, beta: float, A: float | None = None) -> float:
    """Sσ²/(4μ) + 3LΓ/(2μ) + 2A(β)E²G²/μ + β(1−β)EG²/(8L), the limit of the bound on FedKin for t → ∞."""
    A = perturbation(beta) if A is None else A
    common = (c.S * c.sigma2 / 4 + 1.5 * c.L * c.Gamma + 2 * A * E**2 * c.G2) / c.mu
    return common + beta * (1 - beta) * E * c.G2 / (8 * c.L)


def fedprox_convex(c: Constants, E: int, t: Rounds, alpha: float = 0.0) -> Any:
    """E F(w̄_t) − F* ≤ (LΔ/μ)·[1 − μ/(3(L+α))]^t + floor, at γ = 1/(2E(L+α))."""
    return c.L * c.Delta / c.mu * fedprox_contraction(c.L, c.mu, alpha) ** t + fedprox_floor(c, E, alpha)


def fedkin_convex(c: Constants, E: int, t: Rounds, beta: float, A: float | None = None) -> Any:
    """E F(w̄_t) − F* ≤ (LΔ/μ)·[1 − μ/((β+2)L)]^t + floor, at γ = 1/(2LE)."""
    return c.L * c.Delta / c.mu * fedkin_contraction(c.L, c.mu, beta) ** t + fedkin_floor(c, E, beta, A)


def least_floor(c: Constants, E: int, A: float = 1.0, alpha: float = 0.0) -> float:
    """4A·E²Δ·L/(L+α): no federation has a floor below this, so for FedAvg and FedKin it is never below 4Δ.

    Gradients are taken in w̄₀ too, so G² ≥ Σ pᵢ‖∇fᵢ(w̄₀)‖² ≥ ‖∇F(w̄₀)‖² ≥ 2μΔ, and 2A·E²G²/μ ≥ 4A·E²Δ. The strongly
    convex theorems therefore never say that a run ends lower than it began (FedProx: unless α > (4E² − 1)L).

    >>> least_floor(Constants(L=1, mu=1, sigma2=0, G2=2, Gamma=0, Delta=1, S=1), E=1)
    4.0
    """
    return 4 * A * E**2 * c.Delta * c.L / (c.L + alpha)


def unrolled(c: Constants, kappa: float, A: float, t: Rounds) -> Any:
    """(L/2)·[ κ^t·2Δ/μ + A(1 − κ^t)/(1 − κ) ]: the round lemma unrolled as it stands.

    The theorems then round κ up, and put 1/(γμ) for 1/(1 − κ), which costs nearly a factor E in the floor.
    """
    power = kappa**t
    return c.L / 2 * (power * 2 * c.Delta / c.mu + A * (1 - power) / (1 - kappa))


# -- nonconvex theorems ------------------------------------------------------------------------------------------------


def fedprox_nonconvex(c: Constants, E: int, T: Rounds, alpha: float = 0.0) -> Any:
    """E‖∇F(ŵ_T)‖² ≤ (1/√T)·[ 8L_αΔ/√E + LSσ²/(L_α√E) + αE^{3/2}G²/L_α ] + 2L²EG²/(L_α²T) + α²L√E·G²/(16L_α³T^{3/2})

    with L_α = L + α, at γ = 1/(2L_α√(TE)); ŵ_T is drawn from all w̄_{t,k}, so this is the mean of ‖∇F‖² over them.
    """
    Q = c.L + alpha
    slow = 8 * Q * c.Delta / E**0.5 + c.L * c.S * c.sigma2 / (Q * E**0.5) + alpha * E**1.5 * c.G2 / Q
    return slow / T**0.5 + 2 * (c.L / Q) ** 2 * E * c.G2 / T + alpha**2 * c.L * E**0.5 * c.G2 / (16 * Q**3 * T**1.5)


def fedkin_nonconvex(c: Constants, E: int, T: Rounds, beta: float, A: float | None = None) -> Any:
    """E‖∇F(ŵ_T)‖² ≤ (1/√T)·[ 4LΔ/√E + Sσ²/(2√E) ] + A(β)·EG²/T, at γ = 1/(2L√(TE))."""
    slow, fast = _slow_and_fast(c, beta, A)
    return slow / (T * E) ** 0.5 + fast * E / T


def _slow_and_fast(c: Constants, beta: float, A: float | None = None) -> tuple[float, float]:
    """A = 4LΔ + Sσ²/2 and B = A(β)G² of the corollary: the bound is A/√(TE) + BE/T."""
    return 4 * c.L * c.Delta + c.S * c.sigma2 / 2, (perturbation(beta) if A is None else A) * c.G2


def optimal_steps(c: Constants, T: int, beta: float, A: float | None = None) -> float:
    """E_opt = (a/2b)^{2/3}·T^{1/3} with a = 4LΔ + Sσ²/2, b = A(β)G²: the E (not rounded) with the least bound."""
    slow, fast = _slow_and_fast(c, beta, A)
    return float((slow / (2 * fast)) ** (2 / 3) * T ** (1 / 3))


def optimal_bound(c: Constants, T: int, beta: float, A: float | None = None) -> float:
    """(3/2^{2/3})·a^{2/3}·b^{1/3}·T^{−2/3}: the bound at E_opt, falling as T^{−2/3}."""
    slow, fast = _slow_and_fast(c, beta, A)
    return float(3 / 2 ** (2 / 3) * slow ** (2 / 3) * fast ** (1 / 3) * T ** (-2 / 3))


# -- rounds to accuracy ------------------------------------------------------------------------------------------------


def rounds_to_epsilon(epsilon: float, bound: Callable[[int], float], most: int = 10**15) -> int | None:
    """The least T ≥ 1 with bound(T) ≤ ε, for a bound that falls with T; None if there is none up to `most`.

    >>> rounds_to_epsilon(0.1, lambda T: 1 / T)
    10
    """
    if not epsilon > 0:
        raise BadInput(f"epsilon = {epsilon:g} is out of range: it must be above 0")
    high = 1
    while not bound(high) <= epsilon:
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2  # bound(low) > ε, or low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= epsilon else (middle, high)
    return high


def fedprox_complexity(c: Constants, E: int, epsilon: float, alpha: float = 0.0) -> tuple[float, ...]:
    """The terms of T_ε = O(·) for FedProx, in the paper's order: the T at which each term of the bound alone is ε.

    64L_α²Δ²/(Eε²),  L²S²σ⁴/(L_α²Eε²),  α²E³G⁴/(L_α²ε²),  2L²EG²/(L_α²ε)  and
    α^{4/3}L^{2/3}E^{1/3}G^{4/3}/(16^{2/3}L_α²ε^{2/3})
    """
    Q = c.L + alpha
    return (
        64 * Q**2 * c.Delta**2 / (E * epsilon**2),
        (c.L * c.S * c.sigma2 / Q) ** 2 / (E * epsilon**2),
        (alpha * c.G2 / Q) ** 2 * E**3 / epsilon**2,
        2 * (c.L / Q) ** 2 * E * c.G2 / epsilon,
        (alpha**2 * c.L * c.G2 / (16 * epsilon)) ** (2 / 3) * E ** (1 / 3) / Q**2,
    )


def fedkin_complexity(
    c: Constants, E: int, epsilon: float, beta: float, A: float | None = None
) -> tuple[float, float, float]:
    """The terms of T_ε = O(·) for FedKin: 16L²Δ²/(Eε²),  S²σ⁴/(4Eε²),  A(β)·EG²/ε."""
    A = perturbation(beta) if A is None else A
    return (
        16 * c.L**2 * c.Delta**2 / (E * epsilon**2),
        (c.S * c.sigma2) ** 2 / (4 * E * epsilon**2),
        A * E * c.G2 / epsilon,
    )


def convex_rounds_to(epsilon: float, c: Constants, contraction: float, floor: float) -> int | None:
    """The least t ≥ 0 with (LΔ/μ)·contraction^t + floor ≤ ε, which is ⌈ln((ε − floor)μ/(LΔ)) / ln contraction⌉.

    None if the floor is not below ε: then the theorem never promises it.
    """
    first = c.L * c.Delta / c.mu
    if first + floor <= epsilon:
        return 0
    return math.ceil(math.log((epsilon - floor) / first) / math.log(contraction)) if floor < epsilon else None
