"""Random number streams: one seed, an independent stream for every purpose."""

import numpy as np

from fedkin.errors import BadInput

Random = np.random.Generator | np.random.RandomState


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A random number generator for one purpose.

    The purpose is part of the key, so draws for one purpose do not shift the draws for another.
    """
    if seed < 0:
        raise BadInput(f"the seed is {seed}: use a whole number from 0 on")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(purpose.encode())))
