"""What a notebook shows: short reprs, tables, figures, completion, frames."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.errors import BadInput
from fedkin.reports.runs import collect
from run_folders import FEDKIN, write_run


@pytest.fixture(scope="module")
def federation() -> fedkin.Federation:
    return fedkin.federate(fedkin.load("digits"), clients=6, validation=0.2)


@pytest.fixture(scope="module")
def result(federation: fedkin.Federation) -> fedkin.Result:
    return fedkin.train(federation, fedkin.Kin(step_size=0.1), rounds=3)


def test_reprs_are_one_short_line(federation: fedkin.Federation, result: fedkin.Result, tmp_path: Path) -> None:
    write_run(tmp_path, "a", FEDKIN)
    (run,) = collect(tmp_path)
    things = {
        "Dataset(digits: 1,438 training and 359 testing samples": fedkin.load("digits"),
        "Federation(digits: 6 clients, 1,150 training and 359 testing samples, 288 held": federation,
        "SimilarityGraph(6 clients, 15 edges, dense)": fedkin.build_graph(federation),
        "Result(Kin: 3 rounds, ": result,
        "Run(demo/a: FedKin β=0.5, finished)": run,
    }
    for begin, thing in things.items():
        assert repr(thing).startswith(begin)
        assert len(repr(thing)) < 160
        assert "\n" not in repr(thing)


def test_tables_are_html_and_escaped(federation: fedkin.Federation, result: fedkin.Result) -> None:
    data = fedkin.from_arrays(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2, name="<b>")
    assert "<b>" not in data._repr_html_()
    assert "&lt;b&gt;" in data._repr_html_()
    for thing in (data, federation, result):
        assert thing._repr_html_().startswith("<table>")
    assert "validation samples</th><td>288" in federation._repr_html_()


def test_measured_quantities_are_completed(result: fedkin.Result) -> None:
    assert {"test_accuracy", "own_test_accuracy", "validation_loss", "bytes_up", "start", "plot", "frame"} <= set(
        dir(result)
    )
    for name in dir(result):
        getattr(result, name)


def test_frames(result: fedkin.Result, tmp_path: Path) -> None:
    frame = result.frame()
    assert frame.index.name == "round"
    assert frame.index.tolist() == [0, 1, 2]
    assert frame["test_accuracy"].tolist() == result.test_accuracy.tolist()
    write_run(tmp_path, "a", FEDKIN)
    (run,) = collect(tmp_path)
    assert run.frame()["train_loss"].tolist() == run.series("train_loss").tolist()


def test_a_frame_without_pandas(result: fedkin.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match=r"pip install 'fedkin\[notebook\]'"):
        result.frame()


def test_figures_display(result: fedkin.Result) -> None:
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def labels(*results: fedkin.Result) -> list[str]:
    figure = fedkin.plot(results)
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_runs_are_told_apart_by_whatever_differs(federation: fedkin.Federation) -> None:
    def trained(step: float = 0.1, **settings: object) -> fedkin.Result:
        return fedkin.train(federation, fedkin.FedAvg(step_size=step), rounds=2, **settings)  # type: ignore[arg-type]

    short, long = trained(0.01), trained(0.1)
    assert labels(short, long) == ["FedAvg γ=0.01", "FedAvg γ=0.1"]
    epochs = trained(local=fedkin.Local(epochs=2))
    assert labels(long, epochs) == ["FedAvg, E=2", "FedAvg, E=10"]
    some = trained(take_part=3)
    assert labels(long, some) == ["FedAvg, take part=3", "FedAvg, take part=all"]
    assert labels(long, trained(0.1)) == ["FedAvg, run=1", "FedAvg, run=2"]
