"""What runs have spent together: in reports, and in whole comparisons."""

from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.arena import Budget, compare
from fedkin.engine.accounting import Release, epsilon_of
from fedkin.experiments.results import COMPARISON_FILE
from fedkin.files import json_object
from fedkin.reports.answer.contenders import fields_of
from fedkin.reports.answer.sentences import answer_of
from fedkin.reports.page.sections import ranking_table
from fedkin.reports.runs import collect

TABLE: dict[str, Any] = {
    "name": "spent",
    "rounds": 2,
    "partition": {"clients": 6},
    "graph": {"kind": "global", "weights": "uniform"},
    "local": {"step_size": 0.1, "epochs": 1},
}


def test_a_report_adds_up_all_runs_on_the_same_data(tmp_path: Path) -> None:
    fedkin.run({**TABLE, "privacy": {"clip": 1.0, "noise": [4.0, 8.0], "delta": 1e-3}}, out=tmp_path)
    (field,) = fields_of(collect(tmp_path))
    answer = answer_of(field)
    whole = epsilon_of([Release(4.0, 1.0, 2), Release(8.0, 1.0, 2)], 1e-3)
    alone = [epsilon_of([Release(noise, 1.0, 2)], 1e-3) for noise in (8.0, 4.0)]
    (said,) = (sentence for sentence in answer.cautions if "ε" in sentence)
    assert f"The 2 runs with noise on these data have ε = {whole:.3g} together, at δ = 0.001" in said
    assert f"each alone {alone[0]:.3g} to {alone[1]:.3g}." in said
    assert answer.ranking is not None
    table = ranking_table(answer.ranking)
    assert ">ε<" in table
    assert f"{alone[1]:.3g}<" in table


def test_without_noise_nothing_is_said(tmp_path: Path) -> None:
    fedkin.run({**TABLE, "privacy": {"clip": [1.0, 2.0]}}, out=tmp_path)
    (field,) = fields_of(collect(tmp_path))
    answer = answer_of(field)
    assert not any("ε" in sentence for sentence in answer.cautions)
    assert answer.ranking is not None
    assert ">ε<" not in ranking_table(answer.ranking)


def test_epsilon_of_a_comparison_covers_trials_and_fresh_seeds(tmp_path: Path) -> None:
    """FedAvg and fine-tuned FedAvg with 2 trials and 1 seed each are 6 runs with noise; alone and pooled have none."""
    table = {**TABLE, "privacy": {"clip": 1.0, "epsilon": 6.0, "delta": 1e-3}}
    found = compare(table, algorithms=["fedavg"], budget=Budget(2, 1), out=tmp_path)
    spent = (json_object(found.folder / COMPARISON_FILE) or {})["privacy"]
    assert spent["runs"] == 6
    assert 5.9 < spent["epsilon"] <= 6.0
    each = [result.summary["privacy"]["epsilon"] for result in found.results if "privacy" in result.summary]
    assert len(each) == 2
    assert each[0] == pytest.approx(each[1])
    assert each[0] < 3.0
    (field,) = fields_of([run for run in collect(found.folder) if not run.settings.get("partition.pooled")])
    assert any("The 6 runs with noise" in sentence for sentence in answer_of(field).cautions)
