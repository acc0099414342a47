"""Targets other than classes on Flower: the rounds are those of the engine, and the records name the measure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from torch import Tensor, nn

import fedkin
from fedkin import FedAvg, Federation, Local
from fedkin.algorithms import IFCA, Alone
from fedkin.errors import BadInput
from fedkin.flower import Strategy, client_app, initial_arrays, measured
from fedkin.flower.settings import check_steps
from fedkin.models import CROSS_ENTROPY, Logistic, Squared, build_model, loss_for
from flower_grid import Direct

LOCAL = Local(epochs=2, batch_size=16, order="shuffled")
DIGITS = fedkin.load("digits")
PARTS = (DIGITS.x_train, DIGITS.y_train), (DIGITS.x_test, DIGITS.y_test)


def federation(task: str) -> Federation:
    """Whether a digit is above 4, or the digit as a number."""
    (x, y), (x_test, y_test) = PARTS
    if task == "binary":
        y, y_test = np.where(y > 4, "high", "low"), np.where(y_test > 4, "high", "low")
    return fedkin.federate(fedkin.from_arrays(x, y, x_test, y_test, task=task), clients=5)


@pytest.mark.parametrize(("task", "measure"), [("binary", "accuracy"), ("regression", "mse")])
def test_the_rounds_are_those_of_the_engine(task: str, measure: str, tmp_path: Path) -> None:
    made = federation(task)
    model = build_model(made)

    def data(context: Context) -> tuple[Tensor, Tensor, Tensor]:
        client = int(context.node_config["partition-id"])
        rows = made.train.rows(client)
        return made.train.x[rows], made.train.y[rows], made.raw(client)

    algorithm = FedAvg(step_size=0.01)
    expected = fedkin.train(made, algorithm, local=LOCAL, rounds=3)
    strategy = Strategy(algorithm, LOCAL, min_nodes=5, out=tmp_path / "run")
    grid = Direct(client_app(model, data), range(5))
    strategy.start(grid, initial_arrays(model), 3, 0.2, evaluate_fn=measured(model, made, LOCAL.l2))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary[f"final_test_{measure}"] == pytest.approx(expected.summary[f"final_test_{measure}"], rel=1e-5)
    assert summary["threshold"] == expected.summary["threshold"]
    assert ("accuracy" in json.dumps(summary)) == (measure == "accuracy")


def test_a_module_with_one_output_needs_a_task() -> None:
    assert [loss_for("auto", 3), loss_for("binary", 1), loss_for("regression", 1)] == [
        CROSS_ENTROPY,
        Logistic(),
        Squared(),
    ]
    with pytest.raises(BadInput, match="say task='binary' for two classes"):
        loss_for("auto", 1)
    with pytest.raises(BadInput, match="3 outputs: a task 'regression' takes one"):
        loss_for("regression", 3)
    with pytest.raises(BadInput, match="did you mean 'regression'"):
        loss_for("regresion", 1)


def test_labels_that_a_loss_cannot_take() -> None:
    for loss, outputs, y in ((CROSS_ENTROPY, 3, [0.5, 1.0]), (CROSS_ENTROPY, 3, [0, 3]), (Logistic(), 1, [-1, 1])):
        with pytest.raises(BadInput, match="must be whole numbers from 0 to"):
            loss.labels(torch.tensor(y), outputs)
    assert Logistic().labels(torch.tensor([0.0, 1.0]), 1).tolist() == [0, 1]
    with pytest.raises(BadInput, match="not all finite"):
        Squared().labels(torch.tensor([float("nan")]), 1)


def test_a_module_for_numbers() -> None:
    """Least squares of y = 2x over two nodes, by a module and a task."""

    def data(context: Context) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 16)[:, None] + int(context.node_config["partition-id"])
        return x, 2 * x[:, 0]

    app = client_app(lambda: nn.Linear(1, 1), data, task="regression")
    net = nn.Linear(1, 1)
    strategy = Strategy(FedAvg(step_size=0.2), Local(epochs=5, batch_size=8, l2=0.0), min_nodes=2, graph="uniform")
    from flwr.app import ArrayRecord

    result = strategy.start(Direct(app, range(2)), ArrayRecord(net.state_dict()), 20, 0.2)
    assert float(result.arrays["weight"].numpy()[0, 0]) == pytest.approx(2, abs=0.05)


class SignStep(FedAvg):
    """A step that is no linear combination."""

    def step(self, w: Any, got: Any, memory: Any, gradient: Any) -> Any:
        return w - self.step_size * torch.sign(gradient(w)), memory


def test_adam_is_refused_before_any_node_is_asked() -> None:
    """The sentence is that of the engine; algorithms with linear steps, with memory or kin, are not concerned."""
    made = federation("binary")
    model = build_model(made)
    rows = made.train.rows

    def data(context: Context) -> tuple[Tensor, Tensor]:
        client = int(context.node_config["partition-id"])
        return made.train.x[rows(client)], made.train.y[rows(client)]

    grid = Direct(client_app(model, data), range(5))
    local = Local(epochs=1, optimizer="adam")
    with pytest.raises(BadInput, match=r"that of SignStep does more: set local.optimizer = 'sgd' or 'momentum'"):
        Strategy(SignStep(step_size=0.01), local, min_nodes=5).start(grid, initial_arrays(model), 1, 0.2)
    assert grid.questions == []
    assert Strategy(SignStep(step_size=0.01), min_nodes=5).start(grid, initial_arrays(model), 1, 0.2).arrays
    for algorithm in (FedAvg(), fedkin.FedKin(kappa=1.0, kin="updates"), Alone(), IFCA(), fedkin.Kin()):
        check_steps(Strategy(algorithm, local, min_nodes=5), torch.zeros(1, model.size))
