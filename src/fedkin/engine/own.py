"""Measurements of the models that clients use, each on samples of its own client."""

from collections.abc import Iterator

import numpy as np
import torch

from fedkin.data.federation import Clients
from fedkin.engine.metrics import Scores, score
from fedkin.engine.simulation import Simulation, State
from fedkin.types import Integers, Record

# Number of clients whose models are in memory at once.
CLIENTS = 256


def own_models(simulation: Simulation, state: State) -> list[Record]:
    """The record of the models that clients use, for each lane.

    own_test_*, own_worst_decile  of personal models on their clients' own testing samples
    validation_*                  on the validation samples, if there are any; of the global model if there are no
                                  personal ones

    Empty if there is nothing to measure: testing samples belong to training clients only in a paired federation.
    """
    federation, lanes = simulation.federation, state.model.reshape(-1, state.model.shape[-1])
    personal = simulation.algorithm.at(state.round).is_personal
    if personal and not federation.paired:
        return []
    parts = {"own_test": federation.test} if personal else {}
    if federation.validation is not None and (federation.validation.sizes > 0).all():
        parts["validation"] = federation.validation
    if not parts:
        return []
    if personal:
        found = own_scores(simulation, state, parts)
    else:
        found = {name: score(simulation.model, lanes, clients) for name, clients in parts.items()}
    records: list[Record] = [{} for _ in lanes]
    for name, scores in found.items():
        for record, one in zip(records, scores, strict=True):
            record |= {f"{name}_loss": one.loss, f"{name}_accuracy": one.accuracy}
            if name == "own_test":
                record["own_worst_decile"] = one.worst_decile
    return records


def own_scores(simulation: Simulation, state: State, parts: dict[str, Clients]) -> dict[str, list[Scores]]:
    """Loss and accuracy of every client's model on its own samples, for each part and lane."""
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in parts}
    for who, models in models_of(simulation, state):
        for place, client in enumerate(who.tolist()):
            for name, clients in parts.items():
                rows = clients.rows(client)
                z = simulation.model.scores(models[:, place], clients.x[rows])
                y = clients.y[rows].expand(len(models), -1)
                loss = torch.nn.functional.cross_entropy(z, y, reduction="none").double().mean(-1)
                found[name].append((loss, (z.argmax(dim=-2) == y).double().mean(-1)))
    scores = {}
    for name, pieces in found.items():
        losses, accuracies = (torch.stack(part, dim=-1).cpu().numpy() for part in zip(*pieces, strict=True))
        scores[name] = [Scores(*both, parts[name].sizes) for both in zip(losses, accuracies, strict=True)]
    return scores


def client_table(simulation: Simulation, state: State) -> list[Record]:
    """For each client of a paired federation: samples, kind, and the accuracy of the global and of its own model."""
    federation = simulation.federation
    if not federation.paired:
        return []
    (everyone,) = score(simulation.model, state.model[None], federation.test)
    own = everyone
    if simulation.algorithm.at(state.round).is_personal:
        (own,) = own_scores(simulation, state, {"test": federation.test})["test"]
    names = federation.train.names or tuple(str(i) for i in range(len(federation.train)))
    return [
        {
            "client": name,
            "samples": int(federation.train.sizes[i]),
            **({"kind": federation.kinds[i]} if federation.kinds is not None else {}),
            **({"newcomer": True} if i in federation.newcomers else {}),
            "global_accuracy": float(everyone.accuracies[i]),
            "own_accuracy": float(own.accuracies[i]),
        }
        for i, name in enumerate(names)
    ]


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
