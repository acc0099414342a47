"""Experiments: from a TOML file to resumable runs in folders.

config.py        `Experiment`: the validated settings of a run
grid.py          `plans`: the runs that a TOML file describes
preparation.py   `Preparation`: data, graph, model and algorithm of a run
run.py           `train` in memory, `run` in folders (import it from `fedkin`; here `run` is the module)
group.py         runs that are executed together as lanes
rounds.py        one round and its measurements
records.py       `RunFolder`: the files of a run
seals.py         checksums of the records
tensor_files.py  files of tensors with a checksum
results.py       `Result`: a finished run
progress.py      `Listener`: progress bars or lines
readings.py      deviations of the published code from the paper
"""

from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import Plan, plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener
from fedkin.experiments.records import RunFolder
from fedkin.experiments.results import Result
from fedkin.experiments.run import train

__all__ = ["Experiment", "Listener", "Plan", "Preparation", "Result", "RunFolder", "plans", "train"]
