"""The contenders of one federation in order, and their differences from the best."""

import math
from dataclasses import dataclass
from functools import cached_property

from fedkin.reports.answer.contenders import Contender, Field
from fedkin.reports.answer.intervals import Difference, paired_difference
from fedkin.reports.answer.scores import Score
from fedkin.reports.selection import ALONE

FINE_TUNED, FEDAVG = "finetuned", "fedavg"
SPOKEN_BASELINES = {FINE_TUNED: "fine-tuned FedAvg", ALONE: "training alone", FEDAVG: "FedAvg"}


@dataclass(frozen=True)
class BetterAlone:
    """Clients whose model trained alone is better than that of a method.

    by_client  number of seeds in which that is so, by the client's name; only clients of which it is so at all
    pairs      number of pairs of client and seed
    seeds      number of seeds
    """

    by_client: dict[str, int]
    pairs: int
    seeds: int

    @property
    def count(self) -> int:
        """Number of pairs of client and seed in which it is so."""
        return sum(self.by_client.values())

    @property
    def share(self) -> float:
        """Their share."""
        return self.count / self.pairs if self.pairs else math.nan


@dataclass(frozen=True)
class Ranking:
    """Contenders in order, the best first; references apart."""

    order: tuple[Contender, ...]
    references: tuple[Contender, ...]
    score: Score

    @property
    def best(self) -> Contender:
        """The contender with the best mean."""
        return self.order[0]

    @cached_property
    def behind(self) -> dict[str, Difference]:
        """How much better the best is than each other contender, by label."""
        rest = [*self.order[1:], *self.references]
        return {other.label: difference(self.best, other, self.score) for other in rest}

    @property
    def tied(self) -> list[Contender]:
        """Contenders from which the best has no measurable difference."""
        return [other for other in self.order[1:] if self.behind[other.label].is_tie]

    def first_of(self, algorithm: str) -> Contender | None:
        """The best contender of an algorithm."""
        return next((one for one in self.order if one.algorithm == algorithm), None)

    def better_alone(self, contender: Contender) -> BetterAlone | None:
        """The clients that would be better off alone than with a method; None if that is not known."""
        alone = self.first_of(ALONE)
        if alone is None or contender.algorithm == ALONE or contender.reference:
            return None
        found: dict[str, int] = {}
        pairs = seeds = 0
        for _, own, by_itself in shared_clients(contender, alone):
            seeds += 1
            for name, value in own.items():
                pairs += 1
                if self.score.sign * (by_itself[name] - value) > 0:
                    found[name] = found.get(name, 0) + 1
        return BetterAlone(found, pairs, seeds) if pairs else None


def ranked(field: Field) -> Ranking | None:
    """The ranking of a field; None if it has no contender that is a federated method."""
    sign = field.score.sign
    order = sorted((c for c in field.contenders if not c.reference), key=lambda c: -sign * c.mean)
    references = sorted((c for c in field.contenders if c.reference), key=lambda c: -sign * c.mean)
    return Ranking(tuple(order), tuple(references), field.score) if order else None


def shared_clients(a: Contender, b: Contender) -> list[tuple[str, dict[str, float], dict[str, float]]]:
    """For each seed that both have, the values of the clients that both have."""
    found = []
    for seed in a.clients:
        if seed in b.clients:
            names = [name for name in a.clients[seed] if name in b.clients[seed]]
            found.append((seed, {n: a.clients[seed][n] for n in names}, {n: b.clients[seed][n] for n in names}))
    return found


def difference(a: Contender, b: Contender, score: Score) -> Difference:
    """How much better a is than b, with an interval over what they have in common.

    Over seeds if they share two or more, one difference a seed. Else over clients, one difference a client with its
    number of testing samples as weight, as in the score. Else there is no interval.
    """
    seeds = [
        seed for seed, value in a.values.items() if math.isfinite(value) and math.isfinite(b.values.get(seed, math.nan))
    ]
    if len(seeds) > 1:
        return paired_difference([score.sign * (a.values[seed] - b.values[seed]) for seed in seeds], "seeds")
    for seed, own, other in shared_clients(a, b):
        known = a.samples.get(seed, {})
        weights = [known[name] for name in own] if all(name in known for name in own) else None
        each = [score.sign * (own[name] - other[name]) for name in own]
        if len(each) > 1:
            return paired_difference(each, "clients", weights)
    return Difference(score.sign * (a.mean - b.mean))
