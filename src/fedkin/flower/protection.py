"""Differential privacy on Flower: noise of the server or of the nodes, from the entropy of the operating system.

The noise of a simulation follows from its seed, and whoever knows the seed can subtract it. Here every draw has
a secret seed of its own.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedkin.algorithms import Round
from fedkin.engine.accounting import Release, epsilon_of
from fedkin.engine.privacy import Privacy
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Integers, Record


def secret(round: Round) -> Round:
    """The same round with random numbers that nobody can repeat."""
    return replace(round, seed=secrets.randbits(128))


def upload_of(model: Tensor, start: Tensor, clip: float, noise: float) -> Tensor:
    """The model of a node, (1, P), as it leaves the node: clipped, and with noise of standard deviation noise·clip."""
    one = Round(0, np.zeros(1, dtype=np.int64), np.ones(1), SimilarityGraph.edgeless(1), 1)
    return Privacy(clip=clip, noise=noise, where="clients").uploads(model, start, secret(one), 1)


class Protection:
    """What the server of a run does for the privacy of its clients.

    privacy    with the noise that is used; None without privacy
    rate       q of the current round
    expected   M of the current round
    """

    def __init__(self, privacy: Privacy | None) -> None:
        self.planned = self.privacy = privacy
        self.rate, self.expected = 1.0, 0

    @property
    def by_chance(self) -> bool:
        """Whether nodes are sampled one by one, and the server adds the noise."""
        return self.privacy is not None and self.privacy.samples_by_chance

    def begin(self, rounds: int, rate: float) -> None:
        """Find the noise of a run of so many rounds."""
        self.privacy = None if self.planned is None else self.planned.found(rounds, rate)

    @property
    def largest(self) -> float:
        """An entry of an upload that is hardly ever exceeded."""
        if self.privacy is None:
            return 0.0
        noise = self.privacy.noise / (math.sqrt(self.expected) if self.privacy.where == "shares" else 1.0)
        return float(self.privacy.clip * (1 + 6 * noise))

    def sampled(self, round: Round) -> Integers:
        """A Poisson sample of the available clients."""
        assert self.privacy is not None
        self.expected = min(round.take_part or len(round), len(round))
        self.rate = self.expected / len(round)
        return self.privacy.sampled(secret(round), self.rate)

    def asked_of(self, nodes: int) -> Record:
        """What nodes are asked to do with their uploads, if so many are sampled."""
        if self.privacy is None or self.by_chance:
            return {}
        self.expected = nodes
        share = 1.0 if self.privacy.where == "clients" else 1 / math.sqrt(max(nodes, 1))
        return {"clip": float(self.privacy.clip), "noise": float(self.privacy.noise * share)}

    def summed(self, models: Tensor, start: Tensor, round: Round) -> Tensor:
        """The models (m, P) as the server averages them."""
        if self.privacy is None or not self.by_chance:
            return models
        return self.privacy.uploads(models, start.expand_as(models), secret(round), self.expected)

    def record(self, before: Sequence[Record], replies: int, attempts: int) -> Record:
        """What a round with so many replies has released, and ε with the rounds before it; nothing without noise.

        attempts  how often nodes were asked: what they send to a server that is not trusted counts every time
        """
        if self.privacy is None or not self.privacy.noise:
            return {}
        (mine, *messages) = self.privacy.releases(1, self.rate)
        if self.privacy.where == "shares":  # of nodes that were lost there is no noise
            mine = mine._replace(noise=mine.noise * math.sqrt(replies / self.expected))
        if not self.by_chance:
            mine = mine._replace(times=attempts)
        known = [Release(*one["release"]) for one in before if "release" in one]
        spent = epsilon_of([*known, mine, *messages], self.privacy.delta)
        return {"release": list(mine), "epsilon": round(spent, 6)}

    def summary(self, records: Sequence[Record]) -> Record:
        """The entry of summary.json."""
        if self.privacy is None or not self.privacy.noise:
            return {}
        releases = [Release(*one["release"]) for one in records if "release" in one]
        return self.privacy.summary([*releases, *self.privacy.messages])
