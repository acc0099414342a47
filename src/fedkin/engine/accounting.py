"""What noise is worth: ε of a run by Rényi differential privacy, computed by Opacus.

A release is a sum of clipped vectors to which Gaussian noise was added. Of several releases the Rényi divergences add
up, whatever was learned from one before the next (Mironov 2017). For a sum over a Poisson sample they are those of the
sampled Gaussian mechanism (Mironov, Talwar and Zhang 2019), and ε for a given δ follows as in Balle et al. 2020.
"""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from fedkin.errors import BadInput
from fedkin.types import Floats

# The orders α at which divergences are computed; ε is the least of what they give. Fractions take longest.
ALPHAS = (1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, *range(5, 64), *range(64, 257, 16), 512, 1024)
MOST_NOISE = 1e6


class Release(NamedTuple):
    """A sum with noise, released so many times.

    noise  standard deviation of the noise, in units of what one client can change of the sum
    rate   q, the probability with which a client is in the sum (1: no sampling that others do not see)
    times  how often
    """

    noise: float
    rate: float = 1.0
    times: int = 1


def epsilon_of(releases: Sequence[Release], delta: float) -> float:
    """The ε of (ε, δ)-differential privacy of all releases together; 0 of none."""
    divergences = sum(one.times * _divergences(one.noise, one.rate) for one in releases if one.times)
    if isinstance(divergences, int):
        return 0.0
    with warnings.catch_warnings():  # at the first or last order: another one might give less, this one holds
        warnings.simplefilter("ignore", UserWarning)
        found, _ = _opacus().get_privacy_spent(orders=ALPHAS, rdp=divergences, delta=delta)
    return max(0.0, float(found))


def noise_for(epsilon: float, delta: float, rate: float, times: int, others: Sequence[Release] = ()) -> float:
    """The least noise of so many releases with which they and others have at most this ε; to four digits."""

    def spent(noise: float) -> float:
        return epsilon_of([*others, Release(noise, rate, times)], delta)

    if spent(MOST_NOISE) > epsilon:
        others_alone = epsilon_of(others, delta)
        raise BadInput(
            f"epsilon = {epsilon:g} cannot be reached at delta = {delta:g}"
            + (f", as messages alone have ε = {others_alone:.3g}" if others else "")
            + ": choose a larger epsilon, or more noise on messages"
        )
    high = 1.0
    while spent(high) > epsilon:
        high *= 2
    while spent(high / 2) <= epsilon:
        high /= 2
    found = brentq(lambda x: math.log(spent(math.exp(x)) / epsilon), math.log(high / 2), math.log(high), xtol=1e-5)
    return math.exp(found + 1e-5)


@lru_cache(maxsize=256)
def _divergences(noise: float, rate: float) -> Floats:
    """The Rényi divergence of one release at each order."""
    if not noise:
        return np.full(len(ALPHAS), np.inf)
    found: Floats = _opacus().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ALPHAS)
    return found


def _opacus() -> Any:
    """The accountant of Opacus."""
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise BadInput("to compute ε needs Opacus: pip install 'fedkin[privacy]'") from None
    return rdp
