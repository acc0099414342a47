"""The settings of the matrix: every combination of model, clients and local work that users choose.

Words choose some of them: `fedkin bench matrix softmax shuffled B32`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from fedkin.algorithms.local import Local
from fedkin.bench.workloads import WORKLOADS, Workload
from fedkin.types import Integers

SAMPLED_CLIENTS = 10  # M, clients per round where not all of 100 are sampled
TESTING = 10_000  # testing samples
# Rounds before the timed ones with sampled clients. After 12 rounds with 10 of 100 clients, 1 − 0.9¹² = 72 % have been
# sampled before, so that what the engine keeps of a client is used, if less than in a long run. The network has fewer.
WARM_UP = {"softmax": 12, "network": 2}

# Each axis: its words, and what they change in the workload.
AXES: dict[str, dict[str, dict[str, Any]]] = {
    "model": {"softmax": {}, "network": {}},
    "sizes": {"balanced": {}, "imbalanced": {"class_imbalance": 10.0, "size_imbalance": 1.0}},
    "clients": {"all": {}, "sampled": {"take_part": SAMPLED_CLIENTS}},
    "batch": {"B256": {"batch_size": 256}, "B32": {"batch_size": 32}},
    "order": {"fixed": {"order": "fixed"}, "shuffled": {"order": "shuffled"}},
    "clip": {"unclipped": {}, "clipped": {"clip": 10.0}},
}
RUNS = {"single": 1, "sweep": 4}
# The runs of a sweep differ in their step size; that of the first is the loop's.
SWEEP_STEPS = (1.0, 0.7, 0.5, 0.3)
BASES = {"softmax": "mnist-softmax", "network": "mnist-mlp"}
BESIDE = ("modules", "memory")  # what is measured beside the matrix

WORDS = (*(word for axis in AXES.values() for word in axis), *RUNS, *BESIDE)


@dataclass(frozen=True)
class Setting:
    """A combination, one word of every axis."""

    words: dict[str, str]
    workload: Workload
    quick: bool = False

    @property
    def title(self) -> str:
        """The words of all axes."""
        return " ".join(self.words.values())

    @property
    def warm_up(self) -> int:
        """Rounds of the engine before the timed ones."""
        return WARM_UP[self.words["model"]] if self.workload.take_part and not self.quick else 1

    @property
    def few(self) -> Workload:
        """The same with few clients, on which the engine is compared with its plain path.

        Those of softmax regression are large, so that a round of few epochs is long enough to be compiled.
        """
        clients, samples = (7, 1200) if self.words["model"] == "softmax" else (4, 300)
        few = replace(self.workload, take_part=self.workload.take_part and 3, testing=0, epochs=5)
        return few if self.quick else replace(few, clients=clients, samples=samples)


def settings(words: Collection[str], quick: bool) -> list[Setting]:
    """The combinations that the words leave: of each axis all that are named, or all if none is."""
    if words and not set(words) - set(BESIDE):
        return []
    found = []
    for named in product(*(_left(axis, words) for axis in AXES.values())):
        of = dict(zip(AXES, named, strict=True))
        changes: dict[str, Any] = {}
        for axis, word in of.items():
            changes |= AXES[axis][word]
        workload = replace(WORKLOADS[BASES[of["model"]]], testing=TESTING, **changes)
        found.append(Setting(of, _reduced(workload) if quick else workload, quick))
    return found


def runs_of(words: Collection[str]) -> list[str]:
    """The words of the axis of runs that are left."""
    return _left(RUNS, words)


def others(words: Collection[str]) -> list[str]:
    """What is measured beside the matrix: all unless combinations are chosen."""
    return [name for name in BESIDE if name in words or not words]


def _left(axis: Collection[str], words: Collection[str]) -> list[str]:
    return [word for word in axis if word in words] or list(axis)


def _reduced(workload: Workload) -> Workload:
    sampled = workload.take_part and 2
    return replace(workload, clients=5, samples=40, shape=(12,), testing=60, take_part=sampled)


def part_of(sizes: Integers, local: Local, stride: int) -> tuple[Sequence[int], float]:
    """Every `stride`-th client by size, and the share of the samples of all that they have.

    Of the possible starts the one is taken for which the shares of samples and of steps are closest, as both determine
    how long a loop takes.

    >>> part_of(np.full(6, 10), Local(), 3)
    ([0, 3], 0.3333333333333333)
    """
    steps, ranked = np.array([local.count(int(n)) for n in sizes]), np.argsort(-sizes, kind="stable")
    choices = [ranked[first::stride] for first in range(stride)]
    shares = [(sizes[who].sum() / sizes.sum(), steps[who].sum() / steps.sum()) for who in choices]
    best = min(range(stride), key=lambda k: abs(np.log(shares[k][0] / shares[k][1])))
    return np.sort(choices[best]).tolist(), float(shares[best][0])
