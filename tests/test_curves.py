"""Curves of runs."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedkin.algorithms import ALGORITHMS
from fedkin.errors import BadInput
from fedkin.reports.curves import curves, looks_of
from fedkin.reports.groups import groups_of
from fedkin.reports.runs import collect
from run_folders import FEDAVG, FEDKIN, Write, write_run


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run folder into `tmp_path`."""
    return partial(write_run, tmp_path)


def legend(figure: Figure) -> list[str]:
    """The labels of the legend, in its order."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def inside(figure: Figure) -> bool:
    """Whether panels and legend lie within the figure, and the legend below all panels."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    panels = [box for axes in figure.axes if (box := axes.get_tightbbox()) is not None]
    key = figure.legends[0].get_window_extent()
    within = all(b.x0 > -1 and b.y0 > -1 and b.x1 < width + 1 and b.y1 < height + 1 for b in [*panels, key])
    return within and all(key.y1 <= box.y0 + 1 for box in panels)


def test_curves_show_accuracy_and_loss_of_every_run(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    run("b", {"name": "fedprox", "alpha": 0.1})
    run("c", {"name": "fedkin", "beta": 0.9})
    run("d", FEDKIN)
    figure = curves(collect(tmp_path))
    accuracy, loss = figure.axes
    assert figure.get_suptitle() == "digits, 20 clients, a = 10, b = 1, softmax"
    assert legend(figure) == ["FedAvg", "FedProx α=0.1", "FedKin β=0.9", "FedKin β=0.5"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", "training loss"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["round", "round"]
    assert len(loss.lines) == 4
    assert len(accuracy.lines) == 5  # and the threshold
    assert accuracy.lines[-1].get_ydata() == [0.8, 0.8]
    np.testing.assert_allclose(np.asarray(loss.lines[0].get_ydata()), 2 / (1 + np.arange(30)))
    brightness = [sum(int(str(line.get_color())[i : i + 2], 16) for i in (1, 3, 5)) for line in loss.lines]
    assert brightness[0] < 120  # FedAvg is nearly black
    assert brightness[2] > brightness[3]  # the smaller β is darker
    assert loss.lines[1].is_dashed()
    assert inside(figure)


def test_seeds_become_a_mean_in_a_band(run: Write, tmp_path: Path) -> None:
    run("k0", FEDKIN, 10, seed=0)
    run("k1", FEDKIN, 20, seed=1)
    figure = curves(collect(tmp_path))
    accuracy = figure.axes[0]
    assert figure.get_suptitle().endswith("; mean and range of 2 seeds")
    assert legend(figure) == ["FedKin β=0.5"]
    # Between rounds 10 and 20 one seed is at 0.8, the other at 0.4.
    mean = np.asarray(accuracy.lines[0].get_ydata(), dtype=float)
    np.testing.assert_allclose(mean[[5, 15, 25]], [0.4, 0.6, 0.8])
    corners = np.asarray(accuracy.collections[0].get_paths()[0].vertices)
    assert sorted(corners[corners[:, 0] == 15, 1].tolist()) == [0.4, 0.8]


def test_each_learning_problem_has_its_row(run: Write, tmp_path: Path) -> None:
    for imbalance in (100.0, 10.0):
        for name, algorithm in (("a", FEDAVG), ("k", FEDKIN)):
            run(f"{name}{imbalance}", algorithm, partition={"class_imbalance": imbalance})
    figure = curves(collect(tmp_path))
    assert len(figure.axes) == 4
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["a = 10", "a = 100"]
    assert figure.get_suptitle() == "digits, 20 clients, b = 1, softmax"
    assert legend(figure) == ["FedAvg", "FedKin β=0.5"]
    assert inside(figure)


def test_omitted_problems_are_reported(run: Write, tmp_path: Path) -> None:
    for clients in range(10, 90, 10):
        run(f"c{clients}", FEDAVG, partition={"clients": clients})
    figure = curves(collect(tmp_path))
    assert len(figure.axes) == 12
    assert "the first 6 of 8 settings" in figure.get_suptitle()


def test_forty_runs_keep_a_legible_legend(run: Write, tmp_path: Path) -> None:
    for number in range(40):
        run(f"k{number:02}", {"name": "fedkin", "beta": round(0.99 - number / 50, 3)}, local={"epochs": 5})
    figure = curves(collect(tmp_path))
    assert len(legend(figure)) == 40
    assert inside(figure)
    assert figure.axes[0].get_position().height * figure.get_figheight() > 1.8  # inches: not squeezed


def test_one_round_is_a_point(run: Write, tmp_path: Path) -> None:
    run("a", FEDKIN, rounds=1)
    figure = curves(collect(tmp_path))
    assert figure.axes[1].lines[0].get_marker() == "o"
    assert figure.axes[1].get_xticks().tolist() == [0]
    assert inside(figure)


def test_a_diverging_run_ends_in_a_cross_and_does_not_set_the_scale(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    folder = run("b", FEDKIN, None, 0.1, status="diverged", diverged_at=7, rounds=8)
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    records[6]["train_loss"] = 1e30
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    figure = curves(collect(tmp_path))
    for axes in figure.axes:
        assert [line.get_marker() for line in axes.lines].count("x") == 1
    assert figure.axes[1].get_ylim()[1] < 4
    assert legend(figure) == ["FedAvg", "FedKin β=0.5"]
    assert inside(figure)


def test_quantities_can_be_chosen_and_are_checked(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    runs = collect(tmp_path)
    chosen = curves(runs, ["test_loss", "train_accuracy", "train_loss"], title="mine")
    assert [axes.get_ylabel() for axes in chosen.axes] == ["test loss", "training accuracy", "training loss"]
    assert chosen.get_suptitle() == "mine"
    with pytest.raises(BadInput, match=r"no run has recorded 'tset_loss' \(did you mean 'test_loss'\?\)"):
        curves(runs, ["tset_loss"])


def test_every_algorithm_of_the_registry_can_be_drawn(run: Write, tmp_path: Path) -> None:
    """Also those without colours of their own, and those that are not in the registry."""
    for name in (*ALGORITHMS, "mine:FedMine", "mine:FedYours"):
        run(name.replace(":", "-"), {"name": name})
    runs = collect(tmp_path)
    styles = {(look["color"], str(look.get("linestyle"))) for _, look in looks_of(runs, groups_of(runs)).values()}
    assert len(styles) == len(ALGORITHMS) + 2
    assert len(curves(runs).axes[1].lines) == len(ALGORITHMS) + 2
