"""Leaving with the model: named parameters, predictions from raw features, files for other programs."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

import fedkin
from command_line import Refusal
from fedkin.algorithms import FineTuned
from fedkin.data import federate
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments import model_files
from fedkin.experiments.export import export_model, loading_lines
from fedkin.experiments.exporting import export_run
from fedkin.experiments.results import Result

BASE: dict[str, Any] = {
    "name": "leaving",
    "rounds": 2,
    "partition": {"clients": 4, "validation": 0.2},
    "data": {"preprocess": "standardise"},
    "local": {"step_size": 0.1, "epochs": 2, "batch_size": 32},
}
CONV = {"kind": "own_nets:Digits"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Runs of one global model and of personal ones."""
    grid = {**BASE, "algorithm": ["fedavg", "alone", "finetuned", "kin", "ifca", "fedem"]}
    return {result.name: result for result in fedkin.run(grid, out=tmp_path_factory.mktemp("leaving"))}


def digits() -> Any:
    return fedkin.load("digits")


def own_test_data() -> Any:
    """The testing samples of each client, as the clients have them."""
    federation = federate(digits(), clients=4, validation=0.2, preprocess="none")
    test = federation.test
    return [(test.x[test.rows(i)].numpy(), test.y[test.rows(i)].numpy()) for i in range(4)]


# -- predictions -------------------------------------------------------------------------------------------------------


def test_predictions_have_the_recorded_accuracy(results: dict[str, Result]) -> None:
    data, run = digits(), results["fedavg"]
    assert float((run.predict(data.x_test) == data.y_test).mean()) == pytest.approx(run.test_accuracy[-1])
    probabilities = run.predict(data.x_test[:5], output="probabilities")
    scores = run.predict(data.x_test[:5], output="scores")
    assert probabilities.shape == scores.shape == (5, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, shares, rtol=1e-4)
    assert (probabilities.argmax(1) == run.predict(data.x_test[:5])).all()


@pytest.mark.parametrize("name", ["alone", "finetuned", "kin", "ifca", "fedem"])
def test_predictions_of_clients_have_the_recorded_accuracy(name: str, results: dict[str, Result]) -> None:
    run = results[name]
    right = [(run.predict(x, client=i) == y).sum() for i, (x, y) in enumerate(own_test_data())]
    assert sum(right) / sum(len(y) for _, y in own_test_data()) == pytest.approx(run.own_test_accuracy[-1])
    assert (run.predict(digits().x_test, client="2") == run.predict(digits().x_test, client=2)).all()


def test_images_flat_rows_and_tensors_are_the_same(results: dict[str, Result]) -> None:
    x, run = digits().x_test, results["fedavg"]
    expected = run.predict(x, output="scores")
    for other in (x.reshape(len(x), -1), torch.from_numpy(x), x[..., None], x.tolist()):
        np.testing.assert_array_equal(run.predict(other, output="scores"), expected)
    pixels = np.round(x * 255).astype(np.uint8)
    scaled = (pixels / 255).astype(np.float32)
    found = run.predict(pixels, output="scores")
    np.testing.assert_allclose(found, run.predict(scaled, output="scores"), rtol=1e-5, atol=1e-5)
    assert run.predict(x[:0]).shape == (0,)


def test_bad_predictions(results: dict[str, Result]) -> None:
    run, x = results["kin"], digits().x_test
    with pytest.raises(BadInput, match=r"there is no client 'North': give one of the 4 clients, 0, 1, 2, 3"):
        run.predict(x, client="North")
    with pytest.raises(BadInput, match=r"there is no client 4"):
        run.predict(x, client=4)
    with pytest.raises(BadInput, match=r"have shape \(359, 7, 8\), but the model was trained on .* \(1, 8, 8\)"):
        run.predict(x[:, :7], client=0)
    with pytest.raises(BadInput, match="contain NaN"):
        run.predict(np.full((1, 64), np.nan), client=0)
    with pytest.raises(BadInput, match="not numbers"):
        run.predict(np.array([["a"]]), client=0)
    with pytest.raises(BadInput, match="unknown output 'logits': choose values, probabilities, scores"):
        run.predict(x, client=0, output="logits")
    with pytest.warns(UserWarning, match="name a client to get its model"):
        run.predict(x)


def test_in_memory_as_in_folders(results: dict[str, Result]) -> None:
    federation = federate(digits(), clients=4, validation=0.2, preprocess="standardise")
    local = fedkin.Local(epochs=2, batch_size=32)
    for algorithm, name in (
        (FineTuned(step_size=0.1), "finetuned"),
        (fedkin.Kin(step_size=0.1), "kin"),
        (fedkin.FedEM(step_size=0.1), "fedem"),
    ):
        live = fedkin.train(federation, algorithm, local=local, rounds=2)
        for client in range(4):
            for part, value in live.state_dict(client).items():
                torch.testing.assert_close(value, results[name].state_dict(client)[part], rtol=1e-4, atol=1e-5)


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ({"kind": "softmax"}, lambda: nn.Linear(64, 10)),
        ({"kind": "mlp", "hidden": 6}, lambda: nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))),
        (CONV, lambda: __import__("own_nets").Digits()),
    ],
    ids=["softmax", "mlp", "module"],
)
def test_a_state_dict_fits_the_plain_module(model: dict[str, Any], plain: Any, tmp_path: Path) -> None:
    (run,) = fedkin.run({**BASE, "model": model, "algorithm": "fedavg"}, out=tmp_path)
    net, x = plain(), digits().x_test
    net.load_state_dict(run.state_dict())
    shift, scale = (getattr(run.trained.card, name) for name in ("shift", "scale"))
    ready = (torch.from_numpy(x).reshape(len(x), -1) - shift) / scale
    ready = ready.view(-1, 1, 8, 8) if model is CONV else ready
    np.testing.assert_allclose(net.eval()(ready).detach(), run.predict(x, output="scores"), rtol=1e-4, atol=1e-5)


def test_load_run_is_the_run(results: dict[str, Result]) -> None:
    for run in results.values():
        assert run.folder is not None
        again = fedkin.load_run(run.folder)
        assert again.summary == run.summary
        assert again.rounds == run.rounds
        assert again.config["rounds"] == 2
        assert torch.equal(again.model, run.model)
        assert again.test_accuracy.tolist() == run.test_accuracy.tolist()
        client = 1 if run.trained.is_personal else None
        assert all(torch.equal(v, again.state_dict(client)[k]) for k, v in run.state_dict(client).items())


def test_load_run_refuses_what_is_no_run(results: dict[str, Result], tmp_path: Path) -> None:
    folder = results["alone"].folder
    assert folder is not None
    with pytest.raises(BadInput, match=r"holds 6 runs: give the folder of one \(alone, fedavg"):
        fedkin.load_run(folder.parent)
    with pytest.raises(BadInput, match="is not a folder"):
        fedkin.load_run(tmp_path / "nothing")
    damaged = tmp_path / "run"
    for name, says in (("rounds.jsonl", "no finished run, or a damaged one"), ("config.json", "missing or damaged")):
        shutil.copytree(folder, damaged)
        text = (damaged / name).read_text()
        (damaged / name).write_text(text.replace("0.", "9.", 1) if name == "rounds.jsonl" else text[:20])
        with pytest.raises(BadInput, match=says):
            fedkin.load_run(damaged)
        shutil.rmtree(damaged)
    shutil.copytree(folder, damaged)
    content = bytearray((damaged / "own.safetensors").read_bytes())
    content[-5] ^= 1  # at the end of the file are the digests, that of the last client last
    (damaged / "own.safetensors").write_bytes(bytes(content))
    fedkin.load_run(damaged).predict(digits().x_test, client=0)
    with pytest.raises(BadInput, match=r"is damaged: remove it, set keep = 'all'"):
        fedkin.load_run(damaged).predict(digits().x_test, client=3)
    (damaged / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match="damaged"):
        fedkin.load_run(damaged)


def test_own_models_are_kept_by_size_or_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**BASE, "algorithm": "finetuned"}
    with monkeypatch.context() as patch:
        patch.setattr(model_files, "MOST_KEPT", 4 * 650 - 1)
        (run,) = fedkin.run(settings, out=tmp_path)
    assert run.folder is not None
    assert not (run.folder / "own.safetensors").exists()
    with pytest.raises(BadInput, match=r"has no models of its clients: set keep = 'all' and run the experiment again"):
        run.predict(digits().x_test, client=0)
    monkeypatch.setattr(Simulation, "advance", None)  # no round is repeated for them
    before = {k: v for k, v in run.summary.items() if k != "seconds"}
    (again,) = fedkin.run({**settings, "keep": "all"}, out=tmp_path)
    assert again.predict(digits().x_test, client=0).shape == (359,)
    assert {k: v for k, v in again.summary.items() if k != "seconds"} == before


# -- files for other programs ------------------------------------------------------------------------------------------


def loaded(run: Result, path: Path, layout: str, x: Any) -> Any:
    """The scores that the printed lines compute."""
    import onnxruntime

    from own_nets import Digits

    known = {"torch": torch, "safetensors": safetensors, "onnxruntime": onnxruntime, "x": x, "Digits": Digits}
    exec("\n".join(loading_lines(run.trained, path, layout)), known)
    found = known["scores"]
    return found.detach().numpy() if isinstance(found, torch.Tensor) else found


@pytest.mark.parametrize("layout", ["safetensors", "pt", "onnx"])
@pytest.mark.parametrize("model", [{"kind": "softmax"}, {"kind": "mlp"}, CONV], ids=["softmax", "mlp", "module"])
def test_the_printed_lines_load_the_file(model: dict[str, Any], layout: str, tmp_path: Path) -> None:
    (run,) = fedkin.run({**BASE, "model": model, "algorithm": "alone"}, out=tmp_path / "results")
    assert run.folder is not None
    out = tmp_path / "deep" / f"a model.{layout}"
    first, *_ = export_run(run.folder, "1", layout, out)
    assert first == f"wrote {out}"
    x = digits().x_test
    shaped = x.reshape(len(x), 1, 8, 8) if model is CONV else x.reshape(len(x), -1)
    found = loaded(run, out, layout, shaped if layout == "onnx" else torch.from_numpy(shaped))
    np.testing.assert_allclose(found, run.predict(x, client=1, output="scores"), rtol=1e-5, atol=1e-5)


def test_all_clients_are_exported(results: dict[str, Result], tmp_path: Path) -> None:
    folder = results["kin"].folder
    assert folder is not None
    first, *_ = export_run(folder, None, "safetensors", tmp_path / "all", every=True)
    assert first == f"wrote 4 files to {tmp_path / 'all'}, such as 0.safetensors"
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [f"{i}.safetensors" for i in range(4)]


def test_what_a_file_says(results: dict[str, Result], tmp_path: Path) -> None:
    path = results["kin"].save(tmp_path / "mine.safetensors", client="2")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["fedkin"])
    assert about["client"] == "2"
    assert about["module"] == "torch.nn.Linear(64, 10)"
    assert about["settings"]["algorithm"]["name"] == "kin"
    assert about["input"] == {"shape": [64], "type": "float32"}
    other = export_model(results["kin"].trained, tmp_path / "mine.pt", "pt", 0, results["kin"].config)
    assert set(torch.load(other, weights_only=True)) == {"state_dict", "shift", "scale", "about"}


def test_bad_exports(results: dict[str, Result], refused: Refusal, tmp_path: Path) -> None:
    folder, alone = results["fedavg"].folder, results["alone"].folder
    for arguments, says in (
        ([str(folder), "--format", "onxx"], "there is no format 'onxx' (did you mean 'onnx'?)"),
        ([str(folder), "--client", "1"], "use the global model: leave out --client and --all"),
        ([str(alone), "--client", "9"], "there is no client '9'"),
        ([str(alone), "--client", "1", "--all"], "--client and --all contradict each other"),
        ([str(alone), "--client", "1", "--out", str(tmp_path)], "it is a folder"),
        ([str(tmp_path)], "holds 0 runs"),
    ):
        assert says in refused("export", *arguments)
