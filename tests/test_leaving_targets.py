"""Predictions of all targets and from tables: in the words and units of the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import fedkin
from fedkin import FedAvg, Local
from fedkin.data import federate, from_arrays
from fedkin.errors import BadInput
from fedkin.experiments.export import export_model, output_words

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
LOCAL = Local(epochs=3, batch_size=16)


def samples() -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    return x, x @ np.array([2.0, -1.0, 0.5, 0.0]) + 10 + 0.1 * rng.normal(size=300)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_numbers_are_predicted_in_their_units(model: str) -> None:
    x, y = samples()
    data = from_arrays(x[:200], 1000 * y[:200], x[200:], 1000 * y[200:])
    federation = federate(data, clients=4)
    run = fedkin.train(federation, FedAvg(step_size=0.1), model=model, graph="uniform", local=LOCAL, rounds=5)
    found = run.predict(x[200:])
    assert np.mean((found - 1000 * y[200:]) ** 2) == pytest.approx(run.test_mse[-1], rel=1e-3)
    assert abs(found.mean() - 10_000) < 1000
    assert run.predict(x[:3], output="scores").shape == (3, 1)
    with pytest.raises(BadInput, match="has no probabilities"):
        run.predict(x, output="probabilities")
    target = run.trained.card.target
    assert output_words(run.trained) == f"a number y: the value is {target.scale!r} * y + {target.shift!r}"


@pytest.mark.parametrize("task", ["classes", "binary"])
def test_classes_are_predicted_by_their_names(task: str) -> None:
    x, y = samples()
    names = np.where(y > 10, "well", "ill")
    data = from_arrays(x[:200], names[:200], x[200:], names[200:], task=task)
    federation = federate(data, clients=4)
    run = fedkin.train(federation, FedAvg(step_size=0.5), graph="uniform", local=LOCAL, rounds=5)
    found = run.predict(x[200:])
    assert set(found) == {"well", "ill"}
    assert float((found == names[200:]).mean()) == pytest.approx(run.test_accuracy[-1])
    probabilities = run.predict(x[200:], output="probabilities")
    assert probabilities.shape == (100, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (np.array(run.trained.card.target.names)[probabilities.argmax(1)] == found).all()
    assert run.predict(x[:3], output="scores").shape == (3, 1 if task == "binary" else 2)


def test_predictions_from_tables(tmp_path: Path) -> None:
    """From a folder of CSV files to predictions for rows by column name, and to a file with the encoding."""
    settings = {
        "name": "hospitals",
        "rounds": 2,
        "data": {"source": str(HOSPITALS), "target": "readmitted", "drop": "patient"},
        "partition": {"test": 0.2},
        "local": {"step_size": 0.1, "epochs": 1, "batch_size": 32},
        "algorithm": ["fedavg", "finetuned"],
    }
    average, tuned = fedkin.run(settings, out=tmp_path)
    table = pandas.read_csv(HOSPITALS / "north.csv", parse_dates=["admitted"])
    assert average.folder is not None
    again = fedkin.load_run(average.folder)
    found = again.predict(table)
    assert set(found) <= {"yes", "no"}
    encoding = average.trained.card.encoding
    assert encoding is not None
    encoded = encoding.transform(table)
    np.testing.assert_array_equal(again.predict(encoded, output="scores"), average.predict(table, output="scores"))
    assert (found == table["readmitted"].to_numpy()).mean() > 0.5
    assert tuned.predict(table, client="north").shape == (len(table),)
    with pytest.raises(BadInput, match=r"there is no client 'east': give one of the 5 clients, coast"):
        tuned.predict(table, client="east")
    with pytest.raises(BadInput, match="has no column"):
        again.predict(table.drop(columns="age"))
    path = export_model(tuned.trained, tmp_path / "north.pt", "pt", "north", tuned.config)
    about = torch.load(path, weights_only=True)["about"]
    assert about["encoding"] == encoding.to_dict()
    assert about["client"] == "north"
