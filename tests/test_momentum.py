"""Gradients at β·w + (1−β)·u with momentum: how far clients overshoot, and that a run says so."""

import warnings

import pytest

import fedkin
from conftest import small_federation
from fedkin import FedAvg, FedKin, Kin, Local
from fedkin.algorithms import Algorithm
from fedkin.algorithms.schedules import Schedule


def moved(beta: float, momentum: float, steps: int) -> float:
    """The w after steps on f(w) = (w − 1)²/2 from w̄ = u = 0, by the rule of the algorithm and that of the optimizer."""
    algorithm, w, v = FedKin(step_size=0.1, beta=beta), 0.0, 0.0
    for _ in range(steps):
        new, _ = algorithm.step(w, {"model": 0.0, "anchor": 0.0}, {}, lambda point: point - 1.0)
        v = momentum * v + (float(new) - w)  # type: ignore[arg-type]
        w += v
    return w


def test_clients_overshoot_by_one_over_beta() -> None:
    """The gradient vanishes at β·w = 1. Plain steps: w = (1 − (1 − γβ)ᵏ)/β; ten of them with γ = 0.1 do not get there.

    With β = 0.5 that is 2·(1 − 0.95¹⁰) = 0.80253. Momentum of 0.9 goes ten times as far with the same γ.
    """
    assert moved(0.5, 0.0, 10) == pytest.approx(2 * (1 - 0.95**10))
    assert moved(0.5, 0.9, 400) == pytest.approx(2.0, abs=1e-6)
    assert moved(1.0, 0.9, 400) == pytest.approx(1.0, abs=1e-6)
    assert moved(0.5, 0.9, 10) > 1.9 > 1.0 > moved(0.5, 0.0, 10)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "is_said"),
    [
        (FedKin(beta=0.5), "momentum", True),
        (FedKin(beta=0.8), "adam", True),
        (FedKin(beta=Schedule(0.5, 1.0, over=9)), "adam", True),
        (FedKin(), "momentum", False),
        (FedKin(beta=0.5), "sgd", False),
        (FedKin(beta=1.0, kappa=1.0), "momentum", False),
        (FedAvg(), "momentum", False),
        (Kin(), "momentum", False),
    ],
)
def test_beta_with_momentum_is_said(algorithm: Algorithm, optimizer: str, is_said: bool) -> None:
    sentence = algorithm.caution(Local(optimizer=optimizer))
    assert (sentence is not None) == is_said
    if sentence:
        assert sentence.endswith("set beta to 0.9 or more, or local.optimizer = 'sgd'")


def test_training_says_so() -> None:
    made = small_federation()
    with pytest.warns(UserWarning, match=r"beta below 0.9 with momentum"):
        fedkin.train(made, FedKin(step_size=0.01, beta=0.5), local=Local(optimizer="momentum"), rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedkin.train(made, FedKin(step_size=0.01, beta=0.5), rounds=1)
        fedkin.train(made, FedKin(step_size=0.01), local=Local(optimizer="momentum"), rounds=1)
