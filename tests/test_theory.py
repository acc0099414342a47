"""The formulas of `fedkin.paper.theory`, worked by hand, and what follows from them alone."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import BadInput
from fedkin.paper import theory
from fedkin.paper.theory import Constants

# Numbers that come out even: L/μ = 2, Sσ² = 1, LΔ/μ = 6.
C = Constants(L=2, mu=1, sigma2=4, G2=9, Gamma=0.5, Delta=3, S=0.25)
conditions = st.floats(1e-4, 1.0)
betas = st.floats(0.01, 1.0)


def test_step_sizes() -> None:
    """1/(2·2·2) = 1/8, with α = 2: 1/(2·2·4) = 1/16. Nonconvex, TE = 16: 1/(2·2·4) = 1/16, with α = 2: 1/(2·4·4)."""
    assert theory.convex_step_size(2, 2) == 1 / 8
    assert theory.convex_step_size(2, 2, alpha=2) == 1 / 16
    assert theory.nonconvex_step_size(2, 2, 8) == 1 / 16
    assert theory.nonconvex_step_size(2, 2, 8, alpha=2) == 1 / 32


def test_perturbation_factors() -> None:
    """β = 1/2: 4 + 1/4 + 8·(1 − 2)² = 12.25, and (3 − 1/2)²/4 = 6.25/4. β = 1: 4 and 1. β = 1/10: 4 + .81 + 8·81."""
    assert theory.perturbation(0.5) == 12.25
    assert theory.sharper_perturbation(0.5) == 1.5625
    assert (theory.perturbation(1), theory.sharper_perturbation(1)) == (4, 1)
    assert theory.perturbation(0.1) == pytest.approx(652.81)


def test_deviations() -> None:
    """γ = 1/8, E = 2, G² = 9: 4·9/64 = 0.5625, four times that, and 4·0.5625·12.25 = 27.5625."""
    assert theory.deviation(1 / 8, 2, 9) == 0.5625
    assert theory.divergence(1 / 8, 2, 9) == 2.25
    assert theory.perturbed_deviation(1 / 8, 2, 9, theory.perturbation(0.5)) == 27.5625


def test_average_perturbed() -> None:
    """0.25·8 + 0.75·4 = 5."""
    assert theory.average_perturbed(0.25, 8.0, 4.0) == 5.0


def test_kappa() -> None:
    """FedAvg (7/8)². FedProx, γ = 1/16, α = 2: (2 + (1 − 3/16)²)/3. FedKin, γ = 1/8, β = 1/2: −1 + 2·(15/16)²."""
    assert theory.fedprox_kappa(1 / 8, 2, 1) == 49 / 64
    assert theory.fedprox_kappa(1 / 16, 2, 1, alpha=2) == pytest.approx((2 + 169 / 256) / 3)
    assert theory.fedkin_kappa(1 / 8, 2, 1, beta=0.5) == 2 * 225 / 256 - 1


def test_progress() -> None:
    """γ²E = 1/128 at γ = 1/16, and 1/32 at 1/8; Sσ² = 1, 6LΓ = 6, 8E²G² = 288.

    FedProx (1 + 6 + 288)/128. FedKin, β = 1/2: (1 + 6 + 288·12.25 + (1/8)·(1/4)·36)/32 = 3536.125/32, and with the
    sharper factor 288·1.5625 = 450: 458.125/32.
    """
    assert theory.fedprox_progress(C, 1 / 16, 2) == 295 / 128
    assert theory.fedkin_progress(C, 1 / 8, 2, 0.5) == 3536.125 / 32
    assert theory.fedkin_progress(C, 1 / 8, 2, 0.5, theory.sharper_perturbation(0.5)) == 458.125 / 32


def test_nonconvex_progress() -> None:
    """FedProx, γ = 1/32, α = 2: 2γLSσ² = 1/8; (1/8 + 8·4/1024 + 4/32768)·36 = 5.62939453125.

    FedKin, γ = 1/16, β = 1/2: γLSσ² = 1/8; 4·(1/256)·4·36·12.25 = 2.25·12.25.
    """
    assert theory.fedprox_nonconvex_progress(C, 1 / 32, 2, alpha=2) == 0.125 + 5.62939453125
    assert theory.fedkin_nonconvex_progress(C, 1 / 16, 2, 0.5) == 0.125 + 27.5625


def test_contractions() -> None:
    """1 − 1/6, with α = 2: 1 − 1/12; β = 1/2: 1 − 1/5."""
    assert theory.fedprox_contraction(2, 1) == pytest.approx(5 / 6)
    assert theory.fedprox_contraction(2, 1, alpha=2) == pytest.approx(11 / 12)
    assert theory.fedkin_contraction(2, 1, 0.5) == pytest.approx(4 / 5)


def test_floors() -> None:
    """FedAvg 1/4 + 3/2 + 72 = 73.75, FedProx with α = 2 half of it.

    FedKin, β = 1/2: 1/4 + 3/2 + 2·12.25·36 + (1/4)·2·9/16 = 884.03125.
    """
    assert theory.fedprox_floor(C, 2) == 73.75
    assert theory.fedprox_floor(C, 2, alpha=2) == 36.875
    assert theory.fedkin_floor(C, 2, 0.5) == 884.03125


def test_convex_bounds() -> None:
    """6·11/12 + 36.875 = 42.375 after one round of FedProx; 6·0.8² + 884.03125 after two of FedKin."""
    assert theory.fedprox_convex(C, 2, 1, alpha=2) == pytest.approx(42.375)
    assert theory.fedkin_convex(C, 2, np.array([0, 2]), 0.5) == pytest.approx([890.03125, 887.87125])


def test_unrolled() -> None:
    """κ = 1/2, A = 2, L/2 = 1, 2Δ/μ = 6: after a round 3 + 2, after two 1.5 + 1 + 2."""
    assert theory.unrolled(C, 0.5, 2.0, np.array([0, 1, 2])) == pytest.approx([6, 5, 4.5])


def test_nonconvex_bounds() -> None:
    """E = 4, T = 16. FedProx, α = 2: (8·4·3/2 + 2/(4·2) + 2·8·9/4)/4 = 84.25/4; 2·(1/4)·36/16; 4·2·2·9/(16·64·64).

    FedKin, β = 1/2: 24.5/√64 + 110.25·4/16.
    """
    assert theory.fedprox_nonconvex(C, 4, 16, alpha=2) == pytest.approx(21.0625 + 1.125 + 144 / 65536, abs=1e-14)
    assert theory.fedkin_nonconvex(C, 4, 16, 0.5) == 3.0625 + 27.5625


def test_optimal_steps() -> None:
    """With a = 24.5 and 2b = 220.5, E_opt = (1/9)^{2/3}·T^{1/3}, 2 for T = 648: 24.5/36 + 110.25·2/648 = 49/48.

    Eight times the rounds double E_opt and leave a quarter of the bound, T^{−2/3}.
    """
    assert theory.optimal_steps(C, 648, 0.5) == pytest.approx(2)
    assert theory.optimal_bound(C, 648, 0.5) == pytest.approx(49 / 48)
    assert theory.fedkin_nonconvex(C, 2, 648, 0.5) == pytest.approx(49 / 48)
    assert min(theory.fedkin_nonconvex(C, E, 648, 0.5) for E in (1, 3)) > 49 / 48
    assert theory.optimal_steps(C, 8 * 648, 0.5) == pytest.approx(4)
    assert theory.optimal_bound(C, 8 * 648, 0.5) == pytest.approx(49 / 48 / 4)


def test_rounds_to_invert_the_bound() -> None:
    """The bound at T = 648 is 49/48, so that many rounds are needed for it and not one less."""
    assert theory.rounds_to_epsilon(49 / 48 + 1e-12, lambda T: theory.fedkin_nonconvex(C, 2, T, 0.5)) == 648
    assert theory.rounds_to_epsilon(7.0, lambda T: 7 / T) == 1
    assert theory.rounds_to_epsilon(1.0, lambda T: 2.0) is None
    with pytest.raises(BadInput, match="epsilon"):
        theory.rounds_to_epsilon(0.0, lambda T: 1 / T)


def test_convex_rounds() -> None:
    """6·0.8^t + 1 ≤ 4 from t = ln 2/ln 1.25 = 3.1 on, so 4; 7 is reached at once, 1 never."""
    assert theory.convex_rounds_to(4, C, 0.8, floor=1) == 4
    assert theory.convex_rounds_to(7, C, 0.8, floor=1) == 0
    assert theory.convex_rounds_to(1, C, 0.8, floor=1) is None


def test_complexities() -> None:
    """E = 4, ε = 2. FedProx, α = 2: 64·16·9/16, (1/2)²/16, 4.5²·64/4, 2·(1/4)·36/2, (2.25²·4)^{1/3}/16.

    FedKin, β = 1/2: 16·4·9/16, 1/64, 12.25·36/2.
    """
    assert theory.fedprox_complexity(C, 4, 2, alpha=2) == pytest.approx((576, 1 / 64, 324, 9, 20.25 ** (1 / 3) / 16))
    assert theory.fedkin_complexity(C, 4, 2, 0.5) == pytest.approx((36, 1 / 64, 220.5))


@given(beta=betas, alpha=st.floats(0, 10), epsilon=st.floats(1e-3, 1.0))
def test_each_complexity_term_is_where_its_term_of_the_bound_is_epsilon(
    beta: float, alpha: float, epsilon: float
) -> None:
    """So T = n²·max(terms) is enough where the bound has n terms, and one term of the bound alone needs that T."""
    found: list[tuple[tuple[float, ...], Callable[[float], Any]]] = [
        (theory.fedprox_complexity(C, 3, epsilon, alpha), lambda T: theory.fedprox_nonconvex(C, 3, T, alpha)),
        (theory.fedkin_complexity(C, 3, epsilon, beta), lambda T: theory.fedkin_nonconvex(C, 3, T, beta)),
    ]
    for terms, bound in found:
        assert bound(len(terms) ** 2 * max(terms)) <= epsilon * (1 + 1e-9)
        assert bound(max(terms)) >= epsilon * (1 - 1e-9)


def test_constants_out_of_range() -> None:
    """A sentence each."""
    with pytest.raises(BadInput, match="mu = 3"):
        Constants(L=2, mu=3, sigma2=0, G2=0, Gamma=0, Delta=0, S=1)
    with pytest.raises(BadInput, match="Gamma = -1"):
        Constants(L=2, mu=1, sigma2=0, G2=0, Gamma=-1, Delta=0, S=1)


# -- what the paper claims of its bounds -------------------------------------------------------------------------------


@given(mu=conditions, alpha=st.floats(0, 10), beta=betas)
def test_contraction_factors_are_ordered(mu: float, alpha: float, beta: float) -> None:
    """FedKin ≤ FedAvg ≤ FedProx for the theorems' factors, with equality at β = 1 and α = 0."""
    avg = theory.fedprox_contraction(1, mu)
    assert theory.fedkin_contraction(1, mu, beta) <= avg <= theory.fedprox_contraction(1, mu, alpha)
    assert theory.fedkin_contraction(1, mu, 1) == pytest.approx(avg)


@given(mu=conditions, alpha=st.floats(0, 10), beta=betas, E=st.integers(1, 50))
def test_kappa_is_ordered_and_below_its_roundings(mu: float, alpha: float, beta: float, E: int) -> None:
    """The proofs' chain κ ≤ 1 − μ/(βμ + 2L) ≤ 1 − μ/((β + 2)L) and κ ≤ 1 − γμ holds, and FedProx's likewise."""
    gamma, slow = theory.convex_step_size(1, E), theory.convex_step_size(1, E, alpha)
    ours, avg = theory.fedkin_kappa(gamma, E, mu, beta), theory.fedprox_kappa(gamma, E, mu)
    prox = theory.fedprox_kappa(slow, E, mu, alpha)
    tiny = 1e-12 / beta
    assert ours <= avg + tiny
    assert avg <= prox + tiny
    assert ours <= 1 - mu / (beta * mu + 2) + tiny
    assert ours <= 1 - gamma * mu + tiny
    assert 1 - mu / (beta * mu + 2) <= theory.fedkin_contraction(1, mu, beta)
    assert prox <= 1 - mu / (3 * alpha + 2 + mu) + tiny
    assert 1 - mu / (3 * alpha + 2 + mu) <= theory.fedprox_contraction(1, mu, alpha) + tiny


def test_floor_grows_as_beta_falls() -> None:
    """From β = 1/2 to 1/100 the floor's main factor goes from 12.25 to 4 + 0.9801 + 8·99² = 78,412.98."""
    floors = [theory.fedkin_floor(C, 2, beta) for beta in (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01)]
    assert all(b > a for a, b in pairwise(floors))
    assert theory.perturbation(0.01) == pytest.approx(78412.9801)


# -- what the paper does not say ---------------------------------------------------------------------------------------


def test_with_one_local_step_beta_cannot_contract_faster() -> None:
    """E = 1: κ = 1 − 1/β + (1 − βμγ)/β = 1 − μγ for every β; only the rounding of κ in the theorem depends on β."""
    gamma = theory.convex_step_size(1, 1)
    for beta in (1.0, 0.5, 0.1):
        assert theory.fedkin_kappa(gamma, 1, 0.3, beta) == pytest.approx(1 - 0.15)
    assert theory.fedkin_contraction(1, 0.3, 0.1) < theory.fedkin_contraction(1, 0.3, 1.0) - 0.03


def test_the_gain_of_beta_in_kappa_is_of_second_order() -> None:
    """μ/L = 1/100, E = 5, β → 0: the theorem's rate grows by half, 3 → 2; κ's only by 2 in 1,000.

    FedAvg's κ = (1 − 1/1000)^5 = 0.99500999; FedKin's tends to 1 − E·μ/(2LE) = 0.995.
    """
    gamma = theory.convex_step_size(1, 5)
    avg, ours = theory.fedprox_kappa(gamma, 5, 0.01), theory.fedkin_kappa(gamma, 5, 0.01, 1e-6)
    assert (1 - ours) / (1 - avg) == pytest.approx(1.002, abs=1e-4)
    stated = (1 - theory.fedkin_contraction(1, 0.01, 1e-6)) / (1 - theory.fedprox_contraction(1, 0.01))
    assert stated == pytest.approx(1.5, abs=1e-4)


def test_at_beta_1_the_bounds_are_not_fedavgs_but_the_sharper_ones_are() -> None:
    """The same algorithm has two floors, 2E²G²/μ and 2·4·E²G²/μ; (3 − 1)²/4 = 1 makes them one.

    In the nonconvex theorems FedAvg's first terms are twice FedKin's at β = 1, and so T_ε has 64·4·9/16 and 16·4·9/16.
    """
    noise = theory.fedprox_floor(C, 2) - 72
    assert theory.fedkin_floor(C, 2, 1) - noise == pytest.approx(4 * 72)
    assert theory.fedkin_floor(C, 2, 1, theory.sharper_perturbation(1)) == pytest.approx(theory.fedprox_floor(C, 2))
    assert theory.fedprox_complexity(C, 4, 2)[0] == 4 * 36
    assert theory.fedkin_complexity(C, 4, 2, 1)[0] == 36


@given(beta=betas)
def test_sharper_factor_is_sharper(beta: float) -> None:
    """(3 − β)²/4 ≤ 9/4, and never above the paper's."""
    assert theory.sharper_perturbation(beta) <= min(2.25, theory.perturbation(beta))


def test_the_floor_is_never_below_the_start() -> None:
    """With the least G² there can be, 2μΔ = 6: FedAvg 2·4·6 = 48 = 4E²Δ. FedProx with α = 2: half."""
    least = Constants(L=2, mu=1, sigma2=0, G2=6, Gamma=0, Delta=3, S=1)
    assert theory.fedprox_floor(least, 2) == 48 == theory.least_floor(least, 2)
    assert theory.fedprox_floor(least, 2, alpha=2) == 24 == theory.least_floor(least, 2, alpha=2)
    assert theory.fedkin_floor(least, 2, 0.5) >= theory.least_floor(least, 2, theory.perturbation(0.5)) == 48 * 12.25
