"""The related systems on Flower, against the same loops."""

import pytest
import torch

from fedkin.algorithms import Algorithm
from fedkin.flower import initial_arrays
from flower_grid import Direct
from flower_oracles import app_of, state_of, strategy_of
from loops import CLIENTS, assert_loop, played
from system_loops import PowerLoop
from test_systems import ROUNDS, SELECTING, SYSTEMS, prepared


@pytest.mark.parametrize("system", [*SYSTEMS, *SELECTING])
def test_systems(system: str) -> None:
    """The server's state and what the clients keep, with sampled clients, to 1e-6."""
    algorithm: Algorithm = SYSTEMS[system][0][0] if system in SYSTEMS else SELECTING[system]
    loop = SYSTEMS[system][1] if system in SYSTEMS else PowerLoop
    run, grid = prepared(algorithm, 40), Direct(app_of(), range(CLIENTS))
    strategy = strategy_of(run, graph="similarity")
    strategy.start(grid, initial_arrays(run.model, run.seed), ROUNDS, 5.0)
    torch.testing.assert_close(strategy._state.model, played(run, ROUNDS).model, rtol=1e-5, atol=1e-6)
    assert_loop(state_of(strategy, grid), loop(run).rounds(ROUNDS))
