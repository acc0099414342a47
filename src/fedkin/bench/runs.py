"""Rounds as `fedkin run` executes them: lanes of one group, with measurements, records and checkpoints."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from fedkin.algorithms import Algorithm
from fedkin.engine.simulation import Simulation
from fedkin.experiments.grid import plans
from fedkin.experiments.group import Lane, RunningGroup
from fedkin.experiments.progress import Silent
from fedkin.experiments.records import RunFolder

ENDLESS = 100_000  # rounds: more than are ever timed


class RunRounds:
    """A competitor: the rounds of a group of runs, each run in a folder of its own."""

    def __init__(self, group: RunningGroup) -> None:
        self.group = group

    def round(self) -> None:
        self.group.round()

    @property
    def global_model(self) -> Tensor:
        """The model of the first run."""
        return self.group.state.model.view(len(self.group.going), -1)[0]


@contextlib.contextmanager
def as_run(simulations: Sequence[Simulation]) -> Iterator[RunRounds]:
    """Simulations that differ in hyper-parameters, as runs of an experiment in a temporary folder."""
    algorithms = [simulation.algorithm for simulation in simulations]
    steps = [algorithm.step_size for algorithm in algorithms if isinstance(algorithm, Algorithm)]
    todo = plans({"name": "bench", "rounds": ENDLESS, "local": {"step_size": steps}})
    with contextlib.ExitStack() as held:
        results = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="fedkin-bench-")))
        group = []
        for plan, simulation in zip(todo, simulations, strict=True):
            folder, settings = RunFolder(results / plan.name), plan.config.model_dump(mode="json", by_alias=True)
            held.enter_context(folder.opened(settings))
            group.append(Lane(plan, folder, settings, simulation))
        yield RunRounds(RunningGroup(group, Silent()))
