"""All training samples in one place, and settings of one algorithm in a grid with others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fedkin import FedAvg, Federation, Local, build_model, federate, load, train
from fedkin.data import from_clients
from fedkin.engine.metrics import score
from fedkin.errors import BadInput
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.run import run
from fedkin.reports.overview import views


def of_three() -> Federation:
    """Clients with the samples 0 1 2, 3 4 and 5; sample j has the feature j and the label j mod 2."""
    rows = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]
    clients = [(1.0 * part[:, None], part % 2) for part in rows]
    return from_clients(clients, clients, preprocess="none")


def test_both_clients_hold_all_samples() -> None:
    whole = replace(of_three(), kinds=(0, 1, 0), angles=(0.0, 90.0, 0.0))
    pooled = whole.pooled(seed=1)
    assert pooled.train.sizes.tolist() == [6, 6]
    first, second = (pooled.train.x[pooled.train.rows(i), 0].tolist() for i in (0, 1))
    assert first == second
    assert sorted(first) == [0, 1, 2, 3, 4, 5] != first
    assert [int(x) % 2 for x in first] == pooled.train.y[:6].tolist()
    assert first != whole.pooled(seed=2).train.x[:6, 0].tolist()
    assert (pooled.paired, pooled.kinds, pooled.angles, pooled.validation) == (False, None, None, None)
    assert pooled.test is whole.test


def test_validation_samples_are_pooled_and_newcomers_are_not() -> None:
    whole = replace(of_three().held_out(0.3), newcomers=(1,))
    assert whole.validation is not None
    assert whole.validation.sizes.tolist() == [1, 1, 0]
    pooled = whole.pooled()
    assert pooled.validation is not None
    assert pooled.train.sizes.tolist() == [3, 3]
    assert pooled.validation.sizes.tolist() == [1, 1]
    assert {*pooled.train.x[:3, 0].tolist(), *pooled.validation.x[:1, 0].tolist()} == {0, 1, 2, 5}
    assert pooled.newcomers == ()


def test_fedavg_of_pooled_clients_is_ordinary_training() -> None:
    """One pass over the samples in batches of 4, written out for softmax regression."""
    pooled = federate(load("digits"), clients=5, kinds=2, samples=12, pooled=True)
    local = Local(epochs=1, batch_size=4, l2=0.0, order="fixed")
    result = train(pooled, FedAvg(step_size=0.1), graph="uniform", local=local, rounds=2)
    model = build_model(pooled, "softmax")
    w = model.start(0).clone().requires_grad_()
    x, y = pooled.train.x[:60], pooled.train.y[:60]
    for _ in range(2):
        for first in range(0, 60, 4):
            batch = slice(first, first + 4)
            loss = torch.nn.functional.cross_entropy(model.scores(w, x[batch]).mT, y[batch])
            (slope,) = torch.autograd.grad(loss, w)
            w = (w - 0.1 * slope).detach().requires_grad_()
    torch.testing.assert_close(result.model, w.detach(), rtol=1e-4, atol=1e-5)
    (found,) = score(model, w.detach()[None], pooled.test)
    assert result.test_accuracy[-1] == pytest.approx(found.value)


def experiment(**settings: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "rounds": 2,
        "take_part": 4,
        "partition": {"clients": 6, "kinds": 2, "samples": 10, "validation": 0.2},
        "local": {"epochs": 1, "step_size": 0.1},
        **settings,
    }


def test_pooled_beside_other_algorithms(tmp_path: Path) -> None:
    """The graph of clients with the same data is no error, and both of them are sampled whatever `take_part` is."""
    algorithms = [{"name": "fedavg"}, {"name": "fedavg", "partition": {"pooled": True}}]
    federated, pooled = run(experiment(algorithm=algorithms), out=tmp_path)
    assert (federated.name, pooled.name) == ("fedavg", "fedavg-pooled=True")
    assert pooled.config["partition"] == federated.config["partition"] | {"pooled": True}
    assert sum(pooled.summary["spaces"].values()) == 2
    assert sum(federated.summary["spaces"].values()) == 4
    assert pooled.summary["final_validation_loss"] != federated.summary["final_validation_loss"]
    made = Preparation().federation(plans(experiment(algorithm=algorithms))[1].config)
    assert made.train.sizes.tolist() == [48, 48]  # 6 · 10 samples, a fifth held out


def test_the_view_of_a_federation_is_that_of_its_clients(tmp_path: Path) -> None:
    settings = experiment(algorithm=[{"name": "fedavg"}, {"name": "fedavg", "partition": {"pooled": True}}])
    (shown,) = views(settings, out=tmp_path)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(shown)
    assert "6 training, 6 testing" in captured.get()


# -- settings of one algorithm -----------------------------------------------------------------------------------------


def test_settings_of_one_algorithm_replace_the_general_ones() -> None:
    algorithms = [
        {"name": "fedavg"},
        {"name": "fedkin", "beta": 0.5, "local": {"step_size": [0.3, 1.0]}, "graph": {"kind": "uniform"}},
    ]
    found = plans({"local": {"step_size": [0.01, 0.1], "epochs": 2}, "algorithm": algorithms})
    assert [plan.name for plan in found] == [
        "fedavg-step_size=0.01",
        "fedkin-beta=0.5-step_size=0.3-graph=uniform",
        "fedkin-beta=0.5-step_size=1-graph=uniform",
        "fedavg-step_size=0.1",
    ]
    kin = found[1].config
    assert (kin.local.step_size, kin.local.epochs, kin.graph.kind) == (0.3, 2, "uniform")
    assert kin.algorithm.model_extra == {"beta": 0.5}
    assert found[0].config.graph.kind == "similarity"


def test_overrides_have_the_last_word() -> None:
    algorithms = [{"name": "fedavg", "local": {"step_size": 0.3, "epochs": 3}}]
    (plan,) = plans({"algorithm": algorithms}, ["step_size=0.5"])
    assert (plan.config.local.step_size, plan.config.local.epochs) == (0.5, 3)


def test_a_table_for_a_reading_given_in_one_word() -> None:
    algorithms = [{"name": "fedprox", "reading": {"penalty": "paper"}}]
    (plan,) = plans({"reading": "published", "algorithm": algorithms})
    assert set(plan.config.reading.model_dump().values()) == {"paper"}


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"name": "fedavg", "partition": {"poold": True}}, "unknown key 'partition.poold'"),
        ({"name": "fedavg", "partition": {"pooled": 1}}, "partition.pooled = 1 is not valid"),
        ({"name": "fedavg", "partition": 3}, "fedavg has no key 'algorithm.partition'"),
        ({"name": "fedavg", "algorithm": {"beta": 1}}, "fedavg has no key 'algorithm.algorithm'"),
        ({"name": "fedagv", "partition": {"pooled": True}}, "unknown algorithm 'fedagv'"),
    ],
)
def test_bad_settings_of_one_algorithm(algorithm: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        plans({"algorithm": [algorithm]})
