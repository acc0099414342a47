"""Runs chosen on validation samples: the choice, its table, its figure and its files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.errors import BadInput
from fedkin.reports.chosen import chosen_figure
from fedkin.reports.curves import curves
from fedkin.reports.report import shown_tables, table, write
from fedkin.reports.runs import collect
from fedkin.reports.selection import Edge, chosen_table, client_values, methods
from run_folders import FEDAVG, FEDKIN, Write, write_run

ALONE = {"name": "alone"}
KIN = {"name": "kin"}


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run with a validation loss into `tmp_path`; `own` is the accuracy of own models, `step` the step size."""

    def write_validated(
        name: str, algorithm: dict[str, Any], loss: float | None, final: float = 0.5, *, step: float = 0.1, **rest: Any
    ) -> Path:
        own, tenth = rest.pop("own", None), rest.pop("tenth", None)
        summed = {"final_validation_loss": loss, "worst_decile": 0.25}
        if own is not None:
            summed |= {"final_own_test_accuracy": own, "final_own_worst_decile": tenth}
        local = {"step_size": step, **rest.pop("local", {})}
        return write_run(tmp_path, name, algorithm, None, final, summed=summed, local=local, **rest)

    return write_validated


def column(folder: Path, title: str) -> list[str]:
    """One column of the table, from top to bottom."""
    shown = chosen_table(collect(folder))
    assert shown is not None
    return [row[shown.columns.index(title)] for row in shown.rows]


# -- the choice --------------------------------------------------------------------------------------------------------


def test_validation_decides_and_not_the_test(run: Write, tmp_path: Path) -> None:
    """γ = 0.1 has the better test accuracy, γ = 0.3 the better validation loss."""
    run("a", FEDAVG, 0.7, 0.9, step=0.1)
    run("b", FEDAVG, 0.6, 0.8, step=0.3)
    run("c", FEDAVG, 0.8, 0.95, step=1.0)
    (method,) = methods(collect(tmp_path))
    assert (method.label, method.tuned) == ("FedAvg", "γ=0.3")
    assert [chosen.name for chosen in method.chosen] == ["b"]


def test_neither_diverged_nor_running_runs_are_chosen(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 0.7, step=0.1)
    run("b", FEDAVG, 0.1, step=0.3, status="diverged", diverged_at=7)
    run("c", FEDAVG, None, step=1.0)
    run("d", FEDAVG, 0.2, step=3.0, summary=False, extra={"validation_loss": 0.2})
    run("e", KIN, 0.1, status="diverged", diverged_at=7)
    (method,) = methods(collect(tmp_path))
    assert [chosen.name for chosen in method.chosen] == ["a"]
    assert method.tuned == ""  # of the usable ones there is only one


def test_each_seed_has_its_own_choice(run: Write, tmp_path: Path) -> None:
    for seed, losses in enumerate([(0.5, 0.6, 0.7), (0.9, 0.8, 0.85), (0.5, 0.45, 0.6)]):
        for step, loss in zip((0.1, 0.3, 1.0), losses, strict=True):
            run(f"{seed}-{step}", FEDAVG, loss, step=step, seed=seed)
    (method,) = methods(collect(tmp_path))
    assert [chosen.name for chosen in method.chosen] == ["0-0.1", "1-0.3", "2-0.3"]
    assert method.tuned == "γ=0.1 or 0.3"


def test_numbers_are_tuned_and_words_distinguish(run: Write, tmp_path: Path) -> None:
    """κ, k and a batch of all samples are values of numbers; whose models are averaged is a word, also by default."""
    run("a", FEDKIN, 0.5)
    run("b", FEDKIN | {"kin": "graph", "kappa": 1.0}, 0.4)
    run("c", FEDKIN | {"kin": "updates", "kappa": 1.0, "neighbours": 4}, 0.3)
    run("d", FEDKIN | {"kin": "updates", "kappa": 1.0, "neighbours": 8}, 0.2, local={"batch_size": 16})
    run("e", FEDKIN | {"kin": "updates", "kappa": 1.0, "neighbours": 8}, 0.1, local={"batch_size": "all"})
    run("f", FEDAVG, 0.5, graph={"message": "mean"})
    run("g", FEDAVG, 0.4, graph={"message": "component"})
    found = {method.label: method for method in methods(collect(tmp_path))}
    assert {label: [r.name for r in method.chosen] for label, method in found.items()} == {
        "FedKin β=0.5, kin=graph, message=mean": ["b"],
        "FedKin β=0.5, kin=updates, message=mean": ["e"],
        "FedAvg, message=mean": ["f"],
        "FedAvg, message=component": ["g"],
    }
    assert found["FedKin β=0.5, kin=graph, message=mean"].tuned == "κ=1"
    assert found["FedKin β=0.5, kin=updates, message=mean"].tuned == "neighbours=8, batch size=all"


def test_values_at_the_edge_of_a_grid(run: Write, tmp_path: Path) -> None:
    """γ = 0.3 is the largest of FedAvg, but not of Kin, whose run with γ = 1 diverged; β = 1 is FedKin's limit."""
    for step, loss in ((0.1, 0.7), (0.3, 0.6)):
        run(f"f{step}", FEDAVG, loss, step=step)
        run(f"k{step}", KIN, loss, step=step)
    run("k1", KIN, None, step=1.0, status="diverged", diverged_at=7)
    for beta, loss in ((0.5, 0.7), (1.0, 0.6)):
        run(f"b{beta}", FEDKIN | {"beta": beta}, loss)
    found = {method.label: method for method in methods(collect(tmp_path))}
    assert found["FedAvg"].edges == (Edge("local.step_size", 0.3, True),)
    assert found["Kin"].edges == ()
    assert found["FedKin"].edges == ()
    assert {label: method.tried for label, method in found.items()} == {"FedAvg": 2, "Kin": 3, "FedKin": 2}


def test_most_seeds_decide_about_an_edge(run: Write, tmp_path: Path) -> None:
    for seed, best in enumerate((0.1, 0.1, 0.3)):
        for step in (0.1, 0.3, 1.0):
            run(f"{seed}-{step}", FEDAVG, 0.5 if step == best else 0.6, step=step, seed=seed)
    (method,) = methods(collect(tmp_path))
    assert method.edges == (Edge("local.step_size", 0.1, False),)


def test_a_tuned_main_hyper_parameter_and_schedules(run: Write, tmp_path: Path) -> None:
    moving = {"from": 0.5, "to": 1.0, "over": 10, "shape": "cosine"}
    run("a", FEDKIN, 0.5)
    run("b", FEDKIN | {"beta": moving}, 0.4)
    (method,) = methods(collect(tmp_path))
    assert method.label == "FedKin"
    assert method.tuned == "β=(from 0.5, to 1, over 10, shape cosine)"


def test_problems_and_experiments_are_kept_apart(run: Write, tmp_path: Path) -> None:
    for clients, loss in ((10, 0.5), (20, 0.6)):
        run(f"a{clients}", FEDAVG, loss, 0.7, partition={"clients": clients})
        run(f"k{clients}", ALONE, loss, own=0.5 + clients / 100, tenth=0.1, partition={"clients": clients})
    assert column(tmp_path, "clients") == ["10", "10", "20", "20"]
    assert column(tmp_path, "method") == ["FedAvg", "Alone"] * 2
    assert column(tmp_path, "gain over alone") == ["+10.0 pp", "—", "+0.0 pp", "—"]
    run("b", FEDAVG, 0.1, experiment="other", partition={"clients": 10})
    assert column(tmp_path, "experiment") == ["demo"] * 4 + ["other"]
    assert column(tmp_path, "gain over alone")[-1] == "—"  # the run of `alone` belongs to another experiment


# -- the table ---------------------------------------------------------------------------------------------------------


def write_comparison(run: Write) -> None:
    """Alone, FedAvg, FedAvg of pooled samples and Kin with four clients, two of which are better off without FedAvg."""
    run("l1", ALONE, 0.9, own=0.6, tenth=0.3, step=0.1, clients={"a": 0.5, "b": 0.75, "c": 0.5, "d": 0.65})
    run("l2", ALONE, 1.0, own=0.65, tenth=0.4, step=0.3, clients=dict.fromkeys("abcd", 0.0))
    run("f1", FEDAVG, 0.8, 0.55, step=0.1, clients={"a": 0.5, "b": 0.5, "c": 0.7, "d": 0.5})
    run("f2", FEDAVG, 0.85, 0.95, step=0.3)
    run("k1", KIN, 0.5, 0.2, own=0.8, tenth=0.625, step=0.1)
    run("k2", KIN, 0.4, 0.2, own=0.75, tenth=0.5, step=0.3, clients={"d": 0.7, "c": 0.6, "b": 0.8, "a": 0.4})
    run("p", FEDAVG, 0.6, 0.7, step=0.1, partition={"pooled": True}, local={"epochs": 1})


def test_table(run: Write, tmp_path: Path) -> None:
    write_comparison(run)
    shown = chosen_table(collect(tmp_path))
    assert shown is not None
    assert shown.title == "demo, chosen on validation: digits, 20 clients, a = 10, b = 1, softmax"
    assert shown.markdown() == (
        "| method | chosen settings | accuracy of clients' models | worst tenth | gain over alone "
        "| better off alone |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        "| Kin | γ=0.3 | **75.0 %** | **50.0 %** | +15.0 pp | 25 % |\n"
        "| FedAvg, pooled |  | 70.0 % | 25.0 % | +10.0 pp | — |\n"
        "| Alone | γ=0.1 | 60.0 % | 30.0 % | — | — |\n"
        "| FedAvg | γ=0.1 | 55.0 % | 25.0 % | -5.0 pp | 50 % |\n"
    )
    assert shown.csv().splitlines()[1] == "Kin,γ=0.3,0.75,0.5,0.15,0.25"


def test_several_seeds_have_a_mean_and_its_standard_error(run: Write, tmp_path: Path) -> None:
    """Accuracies 70, 80, 90 %: deviation 10, error 10/√3 = 5.77. Gains 10, 10, 40: mean 20, error √300/√3 = 10."""
    for seed, (alone, kin) in enumerate([(0.6, 0.7), (0.7, 0.8), (0.5, 0.9)]):
        run(f"l{seed}", ALONE, 0.9, own=alone, tenth=0.1, seed=seed, clients={"a": 0.5, "b": 0.5})
        clients = {"a": 0.6, "b": 0.4 if seed == 0 else 0.5}
        run(f"k{seed}", KIN, 0.4, own=kin, tenth=0.5, seed=seed, clients=clients)
    shown = chosen_table(collect(tmp_path))
    assert shown is not None
    assert shown.rows[0] == ("Kin", "", "3", "80.0 ± 5.8 %", "50.0 ± 0.0 %", "+20.0 ± 10.0 pp", "17 ± 17 %")
    assert '''accuracy of clients' models,"accuracy of clients' models, standard error"''' in shown.csv()


def test_a_seed_without_alone_is_said(run: Write, tmp_path: Path) -> None:
    run("l0", ALONE, 0.9, own=0.5, tenth=0.1, seed=0)
    for seed in (0, 1):
        run(f"k{seed}", KIN, 0.4, own=0.7, tenth=0.5, seed=seed)
    assert column(tmp_path, "gain over alone")[0] == "+20.0 pp (1 of 2)"
    assert column(tmp_path, "better off alone") == ["—", "—"]


def test_without_alone_there_is_no_comparison(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 0.5)
    shown = chosen_table(collect(tmp_path))
    assert shown is not None
    assert shown.columns == ("method", "chosen settings", "accuracy", "worst tenth")


def test_damaged_lists_of_clients_are_left_out(run: Write, tmp_path: Path) -> None:
    folder = run("a", ALONE, 0.5, own=0.5, tenth=0.1, clients={"a": 0.5})
    assert client_values(collect(tmp_path)[0]) == {"a": 0.5}
    for text in ("{", "[1]\n", '{"client": "a"}\n'):
        (folder / "clients.jsonl").write_text(text)
        assert client_values(collect(tmp_path)[0]) == {}


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_terminal_shows_all_runs_unless_all_are_validated(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 0.5)
    run("b", FEDAVG, None, step=1.0, status="diverged", diverged_at=7)
    runs = collect(tmp_path)
    assert shown_tables(runs) == [chosen_table(runs)]
    write_run(tmp_path, "c", FEDKIN)
    runs = collect(tmp_path)
    assert shown_tables(runs) == [table(runs), chosen_table(runs)]
    other = write_run(tmp_path, "d", FEDAVG, experiment="other")
    runs = collect(other)
    assert shown_tables(runs) == [table(runs)]
    assert chosen_table(runs) is None
    with pytest.raises(BadInput, match=r"no run has been validated: set partition\.validation"):
        chosen_figure(runs)


def test_files(run: Write, tmp_path: Path) -> None:
    write_comparison(run)
    folder = tmp_path / "demo"
    names = (
        "report.html",
        "report.md",
        "report.csv",
        "chosen.csv",
        "curves.png",
        "curves.pdf",
        "chosen.png",
        "chosen.pdf",
    )
    assert write(folder) == [folder / name for name in names]
    page = (folder / "report.md").read_text()
    shown = chosen_table(collect(folder))
    assert shown is not None
    assert page.index("](curves.png)") < page.index("## Chosen on validation") < page.index(shown.markdown())
    assert page.endswith("](chosen.png)\n")
    assert (folder / "chosen.csv").read_text() == shown.csv()
    assert "| Kin | 0.3 | 5 | — |" in page  # all runs are listed, with their own models
    assert "| 75.0 % | 50.0 % |" in page


def test_the_table_of_runs_has_columns_for_own_models(run: Write, tmp_path: Path) -> None:
    run("a", FEDAVG, 0.5, 0.7)
    run("k", KIN, 0.5, 0.2, own=0.75, tenth=0.5)
    shown = table(collect(tmp_path))
    places = [shown.columns.index(title) for title in ("final accuracy", "own accuracy", "own worst decile")]
    assert [[row[place] for place in places] for row in shown.rows] == [
        ["70.0 %", "—", "—"],
        ["20.0 %", "75.0 %", "50.0 %"],
    ]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_figure_shows_every_client_and_the_chosen_runs(run: Write, tmp_path: Path) -> None:
    write_comparison(run)
    figure = chosen_figure(collect(tmp_path))
    clients, rounds = figure.axes
    assert [label.get_text() for label in clients.get_yticklabels()] == ["Kin", "FedAvg, pooled", "Alone", "FedAvg"]
    dots = np.concatenate([np.asarray(dot.get_offsets()) for dot in clients.collections])
    assert sorted(round(float(x), 3) for x, y in dots if round(y) == 0) == [0.4, 0.6, 0.7, 0.8]
    assert sorted(round(float(x), 3) for x, y in dots if round(y) == 2) == [0.5, 0.5, 0.65, 0.75]
    assert not [x for x, y in dots if round(y) == 1]  # pooled samples have no clients
    assert len({(x, y) for x, y in dots}) == 12  # clients with the same accuracy do not hide each other
    assert [text.get_text() for text in clients.texts] == ["75.0 %", "70.0 %", "60.0 %", "55.0 %"]
    assert [line.get_label() for line in rounds.lines] == ["Kin", "FedAvg, pooled", "Alone", "FedAvg"]
    assert len({(str(line.get_color()), str(line.get_linestyle())) for line in rounds.lines}) == 4
    figure.draw_without_rendering()


def test_problems_have_rows_in_the_figure(run: Write, tmp_path: Path) -> None:
    for clients in (10, 20):
        run(f"a{clients}", FEDAVG, 0.5, partition={"clients": clients})
    figure = chosen_figure(collect(tmp_path))
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["clients = 10", "clients = 20"]


def test_curves_show_the_models_that_clients_use(tmp_path: Path) -> None:
    """Own models, measured in every tenth round only, beside a global model."""
    write = partial(write_run, tmp_path)
    write("a", FEDAVG)
    folder = write("k", KIN, extra={"own_test_accuracy": 0.9})
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    kept = [
        line if place % 10 == 9 else line.replace(', "own_test_accuracy": 0.9', "") for place, line in enumerate(lines)
    ]
    (folder / "rounds.jsonl").write_text("\n".join(kept) + "\n")
    accuracy, _ = curves(collect(tmp_path)).axes
    assert accuracy.get_ylabel() == "test accuracy of the clients' models"
    fedavg, kin = accuracy.lines[:2]
    assert len(np.asarray(fedavg.get_ydata())) == 30
    assert np.asarray(kin.get_xdata()).tolist() == [9, 19, 29]
    assert np.asarray(kin.get_ydata()).tolist() == [0.9, 0.9, 0.9]
    raw = curves(collect(tmp_path), ["test_accuracy"]).axes[0]
    assert raw.get_ylabel() == "test accuracy"
    assert np.asarray(raw.lines[1].get_ydata())[0] == 0.4
