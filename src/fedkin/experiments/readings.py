"""Readings: the algorithm as the paper states it, and as its published code behaves.

Each difference has a switch, `paper` or `published`, so that its effect can be measured:

    difference                                        switch
    which u a client receives                         reading.anchors
    which weight a model is averaged with             reading.averaging
    the L2 penalty                                    reading.penalty
    FedProx's proximal term                           reading.proximal
    the sign of a message                             reading.sign
    preprocessing                                     data.preprocess = "standardise" (paper) or "half" (published)
    how class mixes are sampled                       partition.mixes
    how samples, and remainders, are assigned         partition.scheme
    order of the batches                              local.order = "shuffled" (paper) or "fixed" (published)
    sampled clients per round                         take_part = M (paper) or "all" (published)

The first four are errors in the published code. `reading = "published"` sets the first five, which concern the
algorithm; the others concern data and local training and are set separately.
Client sizes are log-normal around N/C in both readings: taken literally, the paper's parameter would give e^(N/C)
samples per client.
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedkin.algorithms import Algorithm, FedKin, FedProx, Round
from fedkin.algorithms.local import Local
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments.config import Reading
from fedkin.types import Integers, Tensors


@dataclass(frozen=True)
class PermutedSimulation(Simulation):
    """A simulation with permuted anchors or weights: the published code shuffles the list of clients, not their data.

    With the clients in the order s(1), s(2), …, client s(j) receives u_j, and model w_j is averaged with the weight of
    client s(j). On average one client per round has its own.
    """

    anchors: bool = False
    averaging: bool = False

    def sampled(self, algorithm: Algorithm, state: State, asked: list[Tensor] | None = None) -> Round:
        round = super().sampled(algorithm, state, asked)
        return round.of(round.who, self.weights[round.who][permutation(round)]) if self.averaging else round

    def sent(self, algorithm: Algorithm, state: State, round: Round) -> Tensors:
        got = super().sent(algorithm, state, round)
        if self.anchors and "anchor" in got:
            got["anchor"] = got["anchor"][..., np.argsort(permutation(round)), :]
        return got


def permutation(round: Round) -> Integers:
    """The permutation s of a round."""
    return round.random("shuffle").permutation(len(round))


def read_as(simulation: Simulation, reading: Reading) -> Simulation:
    """The simulation according to a reading."""
    assert isinstance(simulation.algorithm, Algorithm)
    algorithm, local = _read_algorithm(simulation.algorithm, simulation.local, reading)
    anchors, averaging = reading.anchors == "published", reading.averaging == "published"
    if not (anchors or averaging):
        return replace(simulation, algorithm=algorithm, local=local)
    s = simulation
    return PermutedSimulation(
        *(s.federation, s.model, algorithm, s.graph, s.weights, local, s.take_part, s.seed),
        aggregate=s.aggregate,
        privacy=s.privacy,
        anchors=anchors,
        averaging=averaging,
    )


def _read_algorithm(algorithm: Algorithm, local: Local, reading: Reading) -> tuple[Algorithm, Local]:
    if reading.penalty == "published" and isinstance(algorithm, FedKin):
        local = replace(local, l2=0.0)  # the published step bypasses the optimiser, which applies the penalty
    if reading.proximal == "published" and isinstance(algorithm, FedProx):
        algorithm = replace(algorithm, alpha=0.0)  # the term is detached: it changes the loss, not its gradient
    return algorithm, local
