"""Scores after the last round: by hand, against scikit-learn, and in the files of a run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

import fedkin
from fedkin.data.federation import Clients
from fedkin.data.target import Target
from fedkin.engine.scores import Predictions, area
from fedkin.models import loss_of
from fedkin.reports.report import shown_tables, write
from fedkin.reports.runs import collect


def clients(sizes: list[int], y: Any) -> Clients:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Clients(torch.zeros(len(y), 1), torch.as_tensor(y), offsets)


def two_classes(p: list[float], y: list[int], sizes: list[int]) -> Predictions:
    means, labels = np.array([[1 - q for q in p], p]), np.array(y)
    losses = -np.log(means[labels, np.arange(len(y))])
    return Predictions(Target("binary"), means, losses, labels, clients(sizes, y))


def test_two_classes_by_hand() -> None:
    """One of six samples is of class 1. Right are 4; recalls 3/5, 1. Of five pairs, 0.6 beats all but 0.7: AUC 4/5."""
    found = two_classes([0.1, 0.2, 0.7, 0.3, 0.55, 0.6], [0, 0, 0, 0, 0, 1], [4, 2])
    scores = found.scores()
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["balanced_accuracy"] == pytest.approx(0.8)
    assert scores["auc"] == pytest.approx(0.8)
    assert scores["confusion"] == [[3, 2], [0, 1]]
    assert scores["log_loss"] == pytest.approx(-math.log(0.9 * 0.8 * 0.3 * 0.7 * 0.45 * 0.6) / 6)
    first, second = found.by_client()
    assert (first["accuracy"], second["accuracy"]) == (0.75, 0.5)
    assert math.isnan(first["auc"]), "one class alone has no pairs"
    assert (second["auc"], second["balanced_accuracy"]) == (1.0, 0.5)


def test_numbers_by_hand() -> None:
    """Misses 1, −1, 2, 0: mse 6/4, mae 1; the values 0, 2, 4, 6 have variance 5, so R² = 1 − 1.5/5."""
    y = np.array([0.0, 2.0, 4.0, 6.0])
    found = Predictions(Target("number"), np.array([[1.0, 1.0, 6.0, 6.0]]), np.zeros(4), y, clients([2, 1, 1], y))
    assert found.scores() == pytest.approx({"mse": 1.5, "mae": 1.0, "r2": 0.7})
    first, second, third = found.by_client()
    assert first == pytest.approx({"mse": 1.0, "mae": 1.0, "r2": 0.0, "loss": 0.0})
    assert (second["mse"], third["mse"]) == (4, 0)
    assert math.isnan(second["r2"]), "a single value has no variance"


def test_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 5):
        y = rng.integers(0, classes, 200)
        means = rng.dirichlet(np.ones(classes), 200).T
        made = clients([50] * 4, y)
        losses = -np.log(means[y, np.arange(200)])
        found = Predictions(Target(), means, losses, y, made)
        scores = found.scores()
        assert scores["log_loss"] == pytest.approx(metrics.log_loss(y, means.T))
        assert scores["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, means.argmax(0)))
        expected = metrics.roc_auc_score(y, means[1] if classes == 2 else means.T, multi_class="ovr")
        assert scores["auc"] == pytest.approx(expected)
        for i, of in enumerate(found.by_client()):
            own = slice(50 * i, 50 * i + 50)
            predicted = means[:, own].argmax(0)
            assert of["accuracy"] == pytest.approx(metrics.accuracy_score(y[own], predicted))
            assert of["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y[own], predicted))
            if classes == 2:
                assert of["auc"] == pytest.approx(metrics.roc_auc_score(y[own], means[1, own]))
    ties = rng.integers(0, 4, 60).astype(float)
    positive = rng.integers(0, 2, 60) == 1
    assert area(ties, positive) == pytest.approx(metrics.roc_auc_score(positive, ties))
    values, guesses = rng.normal(size=200), rng.normal(size=200)
    found = Predictions(Target("number"), guesses[None], np.zeros(200), values, clients([50] * 4, values))
    for i, of in enumerate(found.by_client()):
        own = slice(50 * i, 50 * i + 50)
        assert of["r2"] == pytest.approx(metrics.r2_score(values[own], guesses[own]))


def test_classes_that_never_occur_and_too_many_classes() -> None:
    """A class without samples has no recall and no curve; beyond a hundred classes there is no AUC and no matrix."""
    means = np.array([[0.5, 0.4, 0.1], [0.3, 0.5, 0.2], [0.2, 0.1, 0.7]])
    found = Predictions(Target(), means, np.zeros(3), np.array([0, 1, 1]), clients([3], [0, 1, 1]))
    assert found.scores()["balanced_accuracy"] == pytest.approx(0.75)
    assert found.scores()["auc"] == pytest.approx(0.75), "1 for class 0; of class 1, one of two pairs"
    many = Predictions(Target(), np.eye(101), np.zeros(101), np.arange(101), clients([101], np.arange(101)))
    assert many.scores().keys() == {"accuracy", "balanced_accuracy", "log_loss"}
    alone = two_classes([0.1, 0.2], [0, 0], [2])
    assert math.isnan(alone.scores()["auc"])


# -- in the files of a run ---------------------------------------------------------------------------------------------


def numbers(path: Path) -> Path:
    """Marks at four schools, each with a slope of its own; from 100 to about 130."""
    rng = np.random.default_rng(1)
    school = np.repeat(np.arange(4), 50)
    x = rng.normal(size=(200, 3))
    y = 110 + 5 * x[:, 0] * (school + 1) + rng.normal(size=200)
    np.savez(path, x=x.astype(np.float32), y=y.astype(np.float32), school=school)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression at four schools: FedAvg, fine-tuned and alone."""
    place = tmp_path_factory.mktemp("numbers")
    settings = {
        "name": "marks",
        "rounds": 20,
        "data": {"source": str(numbers(place / "marks.npz")), "preprocess": "standardise"},
        "partition": {"group": "school", "validation": 0.2},
        "graph": {"kind": "uniform"},
        "local": {"step_size": [0.05, 0.2], "epochs": 2, "batch_size": 16},
        "algorithm": ["fedavg", "finetuned", "alone"],
    }
    fedkin.run(settings, out=place)
    return place / "marks"


def test_a_regression_says_nothing_of_accuracy(folder: Path) -> None:
    """In no file, table or figure text of the runs and of the report."""
    write(folder)
    for path in (*folder.rglob("*.json"), *folder.rglob("*.jsonl"), *folder.glob("*.md"), *folder.glob("*.csv")):
        assert "accura" not in path.read_text().lower(), path
    runs = collect(folder)
    assert {run.measure.name for run in runs} == {"mse"}
    tables = shown_tables(runs)
    assert [column for table in tables for column in table.columns if "accura" in column] == []
    assert "linear" in tables[0].title
    assert "softmax" not in tables[0].title


def test_the_best_method_has_the_lowest_error(folder: Path) -> None:
    """Schools differ in slope, so that models of their own are better; the table begins with the lowest error."""
    (table,) = shown_tables(collect(folder))
    place = table.columns.index("mse of clients' models")
    values = [row[place].value for row in table.cells]
    assert values == sorted(values)  # type: ignore[type-var]
    assert table.cells[0][place].best
    assert [row[table.columns.index("method")].text for row in table.cells][-1] == "FedAvg"
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.cells]
    gain = {row["method"].text: row["gain over alone"].value for row in rows}
    assert gain["FedAvg"] < 0, "a higher error is a loss"  # type: ignore[operator]


def test_scores_in_the_summary_and_of_clients(folder: Path) -> None:
    place = folder / "finetuned-step_size=0.05"
    summary = json.loads((place / "summary.json").read_text())
    rounds, clients = (
        [json.loads(line) for line in (place / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "clients.jsonl")
    )
    assert summary["scores"]["own"]["mse"] == pytest.approx(summary["final_own_test_mse"], rel=1e-4)
    assert summary["scores"]["global"]["mse"] == pytest.approx(rounds[-1]["test_mse"], rel=1e-4)
    assert summary["best_test_mse"] == min(record["test_mse"] for record in rounds)
    assert np.mean([client["own_mse"] for client in clients]) == pytest.approx(summary["final_own_test_mse"], rel=1e-4)
    assert max(client["own_mse"] for client in clients) == pytest.approx(summary["final_own_worst_decile"], rel=1e-4)
    assert summary["scores"]["own"]["r2"] > summary["scores"]["global"]["r2"]
    assert (summary["threshold"], summary["rounds_to_threshold"]) == (None, None)
    assert "main_class" not in clients[0]


def test_a_threshold_of_the_error(tmp_path: Path) -> None:
    settings = {
        "rounds": 10,
        "threshold": 60.0,
        "data": {"source": str(numbers(tmp_path / "marks.npz")), "preprocess": "standardise", "task": "regression"},
        "partition": {"clients": 4},
        "graph": {"kind": "uniform"},
        "local": {"step_size": 0.2, "epochs": 2},
    }
    (result,) = fedkin.run(settings, out=tmp_path)
    reached = result.summary["rounds_to_threshold"]
    assert reached > 0
    assert result.test_mse[reached] <= 60 < result.test_mse[reached - 1]
    assert result.rounds_to(60.0) == reached
    (run,) = collect(tmp_path / "experiment")
    assert run.reached == reached
    assert shown_tables([run])[0].columns[1] == "rounds to 60"
    with pytest.raises(fedkin.BadInput, match=r"threshold = 60 is out of range.*data.task = 'regression'"):
        fedkin.run({"threshold": 60.0}, out=tmp_path)


def test_named_classes_in_the_summary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    x = rng.normal(size=(200, 4)) + 2 * y[:, None]
    np.savez(tmp_path / "ill.npz", x=x, y=np.array(["healthy", "ill"])[y])
    base: dict[str, Any] = {
        "rounds": 5,
        "data": {"source": str(tmp_path / "ill.npz"), "preprocess": "none"},
        "partition": {"clients": 4},
        "graph": {"kind": "uniform"},
        "local": {"step_size": 0.2, "epochs": 2},
    }
    (two,) = fedkin.run({**base, "name": "two"}, out=tmp_path)
    (one,) = fedkin.run({**base, "name": "one", "data": {**base["data"], "task": "binary"}}, out=tmp_path)
    assert (two.model.numel(), one.model.numel()) == (2 * 5, 5)
    for result in (one, two):
        assert result.summary["classes"] == ["healthy", "ill"]
        assert result.summary["scores"]["global"]["auc"] > 0.95
        assert np.sum(result.summary["scores"]["global"]["confusion"]) == 40
        assert result.summary["scores"]["global"]["accuracy"] == pytest.approx(result.summary["final_test_accuracy"])
    assert [shown_tables(collect(tmp_path / name))[0].title.split(", ")[-1] for name in ("one", "two")] == [
        "logistic",
        "softmax",
    ]


def test_the_scale_of_a_target_changes_no_measure() -> None:
    """The same least squares, learnt in other units: mean squared errors in units of the data agree."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = 1000 + 50 * x[:, 0] + rng.normal(size=80)
    pairs = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 80, 20)]
    found = []
    for scaling in ("standardise", "minmax"):
        federation = fedkin.from_clients(pairs, pairs, preprocess="none", scale_target=scaling)
        assert loss_of(federation.target).measure.name == "mse"
        local = fedkin.Local(epochs=1, batch_size=None, l2=0.0)
        result = fedkin.train(federation, fedkin.FedAvg(step_size=0.5), graph="uniform", local=local, rounds=150)
        found.append(result.test_mse[-1])
        assert result.summary["scores"]["global"]["mse"] == pytest.approx(result.test_mse[-1], rel=1e-4)
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[0] == pytest.approx(1, abs=0.3), "the variance of the noise"


def test_features_standardised_by_client() -> None:
    """Training values 1, 3 of one client (mean 2, deviation 1) and 10, 10 of another (constant: 0)."""
    x, y = np.array([[1.0], [3.0]]), [0, 1]
    federation = fedkin.from_clients([(x, y), (x * 0 + 10, y)], [(x + 4, y), (x, y)], preprocess="none")
    made = federation.standardised_by_client()
    assert made.train.x.ravel().tolist() == [-1, 1, 0, 0]
    assert made.test.x.ravel().tolist() == [3, 5, -9, -7]
    with pytest.raises(fedkin.BadInput, match="only if testing client i belongs"):
        replace(federation, paired=False).standardised_by_client()


def test_the_testing_part_within_groups() -> None:
    """A quarter of each group, rounded down but at least one: 2 of 8, 1 of 3, 0 of a single sample."""
    groups = np.array(["a"] * 8 + ["b"] * 3 + ["c"])
    x = np.arange(12.0)[:, None]
    data = fedkin.from_arrays(x, np.arange(12) % 2, groups={"town": groups}, test=0.25, within="town")
    assert sorted(data.groups_test["town"].tolist()) == ["a", "a", "b"]
    assert sorted([*data.x_train.ravel(), *data.x_test.ravel()]) == list(range(12))
    other = fedkin.from_arrays(x, np.arange(12) % 2, groups={"town": groups}, test=0.25, within="town", seed=1)
    assert data.x_test.tolist() != other.x_test.tolist()
    with pytest.raises(fedkin.BadInput, match="share of testing samples is 1"):
        fedkin.from_arrays(x, np.arange(12) % 2, test=1.0)
