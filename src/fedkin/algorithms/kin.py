"""Kin: FedKin that finds out by itself which clients are kin, and whether that helps."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Losses, ServerState
from fedkin.algorithms.kinship import (
    MOST_KIN,
    kin_average,
    kin_weights,
    learn_directions,
    no_directions,
    place_newcomers,
)
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.types import Record, Tensors

Candidate = tuple[str, int]  # where kin are taken from, and how many nearest


def candidates(round: Round) -> list[Candidate]:
    """Averages that clients may start from, the simplest first: all models, then fewer and fewer nearest clients'."""
    sizes = [k for k in (64, 32, 16, 8, 4, 2) if k <= MOST_KIN and 2 * k <= round.clients]
    sources = ("updates", "data") if round.graph.has_edges else ("updates",)
    return [("global", 0), *((source, k) for k in sizes for source in sources)]


def is_choosing(round: int) -> bool:
    """Whether candidates are compared in a round: 1, 2, 3, 4, 6, 8, 12, 16, 24, …, less and less often."""
    return round > 0 and any(round == odd << round.bit_length() - odd.bit_length() for odd in (1, 3))


@dataclass(frozen=True, kw_only=True)
class Kin(Algorithm):
    """FedAvg in which every client starts its round at sᵢ, the average of its kin's last models.

    Kin are the k nearest clients by the direction of their first update or, if there is a graph, by its edges. In some
    rounds the clients receive the averages for several k and both sources, and w̄, and report the loss of each on their
    validation samples. The simplest candidate whose mean loss is within one standard error of the lowest becomes the
    start of all clients. In the same way it is decided whether a client uses sᵢ or its own model wᵢ after its steps.

    Clients hold out validation samples (`partition.validation`). In a round without a comparison a client receives and
    sends one model, as in FedAvg.
    """

    validates: ClassVar[bool] = True

    @property
    def is_personal(self) -> bool:
        return True

    def start(self, model: Tensor, round: Round) -> ServerState:
        choice = model.new_zeros(*model.shape[:-1], len(candidates(round)))
        choice[..., 0] = 1  # w̄
        return {
            "model": model,
            "models": ClientRows(model),
            **no_directions(model, round.clients),
            "choice": choice,
            "tuned": model.new_zeros(*model.shape[:-1], 1),
        }

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def send(self, server: ServerState, round: Round) -> Tensors:
        """The start sᵢ, whether clients use their own models, and in some rounds all candidates."""
        choosing, start = is_choosing(round.number), torch.zeros(())
        got: Tensors = {"tuned": round.spread(server["tuned"])}
        for place, (source, neighbours) in enumerate(candidates(round)):
            chosen = server["choice"][..., place : place + 1]
            if not (choosing or bool(chosen.any())):
                continue
            u = round.spread(server["model"]) if place == 0 else kin_average(server, round, source, neighbours)
            start = u if bool(chosen.all()) else start + chosen * u if bool(chosen.any()) else start
            if choosing:
                got[f"candidate {place}"] = u
        return {"model": start, **got}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        start = {"model": got["model"]}
        names = [name for name in got if name.startswith("candidate ")]
        if not names:
            return start, {}
        each = [losses.held_out(models) for models in (*(got[name] for name in names), memory["own"])]
        return start, {"losses": torch.cat(each, dim=-1)}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, **memory}, {"own": w}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        new = {
            **server,
            **super().combine(server, replies, round),
            **learn_directions(server, replies, round),
            "models": server["models"].updated(round.who, replies["model"]),
        }
        if "losses" in replies and len(round) > 1:
            new["choice"], new["tuned"] = choose_start(replies["losses"])
        return new

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return torch.where(got["tuned"] > 0, memory["own"], got["model"])

    def kin_weights(self, server: ServerState, round: Round) -> csr_array | None:
        source, neighbours = candidates(round)[int(server["choice"].argmax())]
        if source == "global":
            return None
        return csr_array(kin_weights(server, round, source, neighbours, np.arange(round.clients))[0])

    def invite(self, server: ServerState, round: Round) -> Tensors | None:
        by_updates = torch.tensor([source == "updates" for source, _ in candidates(round)])
        if not bool((server["choice"][..., by_updates] > 0).any()):
            return None
        return self.send(self.start(server["first"], round), round)

    def welcome(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        return place_newcomers(server, replies, round)

    def notes(self, server: ServerState, round: Round) -> Record:
        source, neighbours = candidates(round)[int(server["choice"].argmax())]
        return {
            "start": "global" if source == "global" else f"{neighbours} nearest by {source}",
            "uses": "own" if bool(server["tuned"] > 0) else "start",
        }


def choose_start(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Which candidate clients start from, as a one-hot vector (…, 1, J), and whether they use their own models.

    losses  (…, m, J + 1) of the candidates, the simplest first, and of the clients' own models

    A candidate is as good as the best if its mean excess over it is at most one standard error of the excess.
    """
    starts, own = losses[..., :-1], losses[..., -1:]
    best = starts.mean(-2, keepdim=True).argmin(-1, keepdim=True).expand(*starts.shape[:-1], 1)
    excess = starts - starts.gather(-1, best)
    mean, error = _mean_and_error(excess)
    first = (mean <= error).int().argmax(-1, keepdim=True)
    choice = torch.zeros_like(mean).scatter_(-1, first, 1.0)
    gain, error = _mean_and_error(starts.gather(-1, first.expand(*starts.shape[:-1], 1)) - own)
    return choice, (gain > error).to(losses.dtype)


def _mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over clients, (…, 1, J), and its standard error."""
    return values.mean(-2, keepdim=True), values.std(-2, keepdim=True) / values.shape[-2] ** 0.5
