"""Where runs are carried out, if not in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fedkin.experiments.cluster import Cluster
from fedkin.experiments.grid import Plan
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.processes import Processes

CORES, PROCESS = "cores", "process"  # all cores of this machine, and this process alone


class Place(Protocol):
    """Carries out units of runs, side by side."""

    def carry_out(
        self, units: Sequence[Sequence[Plan]], out: Path, preparation: Preparation, fresh: bool = False
    ) -> list[str]:
        """Fill the folders of runs, and report their ends. Returns the names of those for which this was done."""


@contextmanager
def place_named(on: str | Place | None) -> Iterator[Place | None]:
    """`cores`: processes of this machine. `process`: None. Other words: addresses of Ray. What is open stays open."""
    if not isinstance(on, str):
        yield on
    elif on == PROCESS:
        yield None
    else:
        with Processes() if on == CORES else Cluster(on) as place:
            yield place
