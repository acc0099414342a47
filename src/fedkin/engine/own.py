"""Measurements of the models that clients use, each on samples of its own client."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from fedkin.algorithms import Round, ServerState, Tuning
from fedkin.data.federation import Clients
from fedkin.engine.metrics import Scores, each_measured, evaluated, score, scorer, spans_of
from fedkin.engine.simulation import Simulation, State
from fedkin.types import Integers, Record

# Number of clients whose models are in memory at once.
CLIENTS = 256

# What newcomers' models are called in records, by what those of the other clients are called.
OF_NEWCOMERS = {"own_test": "newcomer_test", "tuned_test": "newcomer_tuned"}


def own_models(simulation: Simulation, state: State, tuning: Tuning | None = None) -> list[Record]:
    """The record of the models that clients use, for each lane.

    own_test_*, own_worst_decile      of personal models on their clients' own testing samples
    tuned_test_*, tuned_worst_decile  of the models that clients use after fine-tuning, if there is `tuning`
    validation_*                      on the validation samples, if there are any; of the global model if there are no
                                      personal ones
    newcomer_test_*                   of newcomers' personal models on their own testing samples
    newcomer_tuned_*                  of the models that newcomers use after fine-tuning
    newcomer_global_*                 of the global model on these samples

    * is `loss` or the name of the main measure, `accuracy` or `mse`; of newcomers there is only the latter.

    The first three are of all clients but newcomers. Empty if there is nothing to measure: testing samples belong to
    training clients only in a paired federation.
    """
    federation, lanes = simulation.federation, state.model.reshape(-1, state.model.shape[-1])
    trained, newcomers = simulation.trained_clients, np.array(federation.newcomers, dtype=np.int64)
    personal = simulation.algorithm.at(state.round).is_personal
    if personal and not federation.paired:
        return []
    parts = {"own_test": federation.test} if personal else {}
    if federation.validation is not None and (federation.validation.sizes > 0).all():
        parts["validation"] = federation.validation
    model = simulation.computed_model
    computed = scorer(model, lanes, federation)
    if personal:
        found = own_scores(simulation, state, parts)
    else:
        found = {name: score(model, lanes, clients, scores=computed) for name, clients in parts.items()}
    if tuning is not None and federation.paired:
        found |= own_scores(simulation, state, {"tuned_test": federation.test}, tuning)
    measure = simulation.model.loss.measure.name
    records: list[Record] = [{} for _ in lanes]
    for name, scores in found.items():
        for record, each in zip(records, scores, strict=True):
            one = each.of(trained)
            record |= {f"{name}_loss": one.loss, f"{name}_{measure}": one.value}
            if (of_whom := OF_NEWCOMERS.get(name)) is not None:
                record[f"{name.removesuffix('test')}worst_decile"] = one.worst_decile
                if len(newcomers):
                    record[f"{of_whom}_{measure}"] = each.of(newcomers).value
    if len(newcomers) and federation.paired:
        theirs = federation.test.reordered(newcomers.tolist())
        for record, one in zip(records, score(model, lanes, theirs, scores=computed), strict=True):
            record[f"newcomer_global_{measure}"] = one.value
    return records if any(records) else []


def own_scores(
    simulation: Simulation, state: State, parts: dict[str, Clients], tuning: Tuning | None = None
) -> dict[str, list[Scores]]:
    """Loss and main measure of every client's model on its own samples, for each part and lane."""
    model, everyone = simulation.used_model, len(simulation.federation.train)
    lanes = state.model.numel() // state.model.shape[-1]
    found = {name: torch.zeros(2, lanes, everyone, dtype=torch.float64, device="cpu") for name in parts}
    for who, models in models_of(simulation, state, tuning=tuning):

        def work(place: int, who: Integers = who, models: torch.Tensor = models) -> None:
            client = int(who[place])
            for name, clients in parts.items():
                spans = spans_of(model, clients, clients.rows(client))
                each = [each_measured(model, models[:, place], clients, rows) for rows in spans]
                found[name][..., client] = torch.cat(each, dim=-1).double().mean(-1)

        samples = max(int(clients.sizes[who].mean()) for clients in parts.values())
        evaluated(work, range(len(who)), model, models, samples)
    return {
        name: [
            Scores(loss, value, parts[name].sizes, model.loss.measure) for loss, value in values.transpose(0, 1).numpy()
        ]
        for name, values in found.items()
    }


def client_notes(simulation: Simulation, state: State) -> list[Record]:
    """What the algorithm decided for each client, in the order of the clients."""
    algorithm = simulation.algorithm.at(state.round)
    found: dict[int, Record] = {}
    for round, server, _ in _blocks(simulation, state):
        found.update(zip(round.who.tolist(), algorithm.client_notes(server, round), strict=False))
    return [found[i] for i in sorted(found)]


def kin_graph(simulation: Simulation, state: State) -> csr_array | None:
    """The weights of all clients' models in the start of each client, (C, C), newcomers included; None without kin."""
    algorithm = simulation.algorithm.at(state.round)
    rows: list[csr_array] = []
    seen: list[int] = []
    for round, server, _ in _blocks(simulation, state):
        found = algorithm.kin_weights(server, round)
        if found is None:
            return None
        rows.append(found)
        seen += round.who.tolist()
    return csr_array(vstack(rows, format="csr")[np.argsort(seen)])


def own_model(simulation: Simulation, state: State, client: int) -> torch.Tensor:
    """What one client uses, (P,); of a single lane."""
    ((_, models),) = models_of(simulation, state, only=client)
    return models[0, 0]


def models_of(
    simulation: Simulation, state: State, only: int | None = None, tuning: Tuning | None = None
) -> Iterator[tuple[Integers, torch.Tensor]]:
    """What clients use in blocks of clients: client indices (m,) and models (L, m, P). Newcomers come last.

    They are personal ones or the global one, after fine-tuning if there is `tuning`, and parameters of the simulation's
    `used_model`. A newcomer has kept nothing from earlier rounds. If the algorithm needs that, the newcomer works one
    round first.
    """
    algorithm = simulation.algorithm.at(state.round)
    for round, server, new in _blocks(simulation, state, only):
        memory = {name: rows.at(round.who) for name, rows in state.memory.items()}
        got = algorithm.send(server, round)
        if new and memory:
            _, kept, _ = simulation.work(algorithm, algorithm.work(simulation.local), round, got, memory)
            memory |= kept
        models = algorithm.own(got, memory) if algorithm.is_personal else round.spread(state.server["model"])
        for other, local in simulation.traces.adaptations(algorithm, simulation.local, tuning):
            tuned = replace(simulation, model=simulation.used_model) if algorithm.mixture > 1 else simulation
            replies, _, _ = tuned.work(other, local, round, {"model": models}, {})
            models = replies["model"]
        yield round.who, models if models.dim() == 3 else models[None]


def _blocks(simulation: Simulation, state: State, only: int | None = None) -> Iterator[tuple[Round, ServerState, bool]]:
    """All clients, or only one, in blocks: the round, the server state that serves them, whether they are newcomers."""
    newcomers = np.array(simulation.federation.newcomers, dtype=np.int64)
    for everyone, new in ((simulation.trained_clients, False), (newcomers, True)):
        clients = everyone if only is None else everyone[everyone == only]
        for first in range(0, len(clients), CLIENTS):
            who = clients[first : first + CLIENTS]
            server = _welcomed(simulation, state, who) if new else state.server
            yield simulation.available(state.round).of(who, simulation.weights[who]), server, new


def _welcomed(simulation: Simulation, state: State, newcomers: Integers) -> ServerState:
    """The server state after newcomers were compared with the clients, for which they may do a first round's work."""
    algorithm = simulation.algorithm.at(0)
    round = simulation.available(0).of(newcomers, simulation.weights[newcomers])
    got = algorithm.invite(state.server, round)
    if got is None:
        return state.server
    memory = {name: rows.at(newcomers) for name, rows in state.memory.items()}
    replies, _, _ = simulation.work(algorithm, algorithm.work(simulation.local), round, got, memory)
    return algorithm.welcome(state.server, replies, round)
