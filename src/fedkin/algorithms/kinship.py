"""Who is kin, and the average of their models: what the members of the family that start at their kin share."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.algorithms.base import ServerState
from fedkin.algorithms.rounds import Round, random_numbers
from fedkin.algorithms.rows import ClientRows
from fedkin.graph.kin import in_both, kin_rows, strongest
from fedkin.graph.mixing import mixed
from fedkin.graph.search import SEARCH_BLOCK
from fedkin.types import Floats, Integers, Tensors

KIN_SOURCES = ("graph", "data", "updates", "both")
MOST_KIN = 64  # so many nearest are known of every client
# Directions of updates have at most so many numbers a client, and so many in all.
SKETCH, SKETCHES = 1024, 1 << 26


def kin_average(server: ServerState, rows: Sequence[Floats | csr_array]) -> Tensor:
    """uᵢ = Σₙ P_in wₙ of the last models that the server keeps, (…, m, P); what a row of P lacks to 1 is taken of w̄.

    rows  P, weights of the clients with models, (m, n); of each lane, or one for all
    """
    u = mixed_models(rows, server["models"])
    rest = np.stack([1 - np.asarray(own.sum(axis=1)).reshape(-1) for own in rows])
    if abs(rest).max() > 1e-12:  # somebody's kin have sent no model, or w̄ is a part of the mixture
        # In place: temporary tensors of this size would be fetched from the system page by page.
        missing = u.new_tensor(rest if len(rest) > 1 else rest[0])
        u.addcmul_(missing.unsqueeze(-1), server["model"])
    return u


def mixed_models(rows: Sequence[Floats | csr_array], models: ClientRows) -> Tensor:
    """Σₙ P_in wₙ, (…, m, P).

    Few clients of very many have few kin: then the models are read where they lie, because to put all of them together
    would take longer than the average.
    """

    def mixture(weights: Sequence[Floats | csr_array], values: Tensor) -> Tensor:
        if values.dim() == 3 and len(weights) > 1:
            return torch.stack([mixed(own, lane) for own, lane in zip(weights, values, strict=True)])
        return mixed(weights[0], values)

    sparse = [own for own in rows if isinstance(own, csr_array)]
    if len(sparse) < len(rows) or 2 * sparse[0].shape[0] > len(models):
        return mixture(rows, models.values)
    parts = []
    for columns, values, places in models.blocks():
        own = [weights[:, columns] for weights in sparse]
        shape = len(own[0].indptr) - 1, values.shape[-2]
        parts.append(mixture([csr_array((w.data, places[w.indices], w.indptr), shape=shape) for w in own], values))
    return torch.stack(parts).sum(0)


def kin_weights(
    server: ServerState, round: Round, source: str, neighbours: int, among: Integers
) -> list[Floats | csr_array]:
    """P: weights of the clients `among` (n,) for the clients of the round, (m, n); of each lane, or one for all."""
    if source == "graph":
        return [round.graph.mixing_rows(round.who, among)]
    shares = np.ones(round.clients) if round.shares is None else round.shares
    by_data = strongest(round.graph, MOST_KIN) if source in ("data", "both") else None
    if source == "data":
        assert by_data is not None
        return [_kin(by_data, neighbours, shares)[round.who][:, among]]
    near: ClientRows = server["nearest"]
    lanes = near.at(np.arange(round.clients)).reshape(-1, round.clients, MOST_KIN).numpy()
    found = [lane if by_data is None else _in_both(lane, by_data) for lane in lanes]
    return [_kin(lane, neighbours, shares)[round.who][:, among] for lane in found]


def _in_both(near: Integers, other: Integers) -> Integers:
    """As `in_both`, computed once for the same neighbours."""
    return _cached_in_both(near.tobytes(), other.tobytes(), near.shape[1])


@lru_cache(maxsize=8)
def _cached_in_both(near: bytes, other: bytes, count: int) -> Integers:
    one, two = (np.frombuffer(of, dtype=np.int64).reshape(-1, count) for of in (near, other))
    return in_both(one, two)


def _kin(near: Integers, neighbours: int, shares: Floats) -> csr_array:
    """As `kin_rows`, computed once for the same neighbours: they change rarely."""
    return _cached_kin(near.tobytes(), near.shape[1], neighbours, shares.tobytes())


@lru_cache(maxsize=32)
def _cached_kin(near: bytes, count: int, neighbours: int, shares: bytes) -> csr_array:
    rows, weights = np.frombuffer(near, dtype=np.int64).reshape(-1, count), np.frombuffer(shares)
    if (weights == 0).any():  # newcomers are nobody's kin: the next nearest take their places
        rows = np.where(weights[rows] > 0, rows, -1)
        rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
    return kin_rows(rows[:, :neighbours], weights)


# -- directions of updates ---------------------------------------------------------------------------------------------


def no_directions(model: Tensor, clients: int) -> ServerState:
    """The server's state before the first update: no directions, nobody is kin.

    first  w̄₀, the first global model
    mean   the mean of the updates of the first round
    """
    width = min(model.shape[-1], SKETCH, max(16, SKETCHES // clients))
    lanes = model.shape[:-2]
    return {
        "directions": ClientRows(model.new_zeros(*lanes, 1, width)),
        "nearest": ClientRows(torch.full((*lanes, 1, MOST_KIN), -1, dtype=torch.int64)),
        "renewed": torch.zeros((*lanes, 1, 1), dtype=torch.int64),
        "first": model,
        "mean": torch.zeros_like(model),
    }


def learn_directions(server: ServerState, replies: Tensors, round: Round) -> ServerState:
    """Take the directions of clients' first updates, and find the nearest of each.

    A direction is that of wᵢ − w̄, less the mean of all updates of the round, which says nothing about the client.
    Neighbours of new clients are searched among all; those of all others anew when a quarter more are known.
    """
    known = {name: server[name] for name in ("directions", "nearest", "renewed", "first", "mean")}
    directions, near, renewed = known["directions"], known["nearest"], known["renewed"]
    new = np.flatnonzero(~np.isin(round.who, directions.owners))
    if not len(new):
        return known
    updates = replies["model"] - server["model"]
    mean = round.average(updates)
    if not len(directions):
        known["mean"] = mean
    # A client that is first sampled later starts at a later model: its update is compared with those of its round.
    updates = updates - mean
    unit = torch.nn.functional.normalize(updates[..., new, :], dim=-1)
    directions = directions.updated(round.who[new], sketched(unit, directions.default.shape[-1], round.seed))
    owners = directions.owners
    grown = len(owners) >= 1.25 * int(renewed.max()) or len(owners) == round.clients
    about = owners if grown else round.who[new]
    return {
        **known,
        "directions": directions,
        "nearest": near.updated(about, _nearest(directions.values, owners, about)),
        "renewed": torch.full_like(renewed, len(owners)) if grown else renewed,
    }


def renewed_kin(server: ServerState, round: Round) -> ClientRows:
    """The nearest by the present models: those whose last model lies in the most similar direction from their mean."""
    models: ClientRows = server["models"]
    apart = models.values - models.values.mean(-2, keepdim=True)
    unit = torch.nn.functional.normalize(apart, dim=-1)
    short, owners = sketched(unit, server["directions"].default.shape[-1], round.seed), models.owners
    near: ClientRows = server["nearest"]
    return near.updated(owners, _nearest(short, owners, owners))


def place_newcomers(server: ServerState, replies: Tensors, round: Round) -> ServerState:
    """The state in which newcomers have nearest clients, found from the update each made of the first model.

    Its direction is that of wᵢ − w̄₀, less the mean of the first round's updates: what it would have been in that round.
    """
    directions: ClientRows = server["directions"]
    owners, near = directions.owners, server["nearest"]
    updates = replies["model"] - server["first"] - server["mean"]
    unit = torch.nn.functional.normalize(updates, dim=-1)
    alike = sketched(unit, directions.default.shape[-1], round.seed) @ directions.values.mT
    k = min(MOST_KIN, len(owners))
    found = near.default.expand(*near.default.shape[:-2], len(round), -1).clone()
    found[..., :k] = torch.from_numpy(owners)[torch.topk(alike, k, dim=-1).indices.cpu()]
    return {**server, "nearest": near.updated(round.who, found)}


def _nearest(directions: Tensor, owners: Integers, about: Integers) -> Tensor:
    """As `_nearest_among` for directions (…, n, q) of lanes: (…, len(about), MOST_KIN)."""
    lanes = directions.reshape(-1, *directions.shape[-2:])
    found = torch.stack([torch.from_numpy(_nearest_among(lane, owners, about)) for lane in lanes])
    return found.view(*directions.shape[:-2], len(about), MOST_KIN)


def _nearest_among(directions: Tensor, owners: Integers, about: Integers) -> Integers:
    """The clients nearest to some of the owners of directions (n, q), (len(about), MOST_KIN); −1 for none."""
    found = np.full((len(about), MOST_KIN), -1, dtype=np.int64)
    k, places = min(MOST_KIN, len(owners) - 1), np.searchsorted(owners, about)
    for first in range(0, len(about) if k else 0, SEARCH_BLOCK):
        mine = places[first : first + SEARCH_BLOCK]
        alike = directions[mine] @ directions.mT  # of unit length: the most similar are the nearest
        alike[np.arange(len(mine)), mine] = -np.inf  # a client is not its own neighbour
        found[first : first + len(mine), :k] = owners[torch.topk(alike, k, dim=1).indices.cpu().numpy()]
    return found


def sketched(vectors: Tensor, width: int, seed: int) -> Tensor:
    """Vectors (…, P) as sketches (…, width) that keep inner products up to about 1/√width (count sketch).

    Every parameter is added, with a random sign, to one random number of the sketch; the same for all vectors.
    """
    size = vectors.shape[-1]
    if width >= size:
        return vectors
    rng = random_numbers(seed, "sketch")
    place = torch.from_numpy(rng.integers(0, width, size)).to(vectors.device)
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], size)).to(vectors)
    return vectors.new_zeros(*vectors.shape[:-1], width).index_add_(-1, place, vectors * sign)
