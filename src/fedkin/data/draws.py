"""Random client sizes (log-normal) and class mixes (Dirichlet), without underflow at extreme imbalances."""

from collections.abc import Callable

import numpy as np

from fedkin.data.streams import Random
from fedkin.types import Floats


def log_normal_shares(clients: int, b: float, rng: Random) -> Floats:
    """Shares of the clients, summing to 1, log-normal with deviation b (the median cancels in the sum)."""
    exponent = min(b, 1e6) * rng.standard_normal(clients)  # beyond this one client has all samples anyway
    shares = np.exp(exponent - exponent.max())
    return np.asarray(shares / shares.sum())


def mixes_by_client(clients: int, classes: int, a: float, rng: Random) -> Floats:
    """qᵢ ~ Dir((1/a)·1_K): for each client a draw over the classes, (C, K)."""
    return np.asarray(np.exp(log_dirichlet(clients, classes, a, rng)))


def mixes_by_class(clients: int, classes: int, a: float, rng: Random) -> Floats:
    """For each class a draw Dir((1/a)·1_C) over the clients, (C, K); rows are not yet normalised to sum 1."""
    over_clients = rng.dirichlet(np.full(clients, max(1 / a, 1e-300)), size=classes).T
    if not (over_clients.sum(axis=1) > 0).all():
        # All draws of a client underflowed (or all of a class, to NaN). Their logarithms do not underflow.
        over_clients = np.exp(_normalised(log_dirichlet(classes, clients, a, rng).T))
    return np.asarray(over_clients)


Mixes = Callable[[int, int, float, Random], Floats]


def log_dirichlet(draws: int, width: int, a: float, rng: Random) -> Floats:
    """Logarithms of draws from Dir((1/a)·1), one per row.

    A gamma variate of a tiny shape s underflows, its logarithm does not: Gamma(s) = Gamma(s + 1) · U^(1/s).
    """
    shape = min(max(1 / a, 1e-12), 1e12)  # beyond these a draw is a single class, or exactly even
    grown = np.log(rng.standard_gamma(shape + 1, size=(draws, width)))
    return _normalised(grown + np.log(1 - rng.uniform(size=(draws, width))) / shape)


def _normalised(logs: Floats) -> Floats:
    """Logarithms of rows, shifted so that the rows sum to 1."""
    logs = logs - logs.max(axis=1, keepdims=True)
    return np.asarray(logs - np.log(np.exp(logs).sum(axis=1, keepdims=True)))
