"""Bytes that the server and its clients exchange, counted from the shapes of what `send` and `reply` return."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedkin.algorithms.base import Algorithm, ServerState, row_bytes, trial
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import lane_of
from fedkin.types import Record


@dataclass(frozen=True)
class Traffic:
    """Bytes that the server sends to a sampled client in a round (`down`), and receives from it (`up`).

    asked_down, asked_up  bytes to and from all clients whose losses were asked for in `select`

    Not counted: the message for the similarity graph, once.
    """

    down: int
    up: int
    clients: int
    asked_down: int = 0
    asked_up: int = 0

    def needed(self, down: bool, up: bool) -> "Traffic":
        """Only what the clients and the server need: see `Algorithm.exchanges`."""
        return replace(self, down=self.down if down else 0, up=self.up if up else 0)

    def record(self) -> Record:
        """The entries of the record of a round."""
        asked = {"asked_bytes_down": self.asked_down, "asked_bytes_up": self.asked_up} if self.asked_down else {}
        return {"sampled": self.clients, "bytes_down": self.down, "bytes_up": self.up, **asked}


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
    return Traffic(row_bytes(got), up, clients)


def lane_parts(
    algorithm: Algorithm, server: ServerState, memory: Mapping[str, Any], round: Round, lane: int
) -> tuple[ServerState, dict[str, Any]]:
    """What the server and the clients of one lane keep: the names that its own algorithm has."""
    names = algorithm.start(torch.zeros(1, 1), round)
    own = {name: lane_of(server[name], lane) for name in names}
    return own, {name: lane_of(rows, lane) for name, rows in memory.items()}
