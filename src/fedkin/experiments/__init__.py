"""Experiments: from a TOML file to resumable runs in folders.

config.py        `Experiment`: the validated settings of a run
data_sections.py `DataSection`, `Partition`: the settings about data
server_sections.py `Aggregation`, `PrivacySection`: the settings about the server
grid.py          `plans`: the runs that a TOML file describes
preparation.py   `Preparation`: data, graph, model and algorithm of a run
run.py           `train` in memory, `run` in folders (import it from `fedkin`; here `run` is the module)
places.py        `--on`: where runs are carried out
processes.py     on the cores of this machine, side by side
cluster.py       as tasks on Ray
group.py         runs that are executed together as lanes
rounds.py        one round and its measurements
rising.py        says if the training loss grows in the first rounds
records.py       `RunFolder`: the files of a run
seals.py         checksums of the records
state_files.py   the state of a run as named tensors
tensor_files.py  files of tensors with a checksum
results.py       `Result`: a finished run
loading.py       `load_run`: a finished run from its folder
trained.py       `Trained`: the models of a run, as they predict
model_files.py   the models of a run in its folder
export.py        files in which models leave for other programs
exporting.py     the command that writes them
round_bar.py     a bar for `train`
tracking.py      `--track`: rounds to TensorBoard or MLflow
progress.py      `Listener`: progress bars or lines
readings.py      deviations of the published code from the paper
"""

from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import Plan, experiment_of, plans
from fedkin.experiments.loading import load_run
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener
from fedkin.experiments.records import RunFolder
from fedkin.experiments.results import Result
from fedkin.experiments.run import train

__all__ = [
    "Experiment",
    "Listener",
    "Plan",
    "Preparation",
    "Result",
    "RunFolder",
    "experiment_of",
    "load_run",
    "plans",
    "train",
]
