"""Sections of the settings that are about the server: how it averages models, and what protects the clients."""

import math
from typing import Literal

from pydantic import Field, model_validator

from fedkin.algorithms.averaging import MEAN, Averaging, Krum, Median, TrimmedMean
from fedkin.engine.privacy import Privacy
from fedkin.experiments.data_sections import MOST, Section


class Aggregation(Section):
    """How the server averages the clients' models.

    rule       mean (weighted), median or trimmed mean of each coordinate, krum
    trim       of `trimmed`: share of the weight that is left out at either end
    attackers  of `krum`: f, the number of clients of a round that may send anything
    keep       of `krum`: how many models are averaged; 1 is Krum, more is multi-Krum (0: all but f)

    `aggregation = "median"` sets the rule.
    """

    rule: Literal["mean", "median", "trimmed", "krum"] = "mean"
    trim: float = Field(default=TrimmedMean.trim, ge=0, lt=0.5)
    attackers: int = Field(default=Krum.attackers, ge=0, le=MOST)
    keep: int = Field(default=Krum.keep, ge=0, le=MOST)

    def build(self) -> Averaging:
        """The rule as an object for the engine."""
        match self.rule:
            case "mean":
                return MEAN
            case "median":
                return Median()
            case "trimmed":
                return TrimmedMean(self.trim)
        return Krum(self.attackers, self.keep)


class PrivacySection(Section):
    """Differential privacy of the clients.

    clip           C, the largest ‖wᵢ − w̄‖ that counts (inf: uploads are not clipped)
    noise          σ, standard deviation of the noise in units of C
    epsilon        in place of noise: ε that the run may have, for which the least noise is found (inf: any)
    delta          δ, below 1/clients
    where          where noise is added: by the `server` to the sum, by clients a part of it each (`shares`), or by
                   `clients` to every upload
    message_noise  with `clients`: standard deviation of the noise on each number of a message
    runs           number of runs on the same data, tuning included, that epsilon is for
    rounds         number of rounds that epsilon is for (0: those of the run)
    """

    clip: float = Field(default=math.inf, gt=0)
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    epsilon: float = Field(default=math.inf, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    where: Literal["server", "shares", "clients"] = "server"
    message_noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    runs: int = Field(default=1, ge=1, le=MOST)
    rounds: int = Field(default=0, ge=0, le=MOST)

    @model_validator(mode="after")
    def _possible(self) -> "PrivacySection":
        self.build()
        return self

    @property
    def depends_on_rounds(self) -> bool:
        """Whether the noise would be another one with more rounds."""
        return math.isfinite(self.epsilon) and not self.rounds

    def build(self) -> Privacy | None:
        """The settings as an object for the engine; None if there are none."""
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        privacy = Privacy(
            clip=self.clip,
            noise=self.noise,
            epsilon=epsilon,
            delta=self.delta,
            where=self.where,
            message_noise=self.message_noise,
            runs=self.runs,
            rounds=self.rounds,
        )
        return privacy if math.isfinite(self.clip) else None
