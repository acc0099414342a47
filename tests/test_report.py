"""Tables and curves, from run folders written here by hand."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from fedkin.errors import BadInput
from fedkin.reports.curves import curves
from fedkin.reports.report import table, write
from fedkin.reports.runs import Run, collect

FEDAVG = {"name": "fedavg"}
FEDKIN = {"name": "fedkin", "beta": 0.5}

Write = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run folder; its test accuracy reaches 80 % in the round `reached`."""

    def write_run(
        name: str,
        algorithm: dict[str, Any],
        reached: int | None = 20,
        final: float = 0.9,
        *,
        experiment: str = "demo",
        rounds: int = 30,
        status: str = "finished",
        diverged_at: int | None = None,
        seconds: float = 3.0,
        seed: int = 0,
        threshold: float = 0.8,
        summary: bool = True,
        extra: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> Path:
        folder = tmp_path / experiment / name
        folder.mkdir(parents=True)
        config: dict[str, Any] = {
            "name": experiment,
            "seed": seed,
            "rounds": 30,
            "threshold": threshold,
            "data": {"source": "digits"},
            "partition": {"clients": 20, "class_imbalance": 10.0, "size_imbalance": 1.0},
            "graph": {"message": "mean"},
            "model": {"kind": "softmax"},
            "local": {"step_size": 0.01, "epochs": 5},
        }
        for section, entries in sections.items():
            config[section] = config[section] | entries
        (folder / "config.json").write_text(json.dumps(config | {"algorithm": algorithm}))
        records = []
        for number in range(rounds):
            good = reached is not None and number >= reached
            gone = diverged_at is not None and number >= diverged_at
            loss = None if gone else 2.0 / (1 + number)
            records.append(
                {
                    "round": number,
                    "train_loss": loss,
                    "test_loss": loss,
                    "train_accuracy": 0.5,
                    "test_accuracy": (final if number == rounds - 1 else 0.8) if good else 0.4,
                    "seconds": 0.1,
                    **(extra or {}),
                }
            )
        (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        if summary:
            content = {
                "experiment": experiment,
                "run": name,
                "algorithm": algorithm["name"],
                "hyperparameters": {k: v for k, v in algorithm.items() if k != "name"},
                "status": status,
                "final_test_accuracy": final,
                "best_test_accuracy": final,
                "rounds_to_threshold": reached,
                "threshold": threshold,
                "seconds": seconds,
                "rounds": rounds,
            }
            if diverged_at is not None:
                content["diverged_at"] = diverged_at
            (folder / "summary.json").write_text(json.dumps(content))
        return folder

    return write_run


def column(runs: list[Run], title: str) -> list[str]:
    """One column of the table, from top to bottom."""
    shown = table(runs)
    position = shown.columns.index(title)
    return [row[position] for row in shown.rows]


# ---- what is read


def test_runs_are_found_at_every_level(run: Write, tmp_path: Path) -> None:
    folder = run("a", FEDAVG)
    run("b", FEDKIN)
    run("c", FEDKIN, experiment="other")
    assert [found.name for found in collect(tmp_path)] == ["a", "b", "c"]
    assert [found.name for found in collect(tmp_path / "demo")] == ["a", "b"]
    (alone,) = collect(folder)
    assert (alone.experiment, alone.name, alone.status, alone.label) == ("demo", "a", "finished", "FedAvg")


def test_null_becomes_nan(run: Write) -> None:
    (found,) = collect(run("a", FEDKIN, diverged_at=2, rounds=4, status="diverged"))
    np.testing.assert_array_equal(found.rounds["train_loss"], [2.0, 1.0, math.nan, math.nan])
    np.testing.assert_array_equal(found.rounds["round"], [0, 1, 2, 3])


def test_nothing_to_report_is_said_in_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere does not exist: give the folder"):
        collect(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"there are no usable runs in .*: give the folder that 'fedkin run' wrote"):
        collect(tmp_path)
    (tmp_path / "config.json").write_text('{"compiler": "of another program"}')
    with pytest.raises(BadInput, match="no usable runs"):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", "{", "config.json is not valid JSON"),
        ("config.json", "[]", "config.json holds no table"),
        ("config.json", "{}", "config.json names no algorithm"),
        ("config.json", None, "config.json is missing"),
        ("rounds.jsonl", None, "rounds.jsonl is missing"),
        ("rounds.jsonl", '{"round": 0}\n{"rou\n{"round": 2}\n', "line 2 of rounds.jsonl is damaged"),
        ("rounds.jsonl", '{"loss": 0}\n{"round": 2}\n', "line 1 of rounds.jsonl is damaged"),
        ("summary.json", "", "summary.json is not valid JSON"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(
    run: Write, tmp_path: Path, file: str, content: str | None, complaint: str
) -> None:
    run("good", FEDAVG)
    bad = run("bad", FEDKIN)
    if content is None:
        (bad / file).unlink()
    else:
        (bad / file).write_text(content)
    with pytest.warns(UserWarning, match=f"demo/bad: {complaint}"):
        runs = collect(tmp_path)
    assert [found.name for found in runs] == ["good"]


def test_a_line_cut_short_by_a_kill_is_ignored(run: Write) -> None:
    folder = run("a", FEDKIN, rounds=5, summary=False)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "train_lo')
    (found,) = collect(folder)
    assert found.rounds["round"].tolist() == [0, 1, 2, 3, 4]


# ---- labels and order


def test_labels_name_the_knob_and_what_differs(run: Write, tmp_path: Path) -> None:
    run("e", {"name": "scaffold", "server_step": 1.0})
    run("d", {"name": "fedkin", "beta": {"kind": "linear", "start": 1.0, "end": 0.5}})
    run("c1", FEDKIN)
    run("c2", {"name": "fedkin", "beta": 0.9})
    run("b2", {"name": "fedprox", "alpha": 1.0})
    run("b1", {"name": "fedprox", "alpha": 0.1})
    run("a", FEDAVG)
    assert [found.label for found in collect(tmp_path)] == [
        "FedAvg",
        "FedProx α=0.1",
        "FedProx α=1",
        "FedKin β=0.9",
        "FedKin β=0.5",
        "FedKin β=linear(start 1, end 0.5)",
        "scaffold server step=1",
    ]
    run("f", FEDKIN, local={"step_size": 0.1})
    assert "FedKin β=0.5, γ=0.1" in [found.label for found in collect(tmp_path)]


# ---- the table


def test_table_of_a_small_experiment_to_the_letter(run: Write, tmp_path: Path) -> None:
    """The paper's row: FedAvg needs 20 rounds, FedKin 19 and 15; 20 / 19 = 1.05, 20 / 15 = 1.33."""
    run("a", FEDAVG, 20, 0.85, seconds=3.0)
    run("b", {"name": "fedprox", "alpha": 0.1}, None, 0.75, seconds=3.26)
    run("c", {"name": "fedkin", "beta": 0.9}, 19, 0.86, seconds=3.5)
    run("d", FEDKIN, 15, 0.8604, seconds=120)
    shown = table(collect(tmp_path))
    assert shown.title == "demo: digits, 20 clients, a = 10, b = 1, softmax"
    assert shown.markdown() == (
        "| algorithm | rounds to 80 % | speed-up | final accuracy | best accuracy | seconds |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| FedAvg | 20 | 1.0× | 85.0 % | 85.0 % | **3.0** |\n"
        "| FedProx α=0.1 | — | — | 75.0 % | 75.0 % | 3.3 |\n"
        "| FedKin β=0.9 | 19 | 1.1× | **86.0 %** | **86.0 %** | 3.5 |\n"
        "| FedKin β=0.5 | **15** | **1.3×** | **86.0 %** | **86.0 %** | 120.0 |\n"
    )
    assert shown.csv() == (
        "algorithm,rounds to 80 %,speed-up,final accuracy,best accuracy,seconds\n"
        "FedAvg,20,1,0.85,0.85,3\n"
        "FedProx α=0.1,,,0.75,0.75,3.26\n"
        "FedKin β=0.9,19,1.052631579,0.86,0.86,3.5\n"
        "FedKin β=0.5,15,1.333333333,0.8604,0.8604,120\n"
    )
    assert shown.values[3][:3] == ("FedKin β=0.5", 15.0, 20 / 15)
    console = Console(width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(shown.rich())
    bold = [text.strip() for text in re.findall("\x1b\\[1m(.*?)\x1b", captured.get())]
    assert [text for text in bold if text[:1].isdigit()] == [
        "3.0",
        "86.0 %",
        "86.0 %",
        "15",
        "1.3×",
        "86.0 %",
        "86.0 %",
    ]
    assert "FedKin β=0.5" in captured.get()


def test_speed_up_is_over_the_fedavg_that_agrees_in_all_else(run: Write, tmp_path: Path) -> None:
    """10 / 5 = 2.0 at γ = 0.1 and 30 / 20 = 1.5 at γ = 0.01; γ = 1 has no FedAvg to compare with."""
    for step, fedavg, fedkin in ((0.1, 10, 5), (0.01, 30, 20), (1.0, None, 3)):
        if fedavg is not None:
            run(f"avg{step}", FEDAVG, fedavg, local={"step_size": step})
        run(f"kin{step}", FEDKIN, fedkin, local={"step_size": step})
    runs = collect(tmp_path)
    assert column(runs, "algorithm") == ["FedAvg"] * 2 + ["FedKin β=0.5"] * 3
    assert column(runs, "step size γ") == ["0.01", "0.1", "0.01", "0.1", "1"]
    assert column(runs, "speed-up") == ["1.0×", "1.0×", "1.5×", "2.0×", "—"]


def test_one_fedavg_is_the_baseline_for_every_graph(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20)
    run("b", FEDKIN, 10, graph={"message": "component"})
    assert column(collect(tmp_path), "speed-up") == ["1.0×", "2.0×"]


def test_round_zero_has_no_speed_up(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20)
    run("b", FEDKIN, 0)
    assert column(collect(tmp_path), "rounds to 80 %") == ["20", "0"]
    assert column(collect(tmp_path), "speed-up") == ["1.0×", "—"]


def test_without_fedavg_there_is_no_speed_up(run: Write, tmp_path: Path) -> None:
    run("b", FEDKIN)
    assert "speed-up" not in table(collect(tmp_path)).columns


def test_seeds_are_taken_together(run: Write, tmp_path: Path) -> None:
    """Rounds 14, 16, 18: mean 16, standard deviation √((4 + 0 + 4) / 2) = 2; accuracies likewise 85 ± 5 %.

    Speed-ups seed by seed 28/14, 24/16, 18/18 = 2, 1.5, 1: mean 1.5, standard deviation 0.5.
    """
    for seed, (fedavg, fedkin, final) in enumerate([(28, 14, 0.8), (24, 16, 0.85), (18, 18, 0.9)]):
        run(f"a{seed}", FEDAVG, fedavg, 0.8, seed=seed)
        run(f"k{seed}", FEDKIN, fedkin, final, seed=seed)
    shown = table(collect(tmp_path))
    assert shown.columns[:2] == ("algorithm", "seeds")
    assert shown.rows[1] == (
        "FedKin β=0.5",
        "3",
        "16.0 ± 2.0",
        "1.5 ± 0.5×",
        "85.0 ± 5.0 %",
        "85.0 ± 5.0 %",
        "3.0 ± 0.0",
    )
    assert len(shown.rows) == 2
    assert 'rounds to 80 %,"rounds to 80 %, standard deviation"' in shown.csv()
    assert "FedKin β=0.5,3,16,2,1.5,0.5,0.85,0.05," in shown.csv()


def test_a_mean_over_some_seeds_says_so_and_is_not_best(run: Write, tmp_path: Path) -> None:
    for seed, reached in enumerate([2, None, 4]):
        run(f"a{seed}", FEDAVG, 20, seed=seed)
        run(f"k{seed}", FEDKIN, reached, seed=seed)
        run(f"l{seed}", {"name": "fedkin", "beta": 0.9}, 10, seed=seed)
    shown = table(collect(tmp_path))
    cells = {row[0].text: row[2] for row in shown.cells}
    assert cells["FedKin β=0.5"].text == "3.0 ± 1.4 (2 of 3)"
    assert not cells["FedKin β=0.5"].best
    assert cells["FedKin β=0.9"].best
    assert "rounds to 80 %, seeds" in shown.csv()


def test_the_same_run_twice_is_not_two_seeds(run: Write, tmp_path: Path) -> None:
    run("first", FEDKIN)
    run("second", FEDKIN)
    assert column(collect(tmp_path), "run") == ["first", "second"]
    assert "seeds" not in table(collect(tmp_path)).columns


def test_best_is_per_learning_problem(run: Write, tmp_path: Path) -> None:
    for imbalance, easier in ((10.0, 0), (100.0, 5)):
        partition = {"class_imbalance": imbalance}
        run(f"a{imbalance}", FEDAVG, 20 + easier, partition=partition)
        run(f"k{imbalance}", FEDKIN, 15 + easier, partition=partition)
    shown = table(collect(tmp_path))
    assert column(collect(tmp_path), "class imbalance a") == ["10", "10", "100", "100"]
    assert [row[2].best for row in shown.cells] == [False, True, False, True]


def test_diverged_and_running_runs_are_shown_and_do_not_compete(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20, 0.9)
    run("b", FEDKIN, None, 0.1, status="diverged", diverged_at=7, rounds=8, seconds=0.8)
    run("c", {"name": "fedkin", "beta": 0.9}, 6, 0.95, rounds=12, summary=False)
    runs = collect(tmp_path)
    assert [found.status for found in runs] == ["finished", "running", "diverged"]
    assert column(runs, "status") == ["finished", "running, round 11 of 30", "diverged at round 7"]
    # The running one is summed up from its rounds: 80 % in round 6, 12 rounds of 0.1 s.
    assert column(runs, "rounds to 80 %") == ["20", "6", "—"]
    assert column(runs, "speed-up") == ["1.0×", "3.3×", "—"]
    assert column(runs, "final accuracy") == ["90.0 %", "95.0 %", "10.0 %"]
    assert column(runs, "seconds") == ["3.0", "1.2", "0.8"]
    assert not any(cell.best for row in table(runs).cells for cell in row)


def test_a_run_that_has_just_started_has_nothing_to_show_yet(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    folder = run("b", FEDKIN, summary=False)
    (folder / "rounds.jsonl").write_text("")
    runs = collect(tmp_path)
    assert table(runs).rows[1] == ("FedKin β=0.5", "—", "—", "—", "—", "—", "running")
    (folder / "rounds.jsonl").unlink()
    assert collect(tmp_path)[1].status == "running"
    curves(runs).draw_without_rendering()


def test_worst_decile_where_recorded_and_thresholds_that_differ(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, extra={"worst_decile": 0.625})
    run("b", FEDKIN, threshold=0.9)
    runs = collect(tmp_path)
    assert column(runs, "worst decile") == ["62.5 %", "—"]
    assert column(runs, "threshold") == ["0.8", "0.9"]
    assert column(runs, "speed-up") == ["1.0×", "—"]
    assert column(runs, "rounds to threshold") == ["20", "20"]


def test_experiments_side_by_side_are_not_mixed(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20, experiment="one")
    run("b", FEDKIN, 10, experiment="two")
    runs = collect(tmp_path)
    assert column(runs, "experiment") == ["one", "two"]
    assert column(runs, "speed-up") == ["1.0×", "—"]


# ---- the curves


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


def test_more_problems_than_fit_are_not_dropped_in_silence(run: Write, tmp_path: Path) -> None:
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


def test_a_run_that_blows_up_ends_in_a_cross_and_does_not_flatten_the_others(run: Write, tmp_path: Path) -> None:
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


# ---- the files


def test_write_puts_four_files_into_the_folder(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20)
    run("b", FEDKIN, 15)
    folder = tmp_path / "demo"
    written = write(folder)
    assert written == [folder / name for name in ("report.md", "report.csv", "curves.png", "curves.pdf")]
    page = (folder / "report.md").read_text()
    assert page.startswith("# demo\n\ndigits, 20 clients, a = 10, b = 1, softmax\n\n| algorithm |")
    assert "| FedKin β=0.5 | **15** | **1.3×** |" in page
    assert "](curves.png)" in page
    assert (folder / "report.csv").read_text() == table(collect(folder)).csv()
    assert imread(folder / "curves.png")[..., :3].std() > 0.05
    before = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in write(folder)} == before
    assert not list(folder.glob(".*"))


def test_write_gives_each_experiment_its_own(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, experiment="one")
    run("b", FEDKIN, experiment="two")
    assert {path.parent for path in write(tmp_path)} == {tmp_path / "one", tmp_path / "two"}
    out = tmp_path / "elsewhere"
    assert {path.parent for path in write(tmp_path, out)} == {out / "one", out / "two"}
    assert {path.parent for path in write(tmp_path / "one", out)} == {out}


def test_write_into_a_file_is_refused(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be written to .*: choose another folder"):
        write(tmp_path / "demo", tmp_path / "file")
