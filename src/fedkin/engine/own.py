"""Measurements of personal models, each on the testing samples of its client."""

from collections.abc import Iterator

import numpy as np
import torch

from fedkin.engine.metrics import Scores
from fedkin.engine.simulation import Simulation, State
from fedkin.types import Integers

# Number of clients whose models are in memory at once.
CLIENTS = 256


def own_models(simulation: Simulation, state: State) -> list[dict[str, float]]:
    """Loss, accuracy and worst decile of personal models, for each lane.

    Empty if the algorithm has no personal models, or if the federation is not paired (`Federation.paired`).
    """
    if not (simulation.algorithm.at(state.round).is_personal and simulation.federation.paired):
        return []
    return [
        {"own_test_loss": s.loss, "own_test_accuracy": s.accuracy, "own_worst_decile": s.worst_decile}
        for s in own_scores(simulation, state)
    ]


def own_scores(simulation: Simulation, state: State) -> list[Scores]:
    """Loss and accuracy of every client's personal model on its own testing samples, for each lane."""
    test, pieces = simulation.federation.test, []
    for who, models in models_of(simulation, state):
        for place, client in enumerate(who.tolist()):
            rows = test.rows(client)
            z, y = simulation.model.scores(models[:, place], test.x[rows]), test.y[rows].expand(len(models), -1)
            loss = torch.nn.functional.cross_entropy(z, y, reduction="none").double().mean(-1)
            pieces.append((loss.cpu().numpy(), (z.argmax(dim=-2) == y).double().mean(-1).cpu().numpy()))
    losses, accuracies = (np.stack(part, axis=1) for part in zip(*pieces, strict=True))
    return [Scores(loss, accuracy, test.sizes) for loss, accuracy in zip(losses, accuracies, strict=True)]


def models_of(simulation: Simulation, state: State) -> Iterator[tuple[Integers, torch.Tensor]]:
    """Personal models in blocks of clients: client indices (m,) and models (L, m, P)."""
    algorithm, clients = simulation.algorithm.at(state.round), len(simulation.federation.train)
    for first in range(0, clients, CLIENTS):
        who = np.arange(first, min(first + CLIENTS, clients))
        round = simulation.available(state.round).of(who, simulation.weights[who])
        memory = {name: rows.at(who) for name, rows in state.memory.items()}
        models = algorithm.own(algorithm.send(state.server, round), memory)
        if (adaptation := algorithm.adaptation(simulation.local)) is not None:
            other, local = adaptation
            replies, _, _ = simulation.work(other, local, round, {"model": models}, {})
            models = replies["model"]
        yield who, models if models.dim() == 3 else models[None]
