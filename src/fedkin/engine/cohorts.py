"""Cohorts: clients that are processed together, so many that they fit the cache, each where its steps are cheapest.

One large client at a time, many tiny ones stacked.
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
from fedkin.models import Layered, Model, Softmax

# A cohort holds at most this many numbers (4 bytes each) that every step goes through, so that they stay in the cache:
# a core's own for a batch of samples, its share of the common one for Gram matrices.
BATCH_NUMBERS = 1 << 18
GRAM_NUMBERS = 2 << 20

# Compiled steps are loaded for rounds of so many multiplications, others are over before that. They work on three rows
# at the least, one for each lane and each class but the last.
MUCH, FEWEST_ROWS = 1e9, 3

Where = type[Plain] | type[Samples]


def cost(local: Local, samples: int, features: int, in_samples: bool) -> float:
    """The products of a client's round for each output of the first layer.

    With E passes over n samples: 2·E·n·D plainly; in sample space E·n² for the steps and 2·n·D to enter and to leave.
    """
    passes = 1 if local.steps else local.epochs
    return samples * (passes * samples + 2 * features if in_samples else 2 * passes * features)


def samples_pay(local: Local, samples: int, model: Model, kept: bool) -> bool:
    """Whether a client's round takes fewer products in `Samples` than in `Plain`.

    The Gram matrix counts n²·D, for all outputs together, unless it is kept from round to round.
    """
    if not isinstance(model, Layered):
        return False
    features = model.first.inputs
    gram = 0.0 if kept else samples**2 * features / model.first.outputs
    return cost(local, samples, features, in_samples=True) + gram < cost(local, samples, features, in_samples=False)


@dataclass(frozen=True)
class Steps:
    """What the local steps of a round are like, as far as it decides where they are taken.

    linear     whether a step takes linear combinations of vectors and gradients only
    tracks     whether each vector that changes takes one gradient a step, at a point of its own
    lanes      how many runs take them together
    returning  whether the same clients come in every round,
    repeated   and with the same batches
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
        """Where clients with so many samples work."""
        model = self.model
        if not self.linear:
            return dict.fromkeys(sizes, Plain)
        if not isinstance(model, Layered):
            return dict.fromkeys(sizes, Fused)
        not_tiny = compiled_samples() if self._compilable(sizes) else Samples
        pay = {n: samples_pay(self.local, n, model, self.returning) for n in set(sizes)}
        return {n: (not_tiny if n >= FEW else Samples) if pay[n] else Fused for n in pay}

    def _compilable(self, sizes: Sequence[int]) -> bool:
        """Whether compiled steps do what is asked, and are worth loading."""
        if not isinstance(self.model, Softmax) or self.device.type != "cpu":
            return False
        if not self.tracks or self.local.clip is not None or not (self.returning and self.repeated):
            return False
        work = sum(cost(self.local, n, self.model.first.inputs, in_samples=True) for n in sizes) * self.model.classes
        return work > MUCH and self.lanes * (self.model.classes - 1) >= FEWEST_ROWS


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

    places  their places among the sampled clients
    space   where they work
    steps   how many the one with the most samples takes
    cost    about how long it takes, in products
    """

    places: NDArray[np.int64]
    space: Where
    steps: int
    cost: float


def cohorts_of(sizes: Sequence[int], features: int, steps: Steps) -> Iterator[Cohort]:
    """Group clients by size."""
    spaces, local, model = steps.spaces(sizes), steps.local, steps.model
    outputs = model.first.outputs if isinstance(model, Layered) else 0
    group: list[int] = []

    def gathered() -> Cohort:
        most = sizes[group[0]]
        work = len(group) * cost(local, most, features, issubclass(spaces[most], Samples))
        return Cohort(np.array(group), spaces[most], local.count(most), work)

    def room(most: int, n: int, place: int) -> int:
        """For how many clients, if the first has the most samples and the next has n."""
        if not issubclass(spaces[most], Samples):
            return BATCH_NUMBERS // (local.width(most) * features)
        # In sample space their batches must lie in the same places, which takes some filling up.
        aligned = local.order == "fixed" and not local.steps
        aligned = aligned and local.count(n) == local.count(most) and 4 * n >= 3 * most
        if spaces[most] is not Samples:
            # Compiled, they gain little: not worth filling up, nor copying what those apart have received.
            aligned = n == most and place == group[-1] + 1
        return GRAM_NUMBERS // (most**2 + 3 * most * outputs) if aligned else 1

    for place in np.argsort([-n for n in sizes], kind="stable").tolist():
        n = sizes[place]
        # Sizes fall, so the first client of a group has the most samples and the widest batch.
        if group and (len(group) >= room(sizes[group[0]], n, place) or spaces[n] is not spaces[sizes[group[0]]]):
            yield gathered()
            group = []
        group.append(place)
    yield gathered()
