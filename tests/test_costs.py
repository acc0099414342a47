"""Costs and fairness of methods, by hand: what is spent until clients are served as well as by FedAvg."""

from pathlib import Path
from typing import Any

import pytest

from fedkin.reports.answer.contenders import fields_of
from fedkin.reports.answer.costs import cost_table
from fedkin.reports.answer.ranking import ranked
from fedkin.reports.report import cost_tables, report_views, write
from fedkin.reports.runs import collect
from run_folders import FEDAVG, write_run

DITTO, ALONE = {"name": "ditto"}, {"name": "alone"}


def method(
    root: Path, algorithm: dict[str, Any], reached: int | None, final: float, seed: int = 0, down: int = 3, **more: Any
) -> None:
    """30 rounds of 0.1 s, accuracy 40 %, from the round `reached` on 80 %, `final` in the last; MB down, 2 MB up."""
    write_run(
        root,
        f"{algorithm['name']}-{seed}",
        algorithm,
        reached,
        final,
        seed=seed,
        summed={"final_validation_loss": 0.5},
        extra={"bytes_down": down * 1_000_000, "bytes_up": 2_000_000},
        **more,
    )


def shown(folder: Path) -> dict[str, dict[str, str]]:
    """The cells of the table by method and column."""
    (field,) = fields_of(collect(folder))
    ranking = ranked(field)
    assert ranking is not None
    table = cost_table(ranking)
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def test_costs_by_hand(tmp_path: Path) -> None:
    """FedAvg ends with 80 % and has them after its 21st round; Ditto after its sixth: 6 · 5 MB, 0.6 s. Alone never."""
    method(tmp_path, FEDAVG, 20, 0.8)
    method(tmp_path, DITTO, 5, 0.9)
    method(tmp_path, ALONE, None, 0.4, down=0)
    found = shown(tmp_path)
    goal = "rounds to FedAvg's accuracy"
    assert [found[name][goal] for name in ("FedAvg", "Ditto", "Alone")] == ["21", "6", "—"]
    assert [found[name]["MB to it"] for name in ("FedAvg", "Ditto", "Alone")] == ["105", "30", "—"]
    assert [found[name]["seconds to it"] for name in ("FedAvg", "Ditto", "Alone")] == ["2.1", "0.6", "—"]
    assert [found["Ditto"][key] for key in ("rounds", "MB down", "MB up", "seconds")] == ["30", "90", "60", "3.0"]


def test_each_seed_has_its_own_goal_and_misses_are_counted(tmp_path: Path) -> None:
    """FedAvg ends with 80 and 85 %. Ditto has 80 % from its fourth round on and never 85."""
    method(tmp_path, FEDAVG, 20, 0.8, seed=0)
    method(tmp_path, FEDAVG, 20, 0.85, seed=1)
    for seed in (0, 1):
        method(tmp_path, DITTO, 3, 0.8, seed=seed)
    found = shown(tmp_path)
    assert found["Ditto"]["rounds to FedAvg's accuracy"] == "4 (1 of 2)"
    assert found["Ditto"]["MB to it"] == "20 (1 of 2)"
    assert found["FedAvg"]["rounds to FedAvg's accuracy"] == "25.5"  # 21 and 30


def test_fairness_and_both_models(tmp_path: Path) -> None:
    """Clients with 50 and 70 %: a deviation of 10. The global model has 90 %. Newcomers do not count."""
    method(tmp_path, FEDAVG, 20, 0.9, clients={"a": 0.5, "b": 0.7})
    method(tmp_path, ALONE, None, 0.3, clients={"a": 0.5, "b": 0.5})
    with (tmp_path / "demo" / "fedavg-0" / "clients.jsonl").open("a") as file:
        file.write('{"client": "c", "own_accuracy": 0.0, "newcomer": true}\n')
    found = shown(tmp_path)
    assert (found["FedAvg"]["global model"], found["FedAvg"]["spread"]) == ("90.0 %", "10.0 %")
    assert (found["Alone"]["global model"], found["Alone"]["spread"]) == ("30.0 %", "0.0 %")


def test_pooled_samples_cost_no_bytes(tmp_path: Path) -> None:
    method(tmp_path, FEDAVG, 20, 0.8)
    method(tmp_path, DITTO, 20, 0.8)
    write_run(
        tmp_path, "pooled", FEDAVG, 2, 0.9, partition={"pooled": True}, summed={"final_validation_loss": 0.5},
        extra={"bytes_down": 1, "bytes_up": 1},
    )  # fmt: skip
    found = shown(tmp_path)["FedAvg, pooled"]
    assert [found[key] for key in ("rounds to FedAvg's accuracy", "MB to it", "MB down", "MB up")] == [
        "3", "—", "—", "—",
    ]  # fmt: skip


def test_without_fedavg_there_is_no_goal(tmp_path: Path) -> None:
    method(tmp_path, DITTO, 5, 0.9)
    method(tmp_path, ALONE, None, 0.4)
    assert list(shown(tmp_path)["Ditto"]) == ["global model", "spread", "rounds", "MB down", "MB up", "seconds"]


def test_where_they_are_shown(tmp_path: Path) -> None:
    """In the terminal, in the Markdown report and on the page, once several methods were chosen on validation."""
    method(tmp_path, FEDAVG, 20, 0.8)
    assert cost_tables(collect(tmp_path)) == []
    method(tmp_path, DITTO, 5, 0.9)
    assert [view.title for view in report_views(tmp_path, 80)[1:]][-1] == "Global model, fairness and costs"
    write(tmp_path / "demo")
    text = (tmp_path / "demo" / "report.md").read_text()
    assert text.index("## Chosen on validation") < text.index("### Global model, fairness and costs")
    assert "| Ditto | 90.0 % | — | 6 | 30 | 0.6 | 30 | 90 | 60 | 3.0 |" in text
    assert "Means over seeds." in text[text.index("| Ditto | 90.0 %") :]


@pytest.mark.parametrize("several", [False, True])
def test_of_several_federations_each_has_a_table(tmp_path: Path, several: bool) -> None:
    for clients in (10, 20) if several else (10,):
        for algorithm in (FEDAVG, DITTO):
            write_run(
                tmp_path, f"{algorithm['name']}-{clients}", algorithm, summed={"final_validation_loss": 0.5},
                partition={"clients": clients},
            )  # fmt: skip
    titles = [table.title for table, _ in cost_tables(collect(tmp_path))]
    assert titles == (
        [f"Global model, fairness and costs: {n} clients" for n in (10, 20)]
        if several
        else ["Global model, fairness and costs"]
    )
