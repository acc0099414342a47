"""Read a finished run from its folder."""

from dataclasses import replace
from pathlib import Path

from fedkin.errors import BadInput
from fedkin.experiments.config import former_settings
from fedkin.experiments.records import RunFolder
from fedkin.experiments.results import Result
from fedkin.experiments.trained import trained_in
from fedkin.files import json_object


def load_run(folder: Path | str, *, beside: Path | str | None = None) -> Result:
    """A finished run: settings, records, summary and models.

    folder  of the run, such as results/demo/kin; that of an experiment if it has a single run
    beside  a folder with the module of a model of your own (default: that of the TOML file, then PYTHONPATH)
    """
    path = _run_folder(Path(folder))
    config, run = json_object(path / "config.json"), RunFolder(path)
    if config is None:
        raise BadInput(f"{path / 'config.json'} is missing or damaged: give the folder of a run")
    run.recall(config, [former_settings(), {}])
    if (found := run.result()) is None:
        raise BadInput(f"{path} holds no finished run, or a damaged one: run the experiment to its end first")
    summary, done, model = found
    result = Result(path.name, config, done, summary, model, path)
    return result if beside is None else replace(result, live=trained_in(path, config, Path(beside)))


def _run_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: give that of a run, such as results/demo/kin")
    if (folder / "config.json").exists():
        return folder
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    if len(runs) == 1:
        return runs[0]
    names = ", ".join(path.name for path in runs[:6]) + (", …" if len(runs) > 6 else "")
    raise BadInput(f"{folder} holds {len(runs)} runs: give the folder of one{f' ({names})' if runs else ''}")
