"""Models that clients use, measured after fine-tuning, for any algorithm."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import FedAvg, Kin
from fedkin.algorithms import Algorithm, Alone, FineTuned, Tuning
from fedkin.engine.lanes import parted, together
from fedkin.engine.local_work import script_of
from fedkin.engine.own import models_of, own_models
from fedkin.engine.scores import client_table, predictions, score_summary
from fedkin.errors import BadInput
from fedkin.experiments.results import Result
from fedkin.reports.report import table
from fedkin.reports.runs import collect
from loops import CLIENTS, Loop, played, simulation

SETTINGS: dict[str, Any] = {
    "name": "tuned",
    "rounds": 3,
    "partition": {"clients": 5, "class_imbalance": 3.0, "newcomers": 0.2},
    "local": {"step_size": [0.05, 0.1], "epochs": 1, "batch_size": 32},
    "algorithm": ["fedavg", "kin"],
}


def test_fedavg_with_tuning_is_fine_tuned_fedavg() -> None:
    """To the bit: its global models are FedAvg's, and both tune by the same steps."""
    average, tuned = simulation(FedAvg(step_size=0.2)), simulation(FineTuned(step_size=0.2, tuning_step=0.5))
    (found,), (expected,) = own_models(average, played(average), Tuning(5, 0.5)), own_models(tuned, played(tuned))
    assert {f"tuned_{key[4:]}": value for key, value in expected.items()} == found
    assert set(found) == {"tuned_test_loss", "tuned_test_accuracy", "tuned_worst_decile"}
    for other in (Tuning(4, 0.5), Tuning(5, 0.4)):
        assert own_models(average, played(average), other)[0]["tuned_test_loss"] != found["tuned_test_loss"]


def test_personal_models_are_tuned_from_where_they_are() -> None:
    """One more epoch of each client alone, at half the step size, in float64."""
    run = simulation(Alone(step_size=0.2))
    state, loop = played(run), Loop(run)
    ((_, models),) = models_of(run, state, tuning=Tuning(1, 0.5))
    own = state.memory["own"].at(np.arange(CLIENTS)).double().numpy()
    for i in range(CLIENTS):
        for rows in loop.batches(i)[: len(loop.batches(i)) // 2]:  # of two epochs one
            own[i] = own[i] - 0.1 * loop.gradient(own[i], i, rows)
    np.testing.assert_allclose(models[0].double().numpy(), own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [FedAvg, Alone])
def test_lanes_are_tuned_with_their_own_step_sizes(kind: type[Algorithm]) -> None:
    runs = [simulation(kind(step_size=g)) for g in (0.2, 0.1)]
    group = together(runs)
    state = played(group)
    found = own_models(group, state, Tuning(2, 0.5))
    for run, part, record in zip(runs, parted(state, runs), found, strict=True):
        assert record == pytest.approx(own_models(run, part, Tuning(2, 0.5))[0], rel=1e-4)
    assert found[0]["tuned_test_loss"] != pytest.approx(found[1]["tuned_test_loss"], rel=1e-2)


@pytest.mark.parametrize("algorithm", [FedAvg(step_size=0.2), Alone(step_size=0.2)], ids=["global", "own"])
def test_the_table_of_clients_has_the_mean_of_the_record(algorithm: Algorithm) -> None:
    run = simulation(algorithm)
    state, tuning = played(run, 1), Tuning(3)
    (record,), found = own_models(run, state, tuning), predictions(run, state, tuning)
    table, sizes = client_table(run, state, found), run.federation.test.sizes
    values = np.array([row["tuned_accuracy"] for row in table])
    assert float(values @ sizes / sizes.sum()) == pytest.approx(record["tuned_test_accuracy"])
    assert float(np.sort(values)[:2].mean()) == pytest.approx(record["tuned_worst_decile"]), "two of twenty clients"
    scores = score_summary(run, found)["scores"]["tuned"]
    assert scores["accuracy"] == pytest.approx(record["tuned_test_accuracy"])
    assert any(row["tuned_accuracy"] != row["own_accuracy"] for row in table)
    unpaired = replace(run, federation=replace(run.federation, paired=False))
    assert own_models(unpaired, state, tuning) == []
    assert "tuned" not in predictions(unpaired, state, tuning)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Three rounds, of which the last was added later; measured after rounds 2 and 3."""
    out = tmp_path_factory.mktemp("tuned")
    settings = {**SETTINGS, "fine_tune": 2, "evaluate_every": 2}
    fedkin.run({**settings, "rounds": 2}, out=out)
    return {run.name: run for run in fedkin.run(settings, out=out)}


def without(records: list[dict[str, Any]], *beginnings: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if not k.startswith(("seconds", "check", *beginnings))} for one in records]


def test_runs_record_tuned_models(grown: dict[str, Result], tmp_path: Path) -> None:
    at_once = {r.name: r for r in fedkin.run({**SETTINGS, "fine_tune": 2, "evaluate_every": 2}, out=tmp_path / "a")}
    plain = {r.name: r for r in fedkin.run({**SETTINGS, "evaluate_every": 2}, out=tmp_path / "b")}
    assert grown.keys() == at_once.keys() == plain.keys()
    for name, run in grown.items():
        assert without(run.rounds) == without(at_once[name].rounds), "continued with the same bits"
        assert without(run.rounds, "tuned", "newcomer_tuned") == without(plain[name].rounds), "training is untouched"
        assert torch.equal(run.model, plain[name].model)
        assert [("tuned_test_accuracy" in r, "newcomer_tuned_accuracy" in r) for r in run.rounds] == [
            (False, False),
            (True, True),
            (True, True),
        ]
        assert run.summary["final_tuned_test_accuracy"] == run.rounds[-1]["tuned_test_accuracy"]
        assert run.folder is not None
        table = [json.loads(line) for line in (run.folder / "clients.jsonl").read_text().splitlines()]
        old = [row for row in table if "newcomer" not in row]
        (new,) = [row for row in table if "newcomer" in row]
        mean = sum(r["tuned_accuracy"] * r["test_samples"] for r in old) / sum(r["test_samples"] for r in old)
        assert mean == pytest.approx(run.rounds[-1]["tuned_test_accuracy"])
        assert new["tuned_accuracy"] == pytest.approx(run.rounds[-1]["newcomer_tuned_accuracy"])


def test_in_memory() -> None:
    federation = fedkin.federate(fedkin.load("digits"), clients=4, validation=0.2)
    run = fedkin.train(federation, Kin(step_size=0.1), rounds=2, fine_tune=1)
    assert run.tuned_test_accuracy[-1] == pytest.approx(run.summary["scores"]["tuned"]["accuracy"])
    with pytest.raises(BadInput, match="-1 epochs of fine-tuning"):
        fedkin.train(federation, FedAvg(), rounds=1, fine_tune=-1)
    with pytest.raises(BadInput, match="the step of fine-tuning = 0 is out of range"):
        fedkin.train(federation, FedAvg(), rounds=1, fine_tune=1, fine_tune_step=0.0)


def test_the_report_has_columns_for_tuned_models(grown: dict[str, Result]) -> None:
    folder = grown["kin-step_size=0.1"].folder
    assert folder is not None
    shown = table(collect(folder))
    accuracy, tenth = (shown.columns.index(title) for title in ("tuned accuracy", "tuned worst decile"))
    summary = grown["kin-step_size=0.1"].summary
    assert shown.rows[0][accuracy] == f"{100 * summary['final_tuned_test_accuracy']:.1f} %"
    assert shown.rows[0][tenth] == f"{100 * summary['final_tuned_worst_decile']:.1f} %"


@pytest.mark.parametrize("sizes", [[0.1], [0.1, 0.2]], ids=["alone", "lanes"])
def test_steps_are_traced_once_although_training_and_tuning_alternate(
    sizes: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, the algorithm's fine-tuning and that of the run: three traces in four measured rounds.

    At the end every run of several is measured by itself, with traces of its two kinds of fine-tuning.
    """
    made: list[int] = []

    def counted(*given: Any) -> Any:
        made.append(given[-1])
        return script_of(*given)

    monkeypatch.setattr("fedkin.engine.traces.script_of", counted)
    monkeypatch.setattr("fedkin.engine.cohorts.MUCH", 0)  # compiled, however short
    settings = {"name": "traced", "rounds": 4, "fine_tune": 2, "partition": {"clients": 5, "kinds": 2}}
    algorithm = {"name": "finetuned", "tuning_epochs": 3}
    runs = fedkin.run({**settings, "local": {"epochs": 1, "step_size": sizes}, "algorithm": [algorithm]}, out=tmp_path)
    assert len(runs) == len(sizes)
    assert len(made) == 3 + (2 * len(runs) if len(runs) > 1 else 0)
    assert len(set(made)) == 3
    assert all(np.isfinite(run.tuned_test_loss).all() for run in runs)
