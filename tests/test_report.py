"""Tables of runs, and the files of a report."""

import re
from functools import partial
from pathlib import Path

import pytest
from matplotlib.image import imread
from rich.console import Console

from fedkin.errors import BadInput
from fedkin.reports.curves import curves
from fedkin.reports.report import table, write
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from run_folders import FEDAVG, FEDKIN, Write, write_run


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run folder into `tmp_path`."""
    return partial(write_run, tmp_path)


def column(runs: list[Run], title: str) -> list[str]:
    """One column of the table, from top to bottom."""
    shown = table(runs)
    position = shown.columns.index(title)
    return [row[position] for row in shown.rows]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_table_of_a_small_experiment(run: Write, tmp_path: Path) -> None:
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
        console.print(shown)
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


def test_seeds_are_averaged(run: Write, tmp_path: Path) -> None:
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


# -- the files ---------------------------------------------------------------------------------------------------------


def test_write_puts_four_files_into_the_folder(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 20)
    run("b", FEDKIN, 15)
    folder = tmp_path / "demo"
    written = write(folder)
    assert written == [folder / name for name in ("report.html", "report.md", "report.csv", "curves.png", "curves.pdf")]
    page = (folder / "report.md").read_text()
    assert page.startswith("# demo\n\ndigits, 20 clients, a = 10, b = 1, softmax\n\n**FedAvg is best: accuracy 90.0 %")
    assert "\n\n| algorithm |" in page
    assert "| FedKin β=0.5 | **15** | **1.3×** |" in page
    assert "](curves.png)" in page
    assert (folder / "report.csv").read_text() == table(collect(folder)).csv()
    assert imread(folder / "curves.png")[..., :3].std() > 0.05
    before = {path: path.read_bytes() for path in written[1:]}  # the page has its date
    assert {path: path.read_bytes() for path in write(folder)[1:]} == before
    assert not list(folder.glob(".*"))


def test_write_gives_each_experiment_its_own(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, experiment="one")
    run("b", FEDKIN, experiment="two")
    out = tmp_path / "elsewhere"
    assert {path.parent for path in write(tmp_path, out)} == {out / "one", out / "two"}
    assert {path.parent for path in write(tmp_path / "one", out)} == {out}


def test_write_into_a_file_is_refused(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be written to .*: choose another folder"):
        write(tmp_path / "demo", tmp_path / "file")
