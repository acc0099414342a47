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
from numpy.typing import NDArray

from fedkin.algorithms import Algorithm, FedKin, FedProx
from fedkin.algorithms.local import Local
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments.config import Reading
from fedkin.types import Tensors

SHUFFLE = 104  # purpose of random numbers, beside those of the engine


@dataclass(frozen=True)
class Mislaid(Simulation):
    """Rounds in which the list of clients is shuffled, but not what goes with them.

    With the clients in the order s(1), s(2), …, client s(j) is handed u_j, and model w_j is averaged with the weight of
    client s(j): one client in C gets its own.
    """

    anchors: bool = False
    averaging: bool = False

    def shuffled(self, round: int, count: int) -> NDArray[np.int64]:
        """The order s of a round's clients."""
        return np.random.default_rng([self.seed, SHUFFLE, round]).permutation(count)

    def sent(self, algorithm: Algorithm, state: State, who: NDArray[np.int64]) -> Tensors:
        """Client s(j) receives u_j."""
        got = super().sent(algorithm, state, who)
        if self.anchors and "anchor" in got:
            got["anchor"] = got["anchor"][..., np.argsort(self.shuffled(state.round, len(who))), :]
        return got

    def present_weights(self, round: int, who: NDArray[np.int64]) -> NDArray[np.float64]:
        """Model w_j counts with the weight of client s(j)."""
        p = super().present_weights(round, who)
        return p[self.shuffled(round, len(who))] if self.averaging else p


def read_as(simulation: Simulation, reading: Reading) -> Simulation:
    """A simulation as a reading has it."""
    algorithm, local = _read_algorithm(simulation.algorithm, simulation.local, reading)
    simulation = replace(simulation, algorithm=algorithm, local=local)
    anchors, averaging = reading.anchors == "published", reading.averaging == "published"
    if not (anchors or averaging):
        return simulation
    s = simulation
    return Mislaid(
        s.federation,
        s.model,
        s.algorithm,
        s.graph,
        s.weights,
        s.local,
        s.take_part,
        s.seed,
        anchors=anchors,
        averaging=averaging,
    )


def _read_algorithm(algorithm: Algorithm, local: Local, reading: Reading) -> tuple[Algorithm, Local]:
    if reading.penalty == "published" and isinstance(algorithm, FedKin):
        local = replace(local, l2=0.0)  # its step goes past the optimiser, which is where the penalty is
    if reading.proximal == "published" and isinstance(algorithm, FedProx):
        algorithm = replace(algorithm, alpha=0.0)  # the term is detached: it changes the loss, not its gradient
    return algorithm, local
