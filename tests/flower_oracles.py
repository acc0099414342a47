"""The federation of `loops.py` as nodes of Flower."""

from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import Tensor

from fedkin.algorithms import Algorithm, ClientRows, FedAvg
from fedkin.engine.simulation import Simulation, State
from fedkin.flower import Strategy, client_app, memory_of
from flower_grid import Direct
from loops import CLIENTS, simulation


def app_of() -> ClientApp:
    """Node i has the samples of client i."""
    run = simulation(FedAvg())
    train = run.federation.train

    def data(context: Context) -> tuple[Tensor, Tensor]:
        rows = train.rows(int(context.node_config["partition-id"]))
        return train.x[rows], train.y[rows]

    return client_app(run.model, data)


def strategy_of(run: Simulation, **settings: Any) -> Strategy:
    """What leads the same rounds as a simulation."""
    assert isinstance(run.algorithm, Algorithm)
    shared = {"graph": "global", "weights": "samples", "take_part": run.take_part, "seed": run.seed}
    return Strategy(run.algorithm, run.local, **{**shared, "min_nodes": CLIENTS, **settings})


def state_of(strategy: Strategy, grid: Direct) -> State:
    """The state of the server, and what the clients keep, as the engine has them."""
    assert isinstance(strategy.algorithm, Algorithm)
    memory = {name: ClientRows(value) for name, value in strategy.algorithm.remember(strategy._first).items()}
    for context in grid.nodes.values():
        client = np.array([int(context.node_config["partition-id"])])
        memory |= {name: memory[name].updated(client, value) for name, value in memory_of(context).items()}
    assert all(torch.isfinite(rows.values).all() for rows in memory.values())
    return State(strategy._state.server, memory, strategy._state.round)
