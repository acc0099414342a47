"""FedAvg with clients that are not sampled uniformly: power-of-choice."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms.base import Losses, ServerState
from fedkin.algorithms.family import FedAvg
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.errors import BadInput
from fedkin.types import Integers, Tensors


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(FedAvg):
    """FedAvg with the M clients of the largest losses fᵢ(x) among d candidates, drawn by weight (Cho et al. 2020).

    candidates  d; at least M are drawn, and 0 draws 2 M
    losses      `exact`: the candidates are asked for fᵢ(x) in every round; `stale`: the losses that clients reported
                when they were last sampled, of the model they received then, which takes no further message. A client
                that was never sampled counts as the one with the largest loss.

    All clients are sampled if M is not given: then it is FedAvg. Runs are executed one after another, not as lanes:
    these share the sampled clients and their batches, while here each run selects clients of its own. Were all clients
    that any of L lanes selects to work in every lane, it could be L times the work.
    """

    candidates: int = 0
    losses: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 0:
            raise BadInput(f"candidates = {self.candidates} is out of range: it must be at least 0")
        if self.losses not in ("exact", "stale"):
            raise BadInput(f"unknown losses '{self.losses}': choose exact or stale")

    def start(self, model: Tensor, round: Round) -> ServerState:
        known = ClientRows(model.new_full((*model.shape[:-1], 1), torch.inf))
        return {"model": model, **({"losses": known} if self.losses == "stale" else {})}

    def select(self, server: ServerState, round: Round, losses: Callable[[Tensor, Integers], Tensor]) -> Integers:
        most = round.take_part
        if most is None or most >= len(round):
            return round.who
        count = min(max(self.candidates or 2 * most, most), len(round))
        drawn = np.sort(round.random("candidates").choice(round.who, count, replace=False, p=round.weights))
        known = server["losses"].at(drawn) if self.losses == "stale" else losses(server["model"], drawn)
        order = np.argsort(-known.flatten().cpu().numpy(), kind="stable")
        return np.sort(drawn[order[:most]])

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        return got, {"loss": losses.mean(got["model"])} if self.losses == "stale" else memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, **memory}, {}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        known = {"losses": server["losses"].updated(round.who, replies["loss"])} if self.losses == "stale" else {}
        return {**super().combine(server, replies, round), **known}
