"""Differential privacy: uploads that are clipped and get noise, and what that guarantees.

Of every sampled client's model wᵢ, which began at w̄, counts w̄ + (wᵢ − w̄)·min(1, C/‖wᵢ − w̄‖). The noise is Gaussian,
with a standard deviation of σC for each number, and what it is added to depends on who is trusted:

    where      noise is added to                  who may see all but the noise    ε with noise σ, T rounds
    server     the sum, by the server             the server                       T sums of a sample, rate q, noise σ
    shares     the sum, a share by every client   nobody; the server sees sums     T sums, noise σ
    clients    every upload, by its client        nobody                           T uploads, noise σ/2
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Averaging, Round
from fedkin.algorithms.lanes import side_by_side
from fedkin.engine.accounting import Release, epsilon_of, noise_for
from fedkin.engine.aggregation import check_only_average
from fedkin.errors import BadInput, Unsuitable
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers, Record

PLACES = ("server", "shares", "clients")


@dataclass(frozen=True)
class Privacy:
    """What protects the clients of a run.

    clip           C > 0, the largest ‖wᵢ − w̄‖ that counts
    noise          σ ≥ 0, standard deviation of the noise in units of C (0: none, and no guarantee)
    epsilon        in place of `noise`: ε that the run may have, for which the least noise is found
    delta          δ, the probability with which ε may fail; below 1/clients
    where          `server`, `shares` or `clients`: where noise is added, see above
    message_noise  with `clients`: standard deviation of the noise on each number of the messages of the graph
    runs           number of runs on the same data, tuning included, that `epsilon` is for
    rounds         number of rounds that `epsilon` is for (0: those of the run)
    lanes          the members, if it stands for several runs that are executed together

    Two federations are neighbours if they differ in one client with all its data. With `server`, one has a client that
    the other lacks: a sum of clipped updates changes by at most C. With `shares`, that client's update counts or is 0:
    again at most C. With `clients`, its data are any others: an upload changes by at most 2C, a message by at most 2.

    >>> Privacy(clip=1.0, noise=5.0).releases(rounds=30, rate=0.3)
    [Release(noise=5.0, rate=0.3, times=30)]
    """

    clip: Any = math.inf
    noise: Any = 0.0
    epsilon: float | None = None
    delta: float = 1e-5
    where: str = "server"
    message_noise: float = 0.0
    runs: int = 1
    rounds: int = 0
    lanes: tuple["Privacy", ...] = ()

    def __post_init__(self) -> None:
        if self.lanes:
            return
        if self.where not in PLACES:
            raise BadInput(f"unknown where '{self.where}': choose {', '.join(PLACES)}")
        for name, good in (
            ("clip", self.clip > 0),
            ("noise", self.noise >= 0 and math.isfinite(self.noise)),
            ("epsilon", self.epsilon is None or (self.epsilon > 0 and math.isfinite(self.epsilon))),
            ("delta", 0 < self.delta < 1),
            ("message_noise", self.message_noise >= 0 and math.isfinite(self.message_noise)),
            ("runs", self.runs >= 1),
            ("rounds", self.rounds >= 0),
        ):
            if not good:
                raise BadInput(f"privacy: {name} = {getattr(self, name):g} is out of range: see docs/privacy.md")
        if self.noise and self.epsilon is not None:
            raise BadInput("privacy has noise and epsilon, for which noise is found: leave out one of them")
        if not math.isfinite(self.clip) and (self.noise or self.epsilon is not None):
            raise BadInput("noise protects clients only if what they send is bounded: set privacy.clip, such as 1.0")
        if self.message_noise and self.where != "clients":
            raise BadInput("privacy.message_noise protects messages from the server: set privacy.where = 'clients'")

    # -- a run ---------------------------------------------------------------------------------------------------------

    def found(self, rounds: int, rate: float) -> "Privacy":
        """With the noise for `epsilon`, if that is given."""
        if self.epsilon is None:
            return self
        if self.rounds and self.rounds < rounds:
            raise BadInput(f"privacy.rounds = {self.rounds} is less than the {rounds} of the run: raise it")
        times = self.runs * (self.rounds or rounds)
        one = replace(self, noise=1.0, epsilon=None).releases(times, rate)[0]
        messages = [message._replace(times=self.runs) for message in self.messages]
        least = noise_for(self.epsilon, self.delta, one.rate, times, messages)
        return replace(self, noise=least / one.noise, epsilon=None)

    @property
    def samples_by_chance(self) -> bool:
        """Whether every client is sampled by itself, with probability q, as the accountant assumes."""
        return self.where == "server"

    def sampled(self, round: Round, rate: float) -> Integers:
        """A Poisson sample of the clients of a round: each with probability q."""
        return round.who[round.random("select").random(len(round)) < rate]

    def uploads(self, models: Tensor, starts: Tensor, round: Round, expected: int) -> Tensor:
        """The models (…, m, P) as the server averages them: clipped, and with noise.

        starts    where the clients began, (…, m, P)
        expected  M, the number of clients that are sampled on average

        With `server` the clients' weights are equal, and the sum is divided by M, whatever the size of the sample:
        rows are scaled by m/M, so that their mean is the sum of the updates divided by M. The server's noise is the
        same in all rows. A model that is not finite counts as no update.
        """
        moved = models - starts
        length = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
        is_sound = torch.isfinite(length)
        share = len(round) / expected if self.samples_by_chance else 1.0
        factor = torch.where(is_sound, (self.clip / length).clamp(max=1) * share, 0.0)
        # To the bit the model itself if nothing is clipped. What is clipped is added to the start: of a huge update,
        # digits would be lost that are larger than C.
        kept = torch.where(factor == 1, models, starts + torch.where(is_sound, factor * moved, 0.0))
        noisy: Tensor = kept + self._noise(kept, round, expected)
        return noisy

    def _noise(self, models: Tensor, round: Round, expected: int) -> Any:
        """The noise in each row: the same for all rows by the server, one of their own by the clients."""
        if isinstance(self.noise, float) and self.noise == 0:
            return 0.0
        size = models.shape[-1]
        if self.samples_by_chance:
            drawn = round.random("privacy").standard_normal((1, size))
            return self.noise * self.clip / expected * models.new_tensor(drawn)
        rows = np.stack([round.random("privacy", client).standard_normal(size) for client in round.who.tolist()])
        share = 1.0 if self.where == "clients" else 1 / math.sqrt(len(round))
        return self.noise * self.clip * share * models.new_tensor(rows)

    # -- what it is worth ----------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Release]:
        """The messages of the graph, if they have noise: unit vectors, which differ by at most 2."""
        return [Release(self.message_noise / 2)] if self.message_noise else []

    def releases(self, rounds: int, rate: float) -> list[Release]:
        """What has been released after so many rounds, to whom the noise protects from; nothing without noise."""
        if not self.noise:
            return []
        noise, rate = (self.noise, rate) if self.samples_by_chance else (self.noise, 1.0)
        return [Release(noise / 2 if self.where == "clients" else noise, rate, rounds), *self.messages]

    def summary(self, releases: Sequence[Release]) -> Record:
        """The entry of summary.json."""
        if not releases:
            return {}
        spent = epsilon_of(releases, self.delta)
        about = {"epsilon": spent, "delta": self.delta, "where": self.where, "clip": self.clip, "noise": self.noise}
        return {"privacy": {**about, "releases": [list(one) for one in releases]}}


def stacked_privacy(members: Sequence[Privacy | None]) -> Privacy | None:
    """The privacy of runs that are executed together, which may differ in clip and noise."""
    known = [member for member in members if member is not None]
    if not known or len(known) == 1:
        return known[0] if known else None
    clip, noise = (side_by_side([getattr(member, name) for member in known]) for name in ("clip", "noise"))
    return replace(known[0], clip=clip, noise=noise, lanes=tuple(known))


def check_privacy(
    privacy: Privacy | None,
    rule: Averaging,
    algorithm: Algorithm,
    graph: SimilarityGraph,
    weights: Floats,
    sizes: Integers,
) -> None:
    """Refuse what the accountant does not cover.

    rule     how the server averages models
    weights  averaging weights of the clients that may be sampled, (C,)
    sizes    their numbers of samples, (C,)
    """
    if privacy is None or privacy.lanes:  # whose members have been checked
        return
    if not privacy.noise and privacy.epsilon is None and not math.isfinite(privacy.clip):
        return
    if not rule.is_mean:
        raise BadInput("noise is measured for the mean: leave out privacy, or another rule of aggregation")
    if privacy.delta >= 1 / len(sizes) and (privacy.noise or privacy.epsilon is not None):
        raise BadInput(
            f"privacy.delta = {privacy.delta:g} is not below 1/{len(sizes)}: with it all that one of the {len(sizes)} "
            "clients sends could be published; choose a smaller one"
        )
    if privacy.where == "clients":
        if not algorithm.sends_only_model:
            raise Unsuitable(
                f"clients of {type(algorithm).__name__} send more than their models, which get noise alone: "
                "use FedAvg, FedProx or FedKin, say"
            )
    else:
        check_only_average(algorithm, graph, "privacy protects")
    is_equal = np.allclose(weights, weights.mean(), rtol=1e-9)
    if not is_equal and (privacy.where != "clients" or np.allclose(weights / weights.sum(), sizes / sizes.sum())):
        raise BadInput(
            "privacy needs equal weights, as numbers of samples are data of the clients, and with them one client may "
            "be most of the sum: set graph.weights = 'uniform'"
        )


def check_messages(privacy: Privacy, kind: str) -> None:
    """Refuse a graph for which clients would send their messages to a server that is not trusted."""
    untrusted = privacy.where != "server" and (privacy.noise or privacy.epsilon is not None)
    if untrusted and kind in ("similarity", "shuffled") and not privacy.message_noise:
        way = "set privacy.message_noise, or " if privacy.where == "clients" else ""
        raise BadInput(f"messages of the {kind} graph are not protected: {way}set graph.kind = 'global'")
