"""Mixtures of models: by hand, as what clients of FedEM use, measured, fine-tuned and exported."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedkin
from conftest import small_federation, tensors_of
from fedkin.algorithms import FedAvg, FedEM, Local, Tuning
from fedkin.engine.lanes import parted, together
from fedkin.engine.own import models_of, own_models
from fedkin.engine.scores import predictions
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments.export import export_model, loading_lines
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP, CrossEntropy, Linear, Logistic, Loss, Mixture, Squared
from loops import CLASSES, played, simulation

LOSSES: list[tuple[Loss, int]] = [(CrossEntropy(), 3), (Logistic(), 1), (Squared(), 1)]
by_loss = pytest.mark.parametrize(("loss", "outputs"), LOSSES, ids=["classes", "binary", "number"])


def test_mixtures_by_hand() -> None:
    """Biases alone, shares ¼ and ¾: ¼·(½, ½) + ¾·(⅘, ⅕) = (0.725, 0.275); of the numbers 2 and 6 it is 5."""
    x, shares, log4 = torch.zeros(1, 1), [0.5, 1.5], math.log(4)  # shares are relative
    pair = Mixture(Linear(1, 2), 2)
    w = torch.tensor([0, 0, 0, 0, 0, 0, log4, 0, *shares])
    assert pair.size == len(w)
    torch.testing.assert_close(pair.loss.mean(pair.scores(w, x))[:, 0], torch.tensor([0.725, 0.275]))
    odds = Mixture(Linear(1, 1, loss=Logistic()), 2)
    w = torch.tensor([0, 0, 0, -log4, *shares])
    torch.testing.assert_close(odds.loss.mean(odds.scores(w, x)), torch.tensor([[0.275]]))
    number = Mixture(Linear(1, 1, loss=Squared()), 2)
    assert number.scores(torch.tensor([0, 2.0, 0, 6.0, *shares]), x).item() == 5


@by_loss
def test_gradients_are_those_of_the_mixtures_loss(loss: Loss, outputs: int) -> None:
    """Against differentiation, at two clients with samples of different weights."""
    mixture = Mixture(Linear(4, outputs, loss=loss), 3)
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, mixture.size), (2, 5, 4)))
    w[:, -3:] = torch.tensor([0.2, 0.5, 0.3])
    y = torch.arange(10).view(2, 5) % max(outputs, 2)
    y = y.double() if isinstance(loss, Squared) else y
    weight = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    at = w.clone().requires_grad_()
    (loss.each(mixture.scores(at, x), y) * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    found = mixture.gradient(w, x, y, weight)
    torch.testing.assert_close(found[:, :-3], at.grad[:, :-3])
    assert not found[:, -3:].any(), "shares stay"


# -- FedEM -------------------------------------------------------------------------------------------------------------


SIZES = (20, 30, 25, 40) * 2


def in_two_kinds(algorithm: Any, **other: Any) -> Simulation:
    """Eight clients. Those with odd numbers call the classes differently, so that no model serves both kinds."""
    made, clients = small_federation(SIZES, features=6), np.arange(8)
    x = torch.tensor(np.random.default_rng(0).standard_normal((sum(SIZES), 6)), dtype=torch.float32)
    kind = torch.tensor(np.repeat(clients % 2, SIZES))
    named = replace(made.train, x=x, y=(x[:, :CLASSES].argmax(-1) + kind) % CLASSES)
    federation = replace(made, train=named, test=named, validation=named, paired=True)
    graph, weights = SimilarityGraph.edgeless(8), np.array(SIZES) / sum(SIZES)
    local = Local(epochs=4, batch_size=8, l2=0.0)
    return Simulation(federation, Linear(6, CLASSES), algorithm, graph, weights, local, **other)


@pytest.mark.parametrize("seed", [0, 1])
def test_kinds_are_separated(seed: int) -> None:
    """Each component is that of one kind, to which its clients give nearly all of their shares."""
    run = in_two_kinds(FedEM(step_size=1.0, components=2, spread=0.5), seed=seed, take_part=6)
    state = played(run, 20)
    shares = state.memory["shares"].at(np.arange(8)).numpy()
    first = shares[0].argmax()
    assert shares[::2, first].min() > 0.9
    assert shares[1::2, 1 - first].min() > 0.9
    average = in_two_kinds(FedAvg(step_size=1.0), seed=seed)
    (found,), (other,) = own_models(run, state), own_models(average, played(average, 10))
    assert found["own_test_accuracy"] > 0.9
    assert other["validation_accuracy"] < 0.7


def test_records_tables_and_choices_are_of_the_mixture() -> None:
    """Losses −log Σ πₘ p(y), worked out from the components; validation samples are the same ones here."""
    run = in_two_kinds(FedEM(step_size=0.5, components=2))
    state = played(run, 3)
    (record,), found = own_models(run, state), predictions(run, state)["own"]
    train, parts = run.federation.train, state.server["components"].double()
    shares = state.memory["shares"].at(np.arange(8)).double().numpy()
    p = torch.stack([run.model.scores(w, train.x.double()).softmax(0) for w in parts]).numpy()
    mixed = np.einsum("nm,mkn->kn", np.repeat(shares, train.sizes, axis=0), p)
    y = train.y.numpy()
    np.testing.assert_allclose(found.means, mixed, atol=1e-5)
    assert record["own_test_loss"] == pytest.approx(-np.log(mixed[y, range(len(y))]).mean(), rel=1e-4)
    assert record["own_test_accuracy"] == pytest.approx((mixed.argmax(0) == y).mean())
    assert record["validation_loss"] == record["own_test_loss"]


def test_lanes_are_measured_as_the_runs_alone() -> None:
    runs = [in_two_kinds(FedEM(step_size=g, components=2)) for g in (0.5, 0.2)]
    state = played(together(runs), 2)
    for record, run, part in zip(own_models(together(runs), state), runs, parted(state, runs), strict=True):
        assert record == pytest.approx(own_models(run, part)[0], rel=1e-4)


@pytest.mark.usefixtures("calls_for_nothing")
@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
def test_fast_spaces_equal_plain(features: int) -> None:
    """With shuffled batches and clipping, of the network."""
    local = Local(epochs=2, batch_size=4, l2=0.05, clip=0.2, order="shuffled")
    run = replace(simulation(FedEM(step_size=0.2), features, local=local), model=MLP(features, CLASSES, 4))
    quick, plain = played(run, 2), played(replace(run, stacked=False), 2)
    assert "samples" in quick.spaces if features == 40 else "fused" in quick.spaces
    assert "plain" not in quick.spaces
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(quick)[name], value, rtol=2e-4, atol=3e-6)


def test_fine_tuning_lowers_the_loss_of_the_mixture() -> None:
    """On the samples it is tuned on, with the shares as they are."""
    run = in_two_kinds(FedEM(step_size=0.5, components=2))
    state = played(run, 2)
    (record,) = own_models(run, state, Tuning(2))
    assert record["tuned_test_loss"] < record["own_test_loss"] - 0.05
    ((_, before),), ((_, after),) = models_of(run, state), models_of(run, state, tuning=Tuning(2))
    torch.testing.assert_close(after[..., -2:], before[..., -2:])


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(BadInput, match=r"FedEM counts on steps of its own.*local.optimizer = 'sgd'"):
        simulation(FedEM(), local=Local(optimizer="adam"))


# -- the models of clients leave ---------------------------------------------------------------------------------------

LEAVING = [
    ("classes", "linear", ["safetensors", "pt", "onnx"]),
    ("binary", "linear", ["safetensors"]),
    ("regression", "mlp", ["pt"]),
]


@pytest.mark.parametrize(("task", "model", "layouts"), LEAVING, ids=[task for task, *_ in LEAVING])
def test_the_printed_lines_compute_the_mixture(task: str, model: str, layouts: list[str], tmp_path: Path) -> None:
    import onnxruntime

    rng, clients = np.random.default_rng(0), {}
    for i in range(3):
        x = rng.standard_normal((30 + 5 * i, 6)).astype(np.float32)
        number = x[:, 0] * (-1) ** i + 0.1 * rng.standard_normal(len(x))
        two = (number > 0).astype(np.int64)
        clients[f"c{i}"] = (x, {"regression": number, "binary": two, "classes": two + (x[:, 1] > 1)}[task])
    run = fedkin.train(
        fedkin.from_clients(clients, task=task),
        FedEM(step_size=0.2, components=2),
        model=model,
        local=Local(2, 8),
        rounds=2,
    )
    x, _ = clients["c1"]
    scores = run.predict(x, client="c1", output="scores")
    for layout in layouts:
        path = export_model(run.trained, tmp_path / f"c1.{layout}", layout, "c1", run.config)
        known: dict[str, Any] = {"torch": torch, "safetensors": safetensors, "onnxruntime": onnxruntime}
        known["x"] = x if layout == "onnx" else torch.from_numpy(x)
        exec("\n".join(loading_lines(run.trained, path, layout, "c1")), known)
        np.testing.assert_allclose(np.asarray(known["scores"].tolist()), scores, rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="name a client"):
        assert "shares" not in run.state_dict()
