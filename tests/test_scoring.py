"""Compiled scores of linear models are those of the model."""

import pytest
import torch

from conftest import small_federation
from fedkin.engine import metrics
from fedkin.models import MLP, Linear, Logistic, Softmax

pytest.importorskip("numba")

from fedkin.engine.spaces.scoring import SCORED_AT_ONCE, linear_scores


@pytest.mark.parametrize("features", [32, 45, 784])
@pytest.mark.parametrize("samples", [1, 3, SCORED_AT_ONCE, 2 * SCORED_AT_ONCE + 5])
@pytest.mark.parametrize(("lanes", "outputs"), [(1, 1), (1, 10), (3, 7), (2, 26)])
def test_scores_are_those_of_the_model(features: int, samples: int, lanes: int, outputs: int) -> None:
    torch.manual_seed(1)
    model = Linear(features, outputs)
    w, x = torch.randn(lanes, model.size), torch.randn(samples, features) / features**0.5
    torch.testing.assert_close(linear_scores(w, x), model.scores(w, x), rtol=1e-5, atol=1e-5)
    wide = (torch.randn(samples, features + 3) / features**0.5)[:, :features]  # rows with something between them
    torch.testing.assert_close(linear_scores(w, wide), model.scores(w, wide), rtol=1e-5, atol=1e-5)


def test_a_model_that_is_not_finite_stays_alone() -> None:
    model, x = Softmax(40, 3), torch.randn(70, 40)
    w = torch.randn(3, model.size)
    w[1, 5], w[2, -1] = float("nan"), float("inf")
    z = linear_scores(w, x)
    assert z[0].isfinite().all()
    assert z[1, 0].isnan().all()
    assert z[1, 1:].isfinite().all()
    assert z[2, 2].isinf().all()


def test_numbers_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        linear_scores(torch.zeros(1, 99, dtype=torch.float64), torch.zeros(2, 32))


def test_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same to rounding whether the scores are compiled, which the amount of work decides."""
    federation, model = small_federation((70, 130, 33), features=37), Softmax(37, 3)
    w = torch.stack([model.start(seed) for seed in range(3)])
    usual = metrics.measure(model, w, federation, (0.0, 0.1, 0.2))
    assert metrics.scorer(model, w, federation.train.x) == model.scores
    monkeypatch.setattr(metrics, "COMPILED", 0)
    assert metrics.scorer(model, w, federation.train.x) is linear_scores
    found = metrics.measure(model, w, federation, (0.0, 0.1, 0.2))
    for one, other in zip(found, usual, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_other_models_are_scored_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COMPILED", 0)
    x = torch.zeros(5, 37)
    for model in (MLP(37, 3, hidden=4), Linear(37, 1, Logistic())):
        w = model.start(0)[None]
        assert (metrics.scorer(model, w, x) is linear_scores) == isinstance(model, Linear)
    narrow = Softmax(16, 3)
    assert metrics.scorer(narrow, narrow.start(0)[None], torch.zeros(5, 16)) == narrow.scores
    assert metrics.scorer(Softmax(37, 3), Softmax(37, 3).start(0)[None], torch.zeros(37, 5).mT) != linear_scores
