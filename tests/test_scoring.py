"""Compiled scores of linear models and small networks are those of the model."""

import pytest
import torch
from torch import nn

from conftest import small_federation
from fedkin.engine import metrics
from fedkin.models import MLP, Linear, Logistic, Module, Softmax

pytest.importorskip("numba")

from fedkin.engine.spaces.primal_kernels import BLOCK
from fedkin.engine.spaces.scoring import CompiledScores


@pytest.mark.parametrize("features", [32, 45, 784])
@pytest.mark.parametrize("samples", [1, 3, BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize(("lanes", "outputs"), [(1, 1), (1, 10), (3, 7), (2, 26)])
@pytest.mark.parametrize("hidden", [0, 1, 9, 70])
def test_scores_are_those_of_the_model(features: int, samples: int, lanes: int, outputs: int, hidden: int) -> None:
    torch.manual_seed(1)
    model = MLP(features, outputs, hidden=hidden) if hidden else Linear(features, outputs)
    scores = CompiledScores(model)
    w, x = torch.randn(lanes, model.size), torch.randn(samples, features) / features**0.5
    atol = 1e-5 * max(1, hidden)
    torch.testing.assert_close(scores(w, x), model.scores(w, x), rtol=1e-5, atol=atol)
    wide = (torch.randn(samples, features + 3) / features**0.5)[:, :features]  # rows with something between them
    torch.testing.assert_close(scores(w, wide), model.scores(w, wide), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("model", [Softmax(40, 3), MLP(40, 3, hidden=5)], ids=["softmax", "network"])
def test_a_model_that_is_not_finite_stays_alone(model: Linear | MLP) -> None:
    x, w = torch.randn(70, 40), torch.randn(3, model.size)
    w[1, 5], w[2, -1] = float("nan"), float("inf")
    z = CompiledScores(model)(w, x)
    assert z[0].isfinite().all()
    assert z[1, 0].isnan().all()
    assert z[1, 1:].isfinite().all() == isinstance(model, Linear), "a hidden unit is part of all scores"
    assert z[2, 2].isinf().all()
    assert z[2, :2].isfinite().all()


def test_numbers_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        CompiledScores(Softmax(32, 3))(torch.zeros(1, 99, dtype=torch.float64), torch.zeros(2, 32))


@pytest.mark.parametrize("model", [Softmax(37, 3), MLP(37, 3, hidden=4)], ids=["softmax", "network"])
def test_measurements(model: Linear | MLP, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same to rounding whether the scores are compiled, which the amount of work decides."""
    federation = small_federation((70, 130, 33), features=37)
    w = torch.stack([model.start(seed) for seed in range(3)])
    usual = metrics.measure(model, w, federation, (0.0, 0.1, 0.2))
    assert metrics.scorer(model, w, federation) == model.scores
    monkeypatch.setattr(metrics, "COMPILED", 0)
    assert metrics.scorer(model, w, federation) == CompiledScores(model)
    found = metrics.measure(model, w, federation, (0.0, 0.1, 0.2))
    for one, other in zip(found, usual, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_the_amount_is_that_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 233 training and few testing samples: both are computed in the same way, measured together or not."""
    federation, model = small_federation((70, 130, 33), features=37), Softmax(37, 3)
    samples, w = len(federation.train.y) + len(federation.test.y), model.start(0)[None]
    seen: list[int] = []
    for amount, compiled in ((samples, False), (samples - 1, True)):
        monkeypatch.setattr(metrics, "COMPILED", amount * model.size)
        assert (metrics.scorer(model, w, federation) == CompiledScores(model)) == compiled
    call = CompiledScores.__call__

    def counted(self: CompiledScores, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return call(self, w, x)

    monkeypatch.setattr(CompiledScores, "__call__", counted)
    metrics.measure(model, w, federation, training=False)
    assert sum(seen) == len(federation.test.y)


def test_others_are_scored_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COMPILED", 0)
    federation = small_federation((70, 130), features=37)
    for model in (MLP(37, 3, hidden=4), Linear(37, 1, Logistic())):
        assert metrics.scorer(model, model.start(0)[None], federation) == CompiledScores(model)
    module = Module(lambda: nn.Linear(37, 3), (37,), 3)
    assert metrics.scorer(module, module.start(0)[None], federation) == module.scores
    narrow = Softmax(5, 3)
    few = small_federation((70, 130), features=5)
    assert metrics.scorer(narrow, narrow.start(0)[None], few) == narrow.scores


def test_samples_whose_features_are_not_consecutive() -> None:
    scores, x, w = CompiledScores(Softmax(40, 3)), torch.randn(70, 40), torch.randn(2, 123)
    assert torch.equal(scores(w, x.mT.contiguous().mT), scores(w, x))
