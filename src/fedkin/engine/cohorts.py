"""Cohorts: clients that are processed together, in the space in which their steps take the fewest operations.

A cohort fits into the cache: a single large client, or many small ones stacked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.compiler.loading import if_compiled
from fedkin.engine.spaces.fused import Fused
from fedkin.engine.spaces.plain import Plain, is_run
from fedkin.engine.spaces.samples import FEW, Samples
from fedkin.engine.spaces.script import Player
from fedkin.models import MLP, CrossEntropy, Layered, Linear, Logistic, Model, Module, Squared
from fedkin.types import Integers

# Maximum size of a cohort's working set, in float32 numbers, so that it stays in the cache: batches of samples in a
# core's own cache, Gram matrices in its share of the common cache.
BATCH_NUMBERS = 1 << 18
GRAM_NUMBERS = 2 << 20

# Compiled steps are loaded if a round takes more than MUCH multiplications: the loading takes longer than many shorter
# rounds. A compiled cohort of small clients takes about CALL multiplications, so that Python's part is small.
MUCH, CALL = 2e8, 3e7

# A step with so many multiplications takes much longer than its calls: no more clients join a cohort, which other cores
# may be waiting for.
LONG_STEP = 5e7

# The calls of a step of PyTorch take as long as so many multiplications, whether it is of one client or of many.
STEP_CALLS = 1e6

# Compiled steps read up to 32 features at a time. In sample space they need at least three rows, one for each lane and
# each class but the last.
FEWEST_FEATURES, FEWEST_ROWS = 32, 3

Where = type[Plain] | type[Player]


def cost(local: Local, samples: int, features: int, in_samples: bool) -> float:
    """Multiplications of a client's round, per output of the first layer.

    With E epochs on n samples of D features: 2·E·n·D on parameters; in sample space E·n² for the steps and 2·n·D for
    the conversion from and to parameters.
    """
    passes = local.passes(samples)
    return samples * (passes * samples + 2 * features if in_samples else 2 * passes * features)


def samples_pay(local: Local, samples: int, model: Model, kept: bool, lanes: int = 1) -> bool:
    """Whether a client's round takes less time in `Samples` than in `Plain`, neither of them compiled.

    The Gram matrix adds n²·D multiplications, for all outputs together, unless it is cached between rounds. Unless
    batches have the same positions at all clients, each client takes its steps on its own in sample space, while on
    parameters the clients of a cohort take them together.
    """
    if not isinstance(model, Layered):
        return False
    features = model.first.inputs
    together = 0.0 if kept else samples**2 * features
    if not aligned(local):
        together += (1 - 1 / stack_size(local, samples, features)) * STEP_CALLS * local.count(samples)
    together /= lanes * model.first.outputs
    return cost(local, samples, features, in_samples=True) + together < cost(local, samples, features, in_samples=False)


def aligned(local: Local) -> bool:
    """Whether the batches of clients with equally many samples have the same positions."""
    return local.order == "fixed" and not local.steps


def stack_size(local: Local, samples: int, features: int) -> int:
    """How many clients with so many samples a cohort on parameters has, at most."""
    return max(1, BATCH_NUMBERS // (local.width(samples) * features))


@dataclass(frozen=True)
class Steps:
    """Properties of the local steps of a round that determine their space.

    linear     whether a step only computes linear combinations of vectors and gradients
    tracks     whether each vector that changes takes one gradient per step, at a point of its own
    gradients  number of gradients per step
    alike      whether all samples of a batch have the same weight
    lanes      number of runs that are executed together
    returning  whether all rounds have the same clients
    repeated   whether all rounds have the same batches
    """

    model: Model
    local: Local
    device: torch.device
    linear: bool
    tracks: bool
    gradients: int
    alike: bool
    lanes: int
    returning: bool
    repeated: bool

    def spaces(self, sizes: Sequence[int]) -> dict[int, Where]:
        """The space of clients, by their number of samples.

        Compiled, clients work in sample space if their Gram matrix is kept and their batches are the same in every
        round, and else on parameters. Not compiled, they work where it takes fewer multiplications.
        """
        model = self.model
        if not self.linear:
            return dict.fromkeys(sizes, Plain)
        if not isinstance(model, Layered) or self.local.optimizer == "adam":  # which computes with single parameters
            return dict.fromkeys(sizes, Fused)
        pay = {n: samples_pay(self.local, n, model, self.returning, self.lanes) for n in set(sizes)}
        compiled = compiled_spaces() if self._compilable(sizes) else None
        if compiled is None:
            return {n: Samples if pay[n] else Fused for n in pay}
        in_samples, on_parameters = compiled
        if not (self.tracks and self.returning and self.repeated) or self.local.clip is not None:
            return dict.fromkeys(pay, on_parameters)
        softmax = isinstance(model, Linear) and isinstance(model.loss, CrossEntropy)
        softmax = softmax and self.lanes * (model.outputs - 1) >= FEWEST_ROWS
        not_tiny = in_samples if softmax else Samples
        return {n: (not_tiny if n >= FEW else Samples) if pay[n] else on_parameters for n in pay}

    def _compilable(self, sizes: Sequence[int]) -> bool:
        """Whether compiled steps support these steps and are worth loading."""
        if not isinstance(self.model, Linear | MLP) or self.device.type != "cpu" or not self.alike:
            return False
        if self.model.features < FEWEST_FEATURES or type(self.model.loss) not in (CrossEntropy, Logistic, Squared):
            return False
        first = self.model.first
        work = sum(cost(self.local, n, first.inputs, in_samples=False) for n in sizes) * first.outputs
        return work * self.lanes * self.gradients > MUCH


@cache
def compiled_spaces() -> tuple[type[Samples], type[Player]] | None:
    """Sample space and parameters with compiled rounds; None if Numba is not installed or does not work."""

    def load() -> tuple[type[Samples], type[Player]]:
        from fedkin.engine.spaces.compiled import Compiled
        from fedkin.engine.spaces.primal import Primal

        return Compiled, Primal

    return if_compiled(load)


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
        if issubclass(spaces[most], Plain):
            fit = min(stack_size(local, most, features), enough(most))
            left = len(sizes) - grouped
            return -(-left // -(-left // fit))  # of equal size: threads share the cohorts
        if not issubclass(spaces[most], Samples):  # compiled on parameters
            work = cost(local, most, features, in_samples=False) * outputs * steps.lanes * steps.gradients
            return int(CALL / work) if local.count(n) == local.count(most) else 1
        # In sample space the batches must have the same positions at all clients, which requires padding.
        fits = aligned(local) and local.count(n) == local.count(most) and 4 * n >= 3 * most
        if spaces[most] is not Samples:
            # Compiled steps gain little from stacking: neither padding nor copies of received rows are worth it.
            fits = n == most and place == group[-1] + 1
        return min(GRAM_NUMBERS // (most**2 + 3 * most * outputs), enough(most)) if fits else 1

    def enough(most: int) -> int:
        """How many clients make a long step, together."""
        work = cost(local, most, features, issubclass(spaces[most], Samples)) * outputs * steps.lanes
        return max(1, int(LONG_STEP * local.count(most) / work)) if outputs else len(sizes)

    grouped = 0
    for place in np.argsort([-n for n in sizes], kind="stable").tolist():
        n = sizes[place]
        # Sizes are descending, so the first client of a group has the most samples and the largest batch.
        if group and (len(group) >= room(sizes[group[0]], n, place) or spaces[n] is not spaces[sizes[group[0]]]):
            yield gathered()
            grouped += len(group)
            group = []
        group.append(place)
    yield gathered()


def as_slice(places: Integers) -> Any:
    """Consecutive positions as a slice, others unchanged."""
    return slice(int(places[0]), int(places[-1]) + 1) if is_run(places) else places


def at_places(value: Tensor, places: Any, count: int) -> Tensor:
    """Rows of the clients in these positions; a view if all rows are the same (stride 0), as for w̄."""
    return value[..., :count, :] if value.stride(-2) == 0 else value[..., places, :]
