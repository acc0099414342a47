"""Readings: the algorithm as the paper states it, and as the published code behaves.

Where the two differ there is a switch, `paper` or `published`, so that one can see what each difference does:

    difference                                        switch
    which u a client gets                             reading.anchors
    whose weight a model is averaged with             reading.averaging
    the L2 penalty                                    reading.penalty
    FedProx's proximal term                           reading.proximal
    the sign of a message                             reading.sign
    preprocessing                                     data.preprocess = "standardise" (paper) or "half" (published)
    how class mixes are drawn                         partition.mixes
    how samples are dealt, those left over included   partition.scheme
    order of the batches                              local.order = "shuffled" (paper) or "fixed" (published)
    clients in a round                                take_part = M (paper) or "all" (published)

The first four are errors in the published code. `reading = "published"` sets the five of them that are about the
algorithm; the others are about the data and the local work, and are settings of their own.
The sizes of clients are log-normal around N/C in both, as the paper's parameter taken literally would have e^(N/C)
samples a client.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedkin.algorithms import Algorithm, FedKin, FedProx, Round
from fedkin.algorithms.local import Local
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments.config import Reading
from fedkin.types import Integers, Tensors


@dataclass(frozen=True)
class PermutedSimulation(Simulation):
    """Rounds in which the list of clients is shuffled, but not what goes with them.

    With the clients in the order s(1), s(2), …, client s(j) receives u_j, and model w_j is averaged with the weight of
    client s(j): one client in C gets its own.
    """

    anchors: bool = False
    averaging: bool = False

    def sampled(self, algorithm: Algorithm, state: State) -> Round:
        round = super().sampled(algorithm, state)
        return round.of(round.who, self.weights[round.who][permutation(round)]) if self.averaging else round

    def sent(self, algorithm: Algorithm, state: State, round: Round) -> Tensors:
        got = super().sent(algorithm, state, round)
        if self.anchors and "anchor" in got:
            got["anchor"] = got["anchor"][..., np.argsort(permutation(round)), :]
        return got


def permutation(round: Round) -> Integers:
    """The order s of a round's clients."""
    return round.random("shuffle").permutation(len(round))


def read_as(simulation: Simulation, reading: Reading) -> Simulation:
    """A simulation as a reading has it."""
    assert isinstance(simulation.algorithm, Algorithm)
    algorithm, local = _read_algorithm(simulation.algorithm, simulation.local, reading)
    anchors, averaging = reading.anchors == "published", reading.averaging == "published"
    if not (anchors or averaging):
        return replace(simulation, algorithm=algorithm, local=local)
    s = simulation
    return PermutedSimulation(
        *(s.federation, s.model, algorithm, s.graph, s.weights, local, s.take_part, s.seed),
        anchors=anchors,
        averaging=averaging,
    )


def _read_algorithm(algorithm: Algorithm, local: Local, reading: Reading) -> tuple[Algorithm, Local]:
    if reading.penalty == "published" and isinstance(algorithm, FedKin):
        local = replace(local, l2=0.0)  # its step goes past the optimiser, which is where the penalty is
    if reading.proximal == "published" and isinstance(algorithm, FedProx):
        algorithm = replace(algorithm, alpha=0.0)  # the term is detached: it changes the loss, not its gradient
    return algorithm, local
