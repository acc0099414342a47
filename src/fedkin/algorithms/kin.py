"""Kin: FedKin that finds out by itself which clients are kin, and whether that helps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Losses, ServerState, Vector, Vectors
from fedkin.algorithms.choosing import Halves, client_choices, common_choice
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
from fedkin.types import Integers, Record, Tensors

USES = ("start", "own", "alone")  # models that a client may use, the simplest first
START, OWN, ALONE = range(3)
TOLERANCE = 4.0  # standard errors within which a simpler start is as good, if it is not the model that is used
LEAST_SHARE = 0.1  # a candidate that so many clients start from is compared again


class Candidate(NamedTuple):
    """A start: κ uᵢ + (1 − κ) w̄, where uᵢ averages the k nearest by a source; k = 0 is w̄."""

    source: str = "global"
    neighbours: int = 0
    kappa: float = 0.0

    def __str__(self) -> str:
        words = f"{self.neighbours} nearest by {self.source}"
        return "global" if not self.neighbours else words if self.kappa == 1 else f"half way to {words}"


def candidates(round: Round) -> list[Candidate]:
    """All averages that clients may start from, the simplest first: w̄, then fewer and fewer nearest clients'."""
    sizes = [k for k in (64, 32, 16, 8, 4, 2) if k <= MOST_KIN and 2 * k <= round.clients]
    sources = ("updates", "data", "both") if round.graph.has_edges else ("updates",)
    return [Candidate(), *(Candidate(source, k, kappa) for k in sizes for kappa in (0.5, 1.0) for source in sources)]


def first_offers(every: Sequence[Candidate]) -> list[int]:
    """Places of the candidates that are compared at first: w̄, and every other k of the two sources."""
    sizes = sorted({c.neighbours for c in every if c.neighbours}, reverse=True)[::2]
    return [
        place
        for place, c in enumerate(every)
        if not c.neighbours or (c.neighbours in sizes and c.kappa == 1 and c.source != "both")
    ]


def further_offers(every: Sequence[Candidate], best: int, chosen: Sequence[int]) -> list[int]:
    """Places of the candidates that are compared next.

    best    the best candidate besides w̄ in the last comparison; those that differ from it in one respect are offered
    chosen  candidates in use
    """
    source, k, kappa = every[best]
    beside = [Candidate(source, 2 * k, kappa), Candidate(source, k // 2, kappa), Candidate(source, k, 1.5 - kappa)]
    beside += [Candidate(other, k, kappa) for other in ("updates", "data", "both")]
    return sorted({0, best, *chosen, *(every.index(one) for one in beside if one in every)})


def is_choosing(round: int) -> bool:
    """Whether candidates are compared in a round: 1, 2, 3, 4, 6, 8, 12, 16, 24, …, less and less often."""
    return round > 0 and any(round == odd << round.bit_length() - odd.bit_length() for odd in (1, 3))


@dataclass(frozen=True, kw_only=True)
class Kin(Algorithm):
    """FedAvg in which every client starts its round at sᵢ = κ uᵢ + (1−κ) w̄, where uᵢ averages its kin's last models.

    Kin are the k nearest clients by the direction of their first update, by the edges of the graph if there is one, or
    by both. In some rounds the clients receive several candidates for their start, and report the loss of each on their
    validation samples. The simplest candidate whose mean loss is within one standard error of the lowest becomes the
    start of all clients, but for those whose own samples say otherwise (`fedkin.algorithms.choosing`). In the same way
    it is decided which model a client uses: sᵢ, its model wᵢ after its steps, or vᵢ, which it trains by itself alone:

        w ← w − γ ∇fᵢ(w) from sᵢ        v ← v − γ ∇fᵢ(v) from its last v

    Clients hold out validation samples (`partition.validation`). In a round without a comparison a client receives and
    sends one model, as in FedAvg.
    """

    validates: ClassVar[bool] = True

    @property
    def is_personal(self) -> bool:
        return True

    def start(self, model: Tensor, round: Round) -> ServerState:
        every = candidates(round)
        offered = torch.zeros(*model.shape[:-1], len(every), dtype=torch.bool)
        offered[..., first_offers(every)] = True
        return {
            "model": model,
            "models": ClientRows(model),
            **no_directions(model, round.clients),
            "offered": offered,  # candidates of the next comparison
            # Start and use of all clients, and of those that differ from it; −1 where they do not.
            "common": torch.zeros(*model.shape[:-1], 2, dtype=torch.int64),
            "choices": ClientRows(torch.full((*model.shape[:-1], 2), -1)),
        }

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model, "alone": model}

    def send(self, server: ServerState, round: Round) -> Tensors:
        """The start sᵢ, which model the client uses, and in some rounds candidates."""
        chosen = chosen_by(server, round)
        got = {"model": self._average(server, round, chosen[..., 0]), "use": chosen[..., 1:].to(server["model"])}
        if is_choosing(round.number):
            for place in _offered(server):
                everywhere = torch.full_like(chosen[..., 0], place)
                got[f"candidate {place}"] = self._average(server, round, everywhere)
        return got

    def _average(self, server: ServerState, round: Round, starts: Tensor) -> Tensor:
        """The candidate of each client, (…, m) → (…, m, P)."""
        if not bool(starts.any()):
            return round.spread(server["model"])
        return kin_average(server, start_weights(server, round, starts, server["models"].owners))

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        models = [value for name, value in got.items() if name.startswith("candidate ")]
        kept = {"alone": memory["alone"]}
        if not models:
            return {"model": got["model"]}, kept
        each = [losses.held_out(one) for one in (*models, memory["own"], memory["alone"])]
        halves = torch.stack(each, dim=-2)  # (…, m, J + 2, 3)
        numbers = torch.cat([halves[..., 0], halves[..., 1], halves[..., 0, 2:]], dim=-1)
        return {"model": got["model"]}, {**kept, "losses": numbers}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        alone = memory["alone"]
        return w - self.step_size * gradient(w), {**memory, "alone": alone - self.step_size * gradient(alone)}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        sent = {name: value for name, value in memory.items() if name == "losses"}
        return {"model": w, **sent}, {"own": w, "alone": memory["alone"]}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        new = {
            **server,
            **super().combine(server, replies, round),
            **learn_directions(server, replies, round),
            "models": server["models"].updated(round.who, replies["model"]),
        }
        return {**new, **self._choose(server, replies["losses"], round)} if "losses" in replies else new

    def _choose(self, server: ServerState, numbers: Tensor, round: Round) -> ServerState:
        """Start and use by the losses that clients report."""
        if len(round) < 2:
            return {}
        places = torch.tensor(_offered(server))
        halves = Halves.unpacked(numbers)
        offered = server["offered"][..., places]
        columns = torch.arange(len(places)).expand(*numbers.shape[:-1], -1)
        starts = halves.only(columns)
        common = common_choice(starts, offered)
        mine = client_choices(starts, offered, common)
        last = torch.tensor([len(places), len(places) + 1]).expand(*numbers.shape[:-1], -1)
        models = halves.only(torch.cat([mine, last], dim=-1))
        all_uses = torch.ones(*offered.shape[:-1], len(USES), dtype=torch.bool)
        use = common_choice(models, all_uses)
        uses = client_choices(models, all_uses, use)
        # Where models are used after their local steps, starts differ less than their own losses say.
        wide = common_choice(starts, offered, TOLERANCE)
        common, mine = torch.where(use == START, common, wide), torch.where(use == START, mine, wide)
        both = torch.cat([places[common], use], dim=-1)
        own = torch.cat([places[mine], uses], dim=-1)
        return {
            "offered": self._next_offers(server, round, starts.mean.mean(-2), offered, own[..., 0]),
            "common": both,
            "choices": server["choices"].updated(round.who, torch.where(own == both, -1, own)),
        }

    def _next_offers(
        self, server: ServerState, round: Round, losses: Tensor, offered: Tensor, starts: Tensor
    ) -> Tensor:
        """Which candidates are compared next time, (…, 1, all)."""
        every, places = candidates(round), _offered(server)
        following = torch.zeros_like(server["offered"])
        lanes = following.reshape(-1, len(every))
        rows = zip(lanes, losses.reshape(len(lanes), -1), offered.reshape(len(lanes), -1), strict=True)
        for (lane, mean, there), mine in zip(rows, starts.reshape(len(lanes), -1), strict=True):
            if len(every) > 1:
                best = places[1 + int(torch.where(there, mean, torch.inf)[1:].argmin())]
                counts = Counter(mine.tolist())
                chosen = [place for place, count in counts.items() if count >= LEAST_SHARE * len(mine)]
                lane[further_offers(every, best, chosen)] = True
            lane[0] = True
        return following

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        models = torch.where(got["use"] == OWN, memory["own"], got["model"])
        return torch.where(got["use"] == ALONE, memory["alone"], models)

    def kin_weights(self, server: ServerState, round: Round) -> csr_array | None:
        starts = chosen_by(server, round)[..., 0]
        return csr_array(start_weights(server, round, starts, np.arange(round.clients))[0]) if starts.any() else None

    def invite(self, server: ServerState, round: Round) -> Tensors | None:
        every = candidates(round)
        if not any(every[place].source in ("updates", "both") for place in np.unique(server["common"][..., 0])):
            return None
        return self.send(self.start(server["first"], round), round)

    def welcome(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        return place_newcomers(server, replies, round)

    def notes(self, server: ServerState, round: Round) -> Record:
        every, (start, use) = candidates(round), server["common"].flatten().tolist()
        record: Record = {"start": str(every[start]), "uses": USES[use]}
        rows: ClientRows = server["choices"]
        if len(rows) and bool((rows.values >= 0).any()):
            differ = [chosen for chosen in self.client_notes(server, round) if chosen != record]
            record["others"] = dict(Counter(f"{one['start']}, {one['uses']}" for one in differ).most_common())
        return record

    def client_notes(self, server: ServerState, round: Round) -> list[Record]:
        every = candidates(round)
        return [{"start": str(every[start]), "uses": USES[use]} for start, use in chosen_by(server, round).tolist()]


def chosen_by(server: ServerState, round: Round) -> Tensor:
    """Start and use of each client of a round, (…, m, 2). A newcomer has not trained alone: it uses its own model."""
    rows: Tensor = server["choices"].at(round.who)
    chosen = torch.where(rows >= 0, rows, server["common"])
    if round.shares is None:
        return chosen
    start, use = chosen[..., :1], chosen[..., 1:]
    new = torch.from_numpy(round.shares[round.who] == 0).unsqueeze(-1)
    return torch.cat([start, torch.where(new, use.clamp(max=OWN), use)], dim=-1)


def start_weights(server: ServerState, round: Round, starts: Tensor, among: Integers) -> list[csr_array]:
    """Weights of the clients `among` in the starts of the round's clients, (m, n), for each lane; w̄ has the rest.

    starts  the candidate of each client, (…, m)
    """
    every, lanes = candidates(round), starts.reshape(-1, len(round)).numpy()
    made: dict[int, list[csr_array]] = {}
    for place in np.unique(lanes).tolist():
        source, neighbours, kappa = every[place]
        if neighbours:
            found = kin_weights(server, round, source, neighbours, among)
            made[place] = [kappa * csr_array(rows) for rows in found] * (len(lanes) // len(found))
    nothing = csr_array((len(round), len(among)))
    return [
        sum((diags_array((lane == place).astype(float)) @ rows[number] for place, rows in made.items()), start=nothing)
        for number, lane in enumerate(lanes)
    ]


def _offered(server: ServerState) -> list[int]:
    """Places of the candidates that some lane compares; each lane chooses among its own."""
    offered: Tensor = server["offered"]
    return torch.nonzero(offered.reshape(-1, offered.shape[-1]).any(0)).flatten().tolist()
