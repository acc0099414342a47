"""Measures after some rounds beside published values."""

import json
from pathlib import Path

import pytest

from fedkin.paper.milestones import values_after
from fedkin.paper.reproduce import reproduce
from fedkin.reports.runs import collect


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fedu")
    reproduce("fedu", quick=True, out=out, only=["fedu-fedavg"], overrides=["evaluate_every=1"])
    return out


def test_the_last_and_the_best_round(shown: Path) -> None:
    folder = shown / "quick" / "fedu-fedavg"
    recorded = {
        json.loads((path.parent / "config.json").read_text())["seed"]: [
            json.loads(line)["test_accuracy"] for line in path.read_text().splitlines()
        ]
        for path in folder.glob("*/rounds.jsonl")
    }
    assert set(recorded) == {0, 1}
    runs = collect(folder)
    assert values_after(runs, "test_accuracy", 10) == {seed: values[-1] for seed, values in recorded.items()}
    assert values_after(runs, "test_accuracy", 4) == {seed: values[3] for seed, values in recorded.items()}
    assert values_after(runs, "test_accuracy", 4, max) == {seed: max(values[:4]) for seed, values in recorded.items()}
    assert any(max(values) > values[-1] for values in recorded.values())


def test_the_table_has_both(shown: Path) -> None:
    (table,) = reproduce("fedu", quick=True, out=shown, only=["fedu-fedavg"], run=False).tables
    assert table.columns[3:] == ("after them, %", "best round, %", "published", "difference")
    after, best = (float(str(cell).split()[0]) for cell in table.rows[0][3:5])
    assert best > after
