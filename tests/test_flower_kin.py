"""Kin on Flower: the same choices and models as the engine."""

from dataclasses import replace

import pytest
import torch

from conftest import tensors_of
from fedkin import FedKin, Kin
from fedkin.algorithms import Algorithm
from fedkin.flower import initial_arrays
from fedkin.flower.client import VALIDATION
from flower_grid import Direct
from flower_oracles import app_of, state_of, strategy_of
from loops import CLIENTS, played, simulation


@pytest.mark.parametrize(
    "algorithm",
    [Kin(step_size=0.1), FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="updates", neighbours=4, absent="last")],
    ids=["chosen", "updates"],
)
@pytest.mark.parametrize("take_part", [None, 8])
def test_flower_is_the_engine(algorithm: Algorithm, take_part: int | None) -> None:
    """Nodes hold out the same samples, and no message is asked for: kin come from updates alone."""
    run = simulation(algorithm, take_part=take_part)
    if algorithm.validates:
        run = replace(run, federation=run.federation.held_out(VALIDATION, run.seed))
    grid, strategy = Direct(app_of(), range(CLIENTS)), strategy_of(run)
    strategy.start(grid, initial_arrays(run.model, run.seed), 5, 5.0)
    engine, flower = (tensors_of(state) for state in (played(run, 5), state_of(strategy, grid)))
    for name in set(engine) & set(flower):
        torch.testing.assert_close(flower[name], engine[name], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(flower["model"], engine["model"], rtol=1e-5, atol=1e-5)
