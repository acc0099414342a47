"""Rounds to TensorBoard and MLflow, read back with their own readers; the callback and the bar of `train`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.errors import BadInput
from fedkin.experiments.progress import Silent
from fedkin.experiments.round_bar import round_bar
from fedkin.experiments.tracking import MLflowTracker, Several, TensorBoardTracker, numbers_in, tracked
from fedkin.reports.runs import collect
from fedkin.types import Record

SETTINGS = {
    "name": "small",
    "rounds": 4,
    "partition": {"clients": 4},
    "local": {"epochs": 1, "step_size": [0.01, 0.1]},
    "algorithm": [{"name": "fedavg"}, {"name": "kin"}],
}


def run_tracked(tmp_path: Path, *names: str, **changes: Any) -> list[fedkin.Result]:
    with tracked(names, Silent()) as listener:
        return fedkin.run({**SETTINGS, **changes}, out=tmp_path, listener=listener)


def scalars(place: Path, key: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(key)}


def test_tensorboard(tmp_path: Path) -> None:
    for result in run_tracked(tmp_path, "tensorboard"):
        assert result.folder is not None
        place = tmp_path / "small" / "tensorboard" / result.folder.name
        found = scalars(place, "test_accuracy")
        assert list(found) == [0, 1, 2, 3]
        assert list(found.values()) == pytest.approx(result.test_accuracy.tolist(), abs=1e-6)
    assert collect(tmp_path / "small")  # its files are no runs


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    results = {result.name: result for result in run_tracked(tmp_path, "mlflow")}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment: Any = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.tags["mlflow.runName"] for run in runs} == set(results)
    for run in runs:
        result = results[run.data.tags["mlflow.runName"]]
        history = client.get_metric_history(run.info.run_id, "train_loss")
        assert {point.step: point.value for point in history} == pytest.approx(dict(enumerate(result.train_loss)))
        assert run.info.status == "FINISHED"
        assert run.data.params["partition.clients"] == "4"


class Stops(Silent):
    """Interrupts after some rounds, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def round(self, name: str, record: Record) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_run_that_continues_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    one = {"algorithm": {"name": "fedavg"}, "local": {"epochs": 1}, "checkpoint_every": 1, "rounds": 6}
    board, flow = TensorBoardTracker(), MLflowTracker()
    with pytest.raises(KeyboardInterrupt):
        fedkin.run({**SETTINGS, **one}, out=tmp_path, listener=Several([board, flow, Stops(3)]))
    board.close()
    flow.close()
    (result,) = run_tracked(tmp_path, "tensorboard", "mlflow", **one)
    assert result.folder is not None
    found = scalars(tmp_path / "small" / "tensorboard" / result.folder.name, "train_loss")
    assert list(found.values()) == pytest.approx(result.train_loss.tolist(), abs=1e-6)
    client = flow.client
    (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert run.info.status == "FINISHED"
    assert {point.step for point in client.get_metric_history(run.info.run_id, "train_loss")} == set(range(6))


def test_interrupted_runs_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    flow = MLflowTracker()
    with pytest.raises(KeyboardInterrupt):
        fedkin.run(SETTINGS, out=tmp_path, listener=Several([flow, Stops(1)]))
    flow.close()
    runs = flow.client.search_runs([flow.client.get_experiment_by_name("small").experiment_id])
    assert {run.info.status for run in runs} == {"KILLED"}


def test_what_is_a_number() -> None:
    record = {"round": 3, "loss": 1.5, "sampled": 4, "start": "global", "bad": None, "flag": True, "nan": float("nan")}
    assert numbers_in(record) == {"loss": 1.5, "sampled": 4.0}


def test_unknown_trackers_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(BadInput, match="unknown tracker 'wandb': choose tensorboard or mlflow"),
        tracked(["wandb"], Silent()),
    ):
        pass
    for module, name in (("torch.utils.tensorboard", "tensorboard"), ("mlflow.tracking", "mlflow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(BadInput, match=rf"pip install 'fedkin\[{name}\]'"), tracked([name], Silent()):
            pass


# -- train -------------------------------------------------------------------------------------------------------------


def test_train_tells_every_round() -> None:
    seen: list[Record] = []
    federation = fedkin.federate(fedkin.load("digits"), clients=4)
    result = fedkin.train(federation, fedkin.FedAvg(), rounds=3, on_round=seen.append)
    assert seen == result.rounds


def test_no_bar_without_a_terminal_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    federation = fedkin.federate(fedkin.load("digits"), clients=4)
    fedkin.train(federation, fedkin.FedAvg(), rounds=2)
    assert capfd.readouterr() == ("", "")
    fedkin.train(federation, fedkin.FedAvg(), rounds=2, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "FedAvg" in err


def test_on_a_terminal_a_bar_appears_after_two_seconds() -> None:
    """In a pseudo-terminal: nothing for a short training, a bar for a longer one."""
    code = (
        "import time; from fedkin.experiments.round_bar import round_bar\n"
        "with round_bar('short', 3, None) as tell:\n    tell({'round': 0})\n"
        "print('between')\n"
        "with round_bar('longer', 3, None) as tell:\n    time.sleep(2.1); tell({'round': 1}); time.sleep(0.2)\n"
    )
    import pty

    main, other = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=other, stdout=other, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    ) as process:
        os.close(other)
        text = b""
        while True:
            try:
                piece = os.read(main, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
    os.close(main)
    assert process.returncode == 0
    before, _, after = text.decode().partition("between")
    assert "short" not in before
    assert "longer" in after
    assert "2/3" in after


def test_a_bar_that_is_not_wanted() -> None:
    with round_bar("x", 2, False) as tell:
        tell({"round": 0})
