"""Models: hand-derived gradients against autograd, and what a module must be."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import small_federation
from fedkin.data.measure import ACCURACY, MSE
from fedkin.engine.metrics import Scores, measure, score
from fedkin.errors import BadInput
from fedkin.models import MLP, Model, Module, Softmax, build_model


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


MODELS: list[Model] = [Softmax(16, 4), MLP(16, 4, hidden=6), Module(conv, (1, 4, 4), 4)]


def autograd(model: Model, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    w = w.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model.scores(w, x).mT, y, reduction="none") @ weight
    return torch.autograd.grad(loss, w)[0]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_gradient_equals_autograd(model: Model) -> None:
    torch.manual_seed(0)
    x, y, weight = torch.randn(3, 5, 16), torch.randint(0, 4, (3, 5)), torch.rand(3, 5)
    weight[1, 3:] = 0
    w = torch.stack([model.start(seed) for seed in range(3)])
    stacked = model.gradient(w, x, y, weight)
    for i in range(3):
        torch.testing.assert_close(stacked[i], autograd(model, w[i], x[i], y[i], weight[i]), rtol=1e-4, atol=1e-6)
        alone = model.gradient(w[i : i + 1], x[i : i + 1], y[i : i + 1], weight[i : i + 1])
        torch.testing.assert_close(alone[0], stacked[i], rtol=1e-4, atol=1e-6)


def test_softmax_is_nn_linear() -> None:
    torch.manual_seed(7)
    layer, x = nn.Linear(16, 4), torch.randn(5, 16)
    model = Softmax(16, 4)
    torch.testing.assert_close(model.scores(model.start(7), x), layer(x).mT)


def test_mlp_is_two_layers() -> None:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 4))
    x = torch.randn(5, 16)
    model = MLP(16, 4, hidden=6)
    assert model.size == sum(p.numel() for p in net.parameters())
    torch.testing.assert_close(model.scores(model.start(7), x), net(x).mT)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_start_depends_on_the_seed_and_keeps_the_state_of_pytorch(model: Model) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(model.start(5), model.start(5))
    assert not torch.equal(model.start(5), model.start(6))
    assert model.start(5).shape == (model.size,)
    assert torch.equal(torch.rand(3), expected)


def test_a_module_object_starts_from_its_parameters_and_is_not_changed() -> None:
    federation = small_federation()
    net = nn.Linear(5, 3)
    before = net.weight.detach().clone()
    model = build_model(federation, net)
    torch.testing.assert_close(model.start(0)[:15], before.reshape(-1))
    with torch.no_grad():
        net.weight.zero_()
    torch.testing.assert_close(model.start(0)[:15], before.reshape(-1))


def test_a_module_by_import_path() -> None:
    model = build_model(small_federation(), "torch.nn:Linear", in_features=5, out_features=3)
    assert model.size == 18


class WithStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(x))


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("sofmax", {}, "unknown model 'sofmax' (choose from: linear, mlp)"),
        ("nowhere.to:be", {}, "the model 'nowhere.to:be' cannot be imported"),
        ("torch.nn:Lineal", {}, "cannot be imported"),
        ("torch.nn:Linear", {"in_features": 5}, "cannot be built with"),
        ("torch.nn:Linear", {"in_features": 5, "out_features": 4}, "gives (4,) scores per sample instead of (3,)"),
        ("torch.nn:Linear", {"in_features": 6, "out_features": 3}, "does not take samples of shape (5,)"),
        ("torch.nn:Flatten", {}, "has no parameters"),
        ("math:floor", {}, "cannot be built"),
        (WithStatistics(), {}, "use GroupNorm or LayerNorm instead of BatchNorm"),
        ("mlp", {"hidden": 0}, "hidden = 0 is out of range"),
    ],
)
def test_bad_models(kind: str | nn.Module, settings: dict[str, int], says: str) -> None:
    with pytest.raises(BadInput) as error:
        build_model(small_federation(), kind, **settings)  # type: ignore[arg-type]
    assert says in str(error.value)


# --- metrics ---


def test_scores_by_hand() -> None:
    """Two clients of 1 and 3 samples with accuracies 1 and ⅓: together (1·1 + 3·⅓)/4 = ½, the worst of them ⅓."""
    scores = Scores(np.array([2.0, 4.0]), np.array([1.0, 1 / 3]), np.array([1, 3]), ACCURACY)
    assert scores.value == pytest.approx(0.5)
    assert scores.loss == pytest.approx(3.5)
    assert scores.worst_decile == pytest.approx(1 / 3)


def test_worst_decile_is_a_tenth_of_the_clients() -> None:
    accuracies = np.linspace(0, 1, 30)
    scores = Scores(np.zeros(30), accuracies, np.ones(30, dtype=np.int64), ACCURACY)
    assert scores.worst_decile == pytest.approx(accuracies[:3].mean())


def test_score_of_the_zero_model() -> None:
    """At w = 0 the loss is ln K and class 0 is predicted; with λ = 2 and ‖w‖² = 0 the penalty is 0."""
    federation = small_federation()
    w = torch.zeros(Softmax(5, 3).size)
    (scores,) = score(Softmax(5, 3), w[None], federation.train, l2=[2.0])
    np.testing.assert_allclose(scores.losses, math.log(3), rtol=1e-6)
    zeros = federation.train.class_counts(3)[:, 0] / federation.train.sizes
    np.testing.assert_allclose(scores.values, zeros)
    w += 0.5
    assert score(Softmax(5, 3), w[None], federation.train, [2.0])[0].loss == pytest.approx(math.log(3) + len(w) * 0.25)


def test_measure_has_every_quantity() -> None:
    federation = small_federation()
    model = Softmax(5, 3)
    w = model.start(0)
    (measured,) = measure(model, w[None], federation)
    correct = model.scores(w, federation.test.x).argmax(dim=0) == federation.test.y
    assert measured["test_accuracy"] == pytest.approx(float(correct.float().mean()))
    assert set(measured) == {"train_loss", "test_loss", "train_accuracy", "test_accuracy", "worst_decile"}


def test_rounds_to() -> None:
    assert ACCURACY.rounds_to(0.3, [0.3]) == 0
    assert ACCURACY.rounds_to(0.3, [0.1, float("nan"), 0.2999, 0.31, 0.1]) == 3
    assert ACCURACY.rounds_to(0.3, [0.1]) is None
    assert MSE.rounds_to(0.3, [0.4, float("nan"), 0.3]) == 2
    assert MSE.rounds_to(None, [0.1]) is None
