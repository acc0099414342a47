"""Cohorts: clients that are processed together, in the space in which their steps take the fewest operations.

A cohort fits into the cache: a single large client, or many small ones stacked.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedkin.algorithms.local import Local
from fedkin.engine.spaces.fused import Fused
from fedkin.engine.spaces.plain import Plain
from fedkin.engine.spaces.samples import FEW, Samples
from fedkin.models import CrossEntropy, Layered, Linear, Model, Module

# Maximum size of a cohort's working set, in float32 numbers, so that it stays in the cache: batches of samples in a
# core's own cache, Gram matrices in its share of the common cache.
BATCH_NUMBERS = 1 << 18
GRAM_NUMBERS = 2 << 20

# Compiled steps are loaded if a round takes more than MUCH multiplications: shorter rounds take less time than the
# loading. They need at least three rows, one for each lane and each class but the last.
MUCH, FEWEST_ROWS = 1e9, 3

Where = type[Plain] | type[Samples]


def cost(local: Local, samples: int, features: int, in_samples: bool) -> float:
    """Multiplications of a client's round, per output of the first layer.

    With E epochs on n samples of D features: 2·E·n·D on parameters; in sample space E·n² for the steps and 2·n·D for
    the conversion from and to parameters.
    """
    passes = 1 if local.steps else local.epochs
    return samples * (passes * samples + 2 * features if in_samples else 2 * passes * features)


def samples_pay(local: Local, samples: int, model: Model, kept: bool) -> bool:
    """Whether a client's round takes fewer multiplications in `Samples` than in `Plain`.

    The Gram matrix adds n²·D multiplications, for all outputs together, unless it is cached between rounds.
    """
    if not isinstance(model, Layered):
        return False
    features = model.first.inputs
    gram = 0.0 if kept else samples**2 * features / model.first.outputs
    return cost(local, samples, features, in_samples=True) + gram < cost(local, samples, features, in_samples=False)


@dataclass(frozen=True)
class Steps:
    """Properties of the local steps of a round that determine their space.

    linear     whether a step only computes linear combinations of vectors and gradients
    tracks     whether each vector that changes takes one gradient per step, at a point of its own
    lanes      number of runs that are executed together
    returning  whether all rounds have the same clients
    repeated   whether all rounds have the same batches
    """

    model: Model
    local: Local
    device: torch.device
    linear: bool
    tracks: bool
    lanes: int
    returning: bool
    repeated: bool

    def spaces(self, sizes: Sequence[int]) -> dict[int, Where]:
        """The space of clients, by their number of samples."""
        model = self.model
        if not self.linear:
            return dict.fromkeys(sizes, Plain)
        if not isinstance(model, Layered) or self.local.optimizer == "adam":  # which computes with single parameters
            return dict.fromkeys(sizes, Fused)
        not_tiny = compiled_samples() if self._compilable(sizes) else Samples
        pay = {n: samples_pay(self.local, n, model, self.returning) for n in set(sizes)}
        return {n: (not_tiny if n >= FEW else Samples) if pay[n] else Fused for n in pay}

    def _compilable(self, sizes: Sequence[int]) -> bool:
        """Whether compiled steps support these steps and are worth loading."""
        if not isinstance(self.model, Linear) or self.device.type != "cpu":
            return False
        if not isinstance(self.model.loss, CrossEntropy):  # all that the kernels can do
            return False
        if not self.tracks or self.local.clip is not None or not (self.returning and self.repeated):
            return False
        work = sum(cost(self.local, n, self.model.first.inputs, in_samples=True) for n in sizes) * self.model.outputs
        return work > MUCH and self.lanes * (self.model.outputs - 1) >= FEWEST_ROWS


@cache
def compiled_samples() -> type[Samples]:
    """Sample space with compiled rounds if Numba is installed and works, else without."""
    try:
        from fedkin.engine.spaces.compiled import Compiled
    except ImportError:
        return Samples
    except Exception as error:  # whatever the compiler raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"Numba cannot compile the local steps ({reason}), so they take longer: reinstall it", stacklevel=2
        )
        return Samples
    return Compiled


@dataclass(frozen=True)
class Cohort:
    """Clients that are processed together.

    places  positions among the sampled clients
    space   space of the local steps
    steps   number of steps of the client with the most samples
    cost    estimated number of multiplications
    """

    places: NDArray[np.int64]
    space: Where
    steps: int
    cost: float


def cohorts_of(sizes: Sequence[int], features: int, steps: Steps) -> Iterator[Cohort]:
    """Group clients of similar size into cohorts."""
    spaces, local, model = steps.spaces(sizes), steps.local, steps.model
    outputs = model.first.outputs if isinstance(model, Layered) else 0
    group: list[int] = []

    def gathered() -> Cohort:
        most = sizes[group[0]]
        work = len(group) * cost(local, most, features, issubclass(spaces[most], Samples))
        return Cohort(np.array(group), spaces[most], local.count(most), work)

    def room(most: int, n: int, place: int) -> int:
        """Maximum number of clients, if the first has the most samples and the next has n."""
        if isinstance(model, Module) and not model.stacks(local.width(most)):
            return 1  # so that threads share the clients
        if not issubclass(spaces[most], Samples):
            return BATCH_NUMBERS // (local.width(most) * features)
        # In sample space the batches must have the same positions at all clients, which requires padding.
        aligned = local.order == "fixed" and not local.steps
        aligned = aligned and local.count(n) == local.count(most) and 4 * n >= 3 * most
        if spaces[most] is not Samples:
            # Compiled steps gain little from stacking: neither padding nor copies of received rows are worth it.
            aligned = n == most and place == group[-1] + 1
        return GRAM_NUMBERS // (most**2 + 3 * most * outputs) if aligned else 1

    for place in np.argsort([-n for n in sizes], kind="stable").tolist():
        n = sizes[place]
        # Sizes are descending, so the first client of a group has the most samples and the largest batch.
        if group and (len(group) >= room(sizes[group[0]], n, place) or spaces[n] is not spaces[sizes[group[0]]]):
            yield gathered()
            group = []
        group.append(place)
    yield gathered()
