"""Leaving with models whose clients have standardised their features by themselves: their means go along."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedkin
from command_line import Refusal
from fedkin import FedAvg, Local
from fedkin.algorithms import FineTuned
from fedkin.data import DataCard, Federation, federate
from fedkin.errors import BadInput
from fedkin.experiments.export import PreparedModule, loading_lines, preprocessing_of
from fedkin.experiments.exporting import export_run
from fedkin.experiments.model_files import read_card, write_model
from fedkin.experiments.results import Result

SETTINGS: dict[str, Any] = {
    "name": "by_client",
    "rounds": 2,
    "partition": {"clients": 3, "size_imbalance": 0.5, "validation": 0.2},
    "data": {"preprocess": "by client"},
    "local": {"step_size": 0.1, "epochs": 1, "batch_size": 32},
    "algorithm": ["fedavg", "finetuned"],
}


def two_clients() -> Federation:
    """Training values 1, 3 (mean 2, deviation 1) and 10, 30 (mean 20, deviation 10)."""
    pairs = {"north": (np.array([[1.0], [3.0]]), [0, 1]), "south": (np.array([[10.0], [30.0]]), [0, 1])}
    return fedkin.from_clients(pairs, pairs, preprocess="by client")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return {run.name: run for run in fedkin.run(SETTINGS, out=tmp_path_factory.mktemp("by client"))}


def own_test_data() -> list[tuple[Any, Any]]:
    """Raw testing samples of each client."""
    federation = federate(fedkin.load("digits"), clients=3, size_imbalance=0.5, validation=0.2, preprocess="none")
    test = federation.test
    return [(test.x[test.rows(i)].numpy(), test.y[test.rows(i)].numpy()) for i in range(3)]


def clients_of(run: Result) -> list[dict[str, Any]]:
    assert run.folder is not None
    return [json.loads(line) for line in (run.folder / "clients.jsonl").read_text().splitlines()]


def test_each_client_has_its_mean_and_deviation() -> None:
    federation = two_clients()
    assert federation.train.x.ravel().tolist() == [-1, 1, -1, 1]
    card = DataCard.of(federation, personal=False)
    assert (card.shift.tolist(), card.scale.tolist()) == ([[2.0], [20.0]], [[1.0], [10.0]])
    assert card.prepared([[4.0]], "north").tolist() == [[2.0]]
    assert card.prepared([[4.0]], "south").tolist() == [[pytest.approx(-1.6)]]
    swapped = DataCard.of(federation.relabelled([1, 0]), personal=False)
    assert (swapped.clients, swapped.shift.tolist()) == (("south", "north"), [[20.0], [2.0]])
    again = DataCard.from_parts(*card.to_parts())
    assert again.is_by_client
    assert again.prepared([[4.0]], 0).tolist() == [[2.0]]


def test_standardised_after_a_common_preprocessing() -> None:
    """(raw − 2)/4 of values 10, 14 is 2, 3: with mean 2.5 and deviation 0.5 that is (raw − 12)/2."""
    pairs = [(np.array([[10.0], [14.0]]), [0, 1]), (np.array([[2.0], [6.0]]), [0, 1])]
    federation = fedkin.from_clients(pairs, pairs, preprocess="none")

    def changed(clients: Any) -> Any:
        return replace(clients, x=(clients.x - 2) / 4)

    common = replace(
        federation,
        train=changed(federation.train),
        test=changed(federation.test),
        shift=torch.tensor([2.0]),
        scale=torch.tensor([4.0]),
    ).standardised_by_client()
    card = DataCard.of(common, personal=False)
    assert (card.shift.tolist(), card.scale.tolist()) == ([[12.0], [4.0]], [[2.0], [2.0]])
    assert common.train.x.ravel().tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("algorithm", [FedAvg(step_size=0.5), FineTuned(step_size=0.5)], ids=["global", "own"])
def test_predictions_by_hand(algorithm: Any) -> None:
    """North's 5 is three deviations above its mean, south's 5 one and a half below: z = 3 w + b and −1.5 w + b."""
    run = fedkin.train(two_clients(), algorithm, rounds=3, graph="uniform")
    for client, x in (("north", 3.0), ("south", -1.5)):
        state = run.state_dict(client)
        z = state["weight"][:, 0] * x + state["bias"]
        found = run.predict([[5.0]], client=client, output="scores")
        np.testing.assert_allclose(found[0], z.numpy(), rtol=1e-6)
    assert run.predict([[5.0]], client="north").tolist() == [1]
    assert run.predict([[5.0]], client="south").tolist() == [0]
    with pytest.raises(
        BadInput, match=r"standardised its features by itself .* name the client whose samples they are"
    ):
        run.predict([[5.0]])
    with pytest.raises(BadInput, match="there is no client 'west'"):
        run.predict([[5.0]], client="west")


@pytest.mark.parametrize("name", ["fedavg", "finetuned"])
def test_predictions_have_the_accuracy_in_the_records(name: str, results: dict[str, Result]) -> None:
    run = results[name]
    assert run.folder is not None
    live = fedkin.train(
        federate(fedkin.load("digits"), clients=3, size_imbalance=0.5, validation=0.2, preprocess="by client"),
        FedAvg(step_size=0.1) if name == "fedavg" else FineTuned(step_size=0.1),
        local=Local(epochs=1, batch_size=32),
        rounds=2,
    )
    for client, (x, y) in zip(clients_of(run), own_test_data(), strict=True):
        for each in (run, fedkin.load_run(run.folder), live):
            assert float((each.predict(x, client=client["client"]) == y).mean()) == client["own_accuracy"]


@pytest.mark.parametrize(("name", "layout"), [("fedavg", "pt"), ("finetuned", "safetensors")])
def test_files_have_the_preprocessing_of_their_client(
    name: str, layout: str, results: dict[str, Result], tmp_path: Path
) -> None:
    run, (x, y) = results[name], own_test_data()[2]
    assert run.folder is not None
    list(export_run(run.folder, "2", layout, tmp_path / f"2.{layout}"))
    known: dict[str, Any] = {"torch": torch, "safetensors": safetensors, "x": torch.from_numpy(x)}
    exec("\n".join(loading_lines(run.trained, tmp_path / f"2.{layout}", layout)), known)
    scores = known["scores"].detach().numpy()
    inside = PreparedModule(run.trained.module(2), **preprocessing_of(run.trained, 2))  # what ONNX contains
    np.testing.assert_array_equal(scores, inside(torch.from_numpy(x)).detach())
    np.testing.assert_allclose(scores, run.predict(x, client=2, output="scores"), rtol=1e-4, atol=1e-5)
    assert float((scores.argmax(1) == y).mean()) == clients_of(run)[2]["own_accuracy"]
    other = run.predict(x, client=1, output="scores")
    assert np.abs(scores - other).max() > 0.01, "the preprocessing of another client"
    if layout == "pt":
        assert (tmp_path / "2.pt").stat().st_size < 20_000, "one client's numbers, not those of all"


def test_a_client_must_be_named(results: dict[str, Result], refused: Refusal, tmp_path: Path) -> None:
    folder = results["fedavg"].folder
    with pytest.raises(BadInput, match="name the client whose samples they are"):
        results["fedavg"].save(tmp_path / "model.safetensors")
    assert "name the client" in refused("export", str(folder), "--out", str(tmp_path / "m.safetensors"))
    assert results["fedavg"].save(tmp_path / "model.safetensors", client="1").exists()
    assert folder is not None
    list(export_run(folder, None, "pt", tmp_path / "all", every=True))
    shifts = [torch.load(tmp_path / "all" / f"{i}.pt")["shift"] for i in range(3)]
    assert torch.equal(torch.stack(shifts), results["fedavg"].trained.card.shift)


def test_pooled_samples_leave_the_testing_clients_their_means() -> None:
    federation = two_clients().pooled()
    for algorithm in (FedAvg(step_size=0.5), FineTuned(step_size=0.5)):
        run = fedkin.train(federation, algorithm, rounds=3, graph="uniform")
        assert run.predict([[5.0]], client="north").tolist() == [1]
        assert run.predict([[5.0]], client="south").tolist() == [0]


def test_tables(tmp_path: Path) -> None:
    rows = {"north": {"age": [30.0, 50.0] * 4, "y": ["no", "yes"] * 4}}
    rows["south"] = {"age": [60.0, 90.0] * 4, "y": ["no", "yes"] * 4}
    federation = fedkin.from_clients(rows, target="y", preprocess="by client", test=0.5)
    run = fedkin.train(federation, FedAvg(step_size=0.5), rounds=3, graph="uniform")
    for client, (young, old) in (("north", (30, 50)), ("south", (60, 90))):
        assert run.predict({"age": [young, old]}, client=client).tolist() == ["no", "yes"]


def test_folders_of_earlier_versions_are_refused(results: dict[str, Result], tmp_path: Path) -> None:
    folder = results["fedavg"].folder
    assert folder is not None
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    w, card = read_card(tmp_path)
    origin = json.loads((tmp_path / "summary.json").read_text())
    write_model(tmp_path, w, replace(card, shift=torch.zeros(64), scale=torch.ones(64)), str(origin))
    run = replace(results["fedavg"], folder=tmp_path)
    with pytest.raises(BadInput, match="an earlier version has not kept their means: run again with --fresh"):
        run.predict(own_test_data()[0][0], client=0)
