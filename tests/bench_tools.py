"""A small workload, and a clock that only competitors move, for the tests of the benchmark."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedkin.bench.workloads import WORKLOADS

# Clients of different sizes, and a last batch that is not full.
TINY = replace(WORKLOADS["cifar-imbalanced"], clients=6, samples=30, shape=(12,), batch_size=16)


class Clock:
    """A clock that only the competitors move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order = 0.0, list[str]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def round(self, name: str, *seconds: float) -> Callable[[], None]:
        """A competitor whose rounds last so long, the last of them for ever."""
        left = list(seconds)

        def round() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return round
