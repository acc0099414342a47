"""Bytes that the server and its clients exchange, counted from the shapes of what `send` and `reply` return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedkin.algorithms.base import Algorithm, ServerState, row_bytes, trial
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import lane_of
from fedkin.types import Record


@dataclass(frozen=True)
class Traffic:
    """Bytes that the server sends to a sampled client in a round (`down`), and receives from it (`up`).

    Not counted: the message for the similarity graph, once, and losses that an algorithm asks for in `select`.
    """

    down: int
    up: int
    clients: int

    def record(self) -> Record:
        """The entries of the record of a round."""
        return {"sampled": self.clients, "bytes_down": self.down, "bytes_up": self.up}


def traffic_of(algorithm: Algorithm, down: int, up: int, clients: int) -> Traffic:
    """Traffic of a round; none if the clients ignore what the server sends."""
    return Traffic(down, up, clients) if algorithm.exchanges else Traffic(0, 0, clients)


def lane_traffic(
    algorithm: Algorithm, server: ServerState, memory: Mapping[str, Any], round: Round, clients: int, lane: int
) -> Traffic:
    """Traffic of a run that is a lane of a group, as if it were executed alone: found by a dry run of one client.

    round    the round with one client
    clients  number of sampled clients
    """
    own, kept = lane_parts(algorithm, server, memory, round, lane)
    rows = {name: value.at(round.who) for name, value in kept.items()}
    names = algorithm.remember(own["model"])
    got = algorithm.send(own, round)
    up = trial(algorithm, got, {name: rows[name] for name in names}).bytes_up
    return traffic_of(algorithm, row_bytes(got), up, clients)


def lane_parts(
    algorithm: Algorithm, server: ServerState, memory: Mapping[str, Any], round: Round, lane: int
) -> tuple[ServerState, dict[str, Any]]:
    """What the server and the clients of one lane keep: the names that its own algorithm has."""
    names = algorithm.start(torch.zeros(1, 1), round)
    own = {name: lane_of(server[name], lane) for name in names}
    return own, {name: lane_of(rows, lane) for name, rows in memory.items()}
