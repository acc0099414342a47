"""Losses of all targets: by hand, against PyTorch's differentiation, and the same in every space."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import small_federation
from fedkin import FedAvg, FedKin, Local, federate, load, train
from fedkin.algorithms import Algorithm
from fedkin.algorithms.personal import FineTuned
from fedkin.data.federation import Federation
from fedkin.data.target import Target
from fedkin.engine import lanes, local_work
from fedkin.engine.cohorts import Steps
from fedkin.engine.local_work import SampleLosses
from fedkin.engine.metrics import score
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.graph.similarity import build_graph
from fedkin.models import (
    CROSS_ENTROPY,
    MLP,
    CrossEntropy,
    Linear,
    Logistic,
    Loss,
    Model,
    Module,
    Squared,
    build_model,
    loss_of,
)
from loops import played

LOSSES: list[Loss] = [CROSS_ENTROPY, Logistic(), Squared(3.0)]
OUTPUTS = {CrossEntropy: 4, Logistic: 1, Squared: 1}


def labels(loss: Loss, *shape: int) -> Tensor:
    if isinstance(loss, Squared):
        return torch.randn(*shape)
    return torch.randint(0, 2 if isinstance(loss, Logistic) else 4, shape)


def each_of(loss: Loss) -> str:
    return type(loss).__name__


def test_by_hand() -> None:
    """Two samples. Cross-entropy of scores (0, log 3): log 4 for the first class, log 4 − log 3 for the second.

    Logistic with the score log 3: the probability of the second class is ¾, so −log ¼ and −log ¾. Squared: ½·2² and 0.
    """
    y, log3 = torch.tensor([0, 1]), math.log(3)
    z = torch.tensor([[0.0, 0.0], [log3, log3]])
    quarter = [math.log(4), math.log(4 / 3)]
    assert CROSS_ENTROPY.each(z, y).tolist() == pytest.approx(quarter)
    assert CROSS_ENTROPY.residual(z, y, torch.ones(2)).tolist() == [
        pytest.approx([-0.75, 0.25]),
        pytest.approx([0.75, -0.25]),
    ]
    assert CROSS_ENTROPY.measured(z, y).tolist() == [0, 1]
    one = torch.full((1, 2), log3)
    assert Logistic().each(one, y).tolist() == pytest.approx(quarter)
    assert Logistic().residual(one, y, torch.tensor([1.0, 2.0])).tolist() == [pytest.approx([0.75, -0.5])]
    assert Logistic().predicted(torch.tensor([[-0.1, 0.1]])).tolist() == [0, 1]
    numbers = torch.tensor([[3.0, 1.0]]), torch.tensor([1.0, 1.0])
    assert Squared().each(*numbers).tolist() == [2, 0]
    assert Squared().residual(*numbers, torch.tensor([0.5, 1.0])).tolist() == [[1, 0]]
    assert Squared(scale=10.0).measured(*numbers).tolist() == [400, 0], "in units of the data"
    assert Squared(scale=10.0).each(*numbers).tolist() == [2, 0], "as the models learn it"


@pytest.mark.parametrize("loss", LOSSES, ids=each_of)
def test_the_derivative_is_that_of_the_value(loss: Loss) -> None:
    torch.manual_seed(0)
    y, weight = labels(loss, 3, 5), torch.rand(3, 5)
    z = torch.randn(3, OUTPUTS[type(loss)], 5, requires_grad=True)
    before = z.detach().clone()
    (expected,) = torch.autograd.grad((loss.each(z, y) * weight).sum(), z)
    r = loss.residual(z.detach(), y, weight)
    torch.testing.assert_close(r, expected)
    coded = loss.coded(y, z.shape[-2]).float()
    torch.testing.assert_close(loss.derivative(z.detach(), coded, weight.unsqueeze(-2)), expected)
    assert torch.equal(z.detach(), before), "the scores are not changed"
    for i in range(3):  # one client's scores (K, B) alone
        torch.testing.assert_close(loss.each(z[i], y[i]), loss.each(z, y)[i])


def test_one_score_is_two_scores_of_which_one_is_zero() -> None:
    """Logistic regression is softmax regression with the scores (0, z)."""
    torch.manual_seed(0)
    z, y = torch.randn(1, 9), torch.randint(0, 2, (9,))
    both = torch.cat([torch.zeros(1, 9), z])
    torch.testing.assert_close(Logistic().each(z, y), CROSS_ENTROPY.each(both, y))
    torch.testing.assert_close(Logistic().mean(z)[0], CROSS_ENTROPY.mean(both)[1])


def models(loss: Loss, features: int) -> list[Model]:
    outputs = OUTPUTS[type(loss)]
    return [
        Linear(features, outputs, loss),
        MLP(features, outputs, 6, loss),
        Module(
            lambda: nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs)), (features,), outputs, loss
        ),
    ]


@pytest.mark.parametrize("loss", LOSSES, ids=each_of)
@pytest.mark.parametrize("kind", range(3), ids=["linear", "mlp", "module"])
def test_gradients_equal_autograd(loss: Loss, kind: int) -> None:
    torch.manual_seed(1)
    model = models(loss, 8)[kind]
    x, y, weight = torch.randn(3, 5, 8), labels(loss, 3, 5), torch.rand(3, 5)
    w = torch.stack([model.start(seed) for seed in range(3)])
    stacked = model.gradient(w, x, y, weight)
    for i in range(3):
        at = w[i].clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss.each(model.scores(at, x[i]), y[i]) @ weight[i], at)
        torch.testing.assert_close(stacked[i], expected, rtol=1e-4, atol=1e-6)


def federation_of(kind: str, features: int) -> Federation:
    """The small federation with a target of each kind; numbers are a function of the features, plus noise."""
    made = small_federation(features=features, classes=2)
    if kind == "classes":
        return small_federation(features=features)
    if kind == "binary":
        return replace(made, target=Target("binary"))
    rng = np.random.default_rng(5)

    def number(x: Tensor) -> Tensor:
        return x @ torch.linspace(-1, 1, features) + 0.1 * torch.tensor(rng.normal(size=len(x)), dtype=torch.float32)

    train, test = (replace(part, y=number(part.x)) for part in (made.train, made.test))
    return replace(made, train=train, test=test, classes=1, target=Target("number", shift=20.0, scale=2.0))


def simulated(kind: str, model: str, features: int, algorithm: Algorithm, local: Local) -> Simulation:
    federation = federation_of(kind, features)
    graph = build_graph(federation)
    built = build_model(federation, model, hidden=4) if model == "mlp" else build_model(federation, model)
    return Simulation(federation, built, algorithm, graph, graph.degrees, local, seed=3)


@pytest.mark.parametrize("kind", ["classes", "binary", "number"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize(
    "local", [Local(4, 4, l2=0.01), Local(4, 3, order="shuffled", clip=0.3), Local(steps=3)], ids=str
)
@pytest.mark.parametrize("features", [5, 40], ids=["few features", "many features"])
def test_fast_spaces_equal_one_client_at_a_time(kind: str, model: str, local: Local, features: int) -> None:
    run = simulated(kind, model, features, FedKin(beta=0.7, step_size=0.1), local)
    fast, plain = played(run), played(replace(run, stacked=False))
    assert fast.spaces.keys() <= {"fused", "samples"}
    assert plain.spaces.keys() == {"plain"}
    assert not torch.equal(fast.model, run.start().model)
    torch.testing.assert_close(fast.model, plain.model, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "number"])
def test_both_fast_spaces_are_used(kind: str) -> None:
    used = {
        space
        for features in (5, 40)
        for space in played(simulated(kind, "linear", features, FedAvg(), Local(4, 4, order="fixed")), 1).spaces
    }
    assert used == {"fused", "samples"}


@pytest.mark.parametrize("kind", ["binary", "number"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_lanes_equal_runs_alone(kind: str, model: str) -> None:
    runs = [simulated(kind, model, 40, FedAvg(step_size=step), Local(4, 4)) for step in (0.05, 0.2)]
    runs = [replace(run, federation=runs[0].federation, graph=runs[0].graph) for run in runs]
    together = played(lanes.together(runs))
    for lane, run in enumerate(runs):
        torch.testing.assert_close(together.model[lane], played(run).model, rtol=1e-4, atol=1e-6)


def test_gram_matrices_are_compiled_for_softmax_alone() -> None:
    """The other losses have compiled rounds on parameters only, and a loss of one's own has none."""
    pytest.importorskip("numba")

    class Own(Squared):
        pass

    local, cpu = Local(10, 64, order="fixed"), torch.device("cpu")
    for loss, expected in ((CROSS_ENTROPY, "compiled"), (Logistic(), "samples"), (Squared(), "samples")):
        steps = Steps(Linear(150, 4, loss), local, cpu, True, True, 1, True, lanes=1, returning=True, repeated=True)
        assert {space.name for space in steps.spaces([200] * 1000).values()} == {expected}
        shuffled = replace(steps, repeated=False)
        assert {space.name for space in shuffled.spaces([200] * 1000).values()} == {"primal"}
        own = replace(shuffled, model=Linear(150, 4, Own()))
        assert {space.name for space in own.spaces([200] * 1000).values()} <= {"samples", "fused"}


def test_linear_regression_finds_least_squares() -> None:
    """Full batches at clients that all take part: the minimum of the sum is the solution of the normal equations.

    With features that are centred and uncorrelated, of variance 1, a round brings it nearer by 1 − γ = 0.6.
    """
    federation = federation_of("number", 5)
    centred = federation.train.x - federation.train.x.mean(0)
    whitened = torch.linalg.qr(centred).Q * len(centred) ** 0.5
    federation = replace(federation, train=replace(federation.train, x=whitened))
    result = train(
        federation, FedAvg(step_size=0.4), model=Linear(5, 1, Squared(2.0), zero=True), graph="uniform",
        weights="samples", local=Local(epochs=1, batch_size=None, l2=0.0), rounds=40,
    )  # fmt: skip
    x = np.c_[federation.train.x.double().numpy(), np.ones(len(federation.train.y))]
    solution, *_ = np.linalg.lstsq(x, federation.train.y.double().numpy(), rcond=None)
    np.testing.assert_allclose(result.model.numpy(), solution, atol=1e-5)
    miss = x @ solution - federation.train.y.double().numpy()
    assert result.train_loss[-1] == pytest.approx((miss**2).mean() / 2, rel=1e-3)
    assert result.train_mse[-1] == pytest.approx(4 * (miss**2).mean(), rel=1e-3), "in units of the data: scale²"
    assert "test_accuracy" not in result.rounds[-1]


def test_a_start_at_zero() -> None:
    assert not Linear(3, 1, Squared(), zero=True).start(4).any()
    assert Linear(3, 1, Squared()).start(4).any()


def test_losses_of_clients() -> None:
    federation = federation_of("number", 5)
    model = Linear(5, 1, loss_of(federation.target), zero=True)
    w, who = torch.zeros(2, 6), np.array([1, 3])
    found = SampleLosses(model, federation.train, who).mean(w)
    y = [federation.train.y[federation.train.rows(i)] for i in who]
    assert found[:, 0].tolist() == pytest.approx([float((values**2).mean()) / 2 for values in y])
    (scores,) = score(model, w[:1], federation.train)
    assert scores.measure.name == "mse"
    assert scores.values[who].tolist() == pytest.approx([4 * float((values**2).mean()) for values in y])
    assert scores.worst_decile == scores.values.max(), "the worst tenth is that with the highest error"


@pytest.mark.parametrize("gathered", [0, 60, 1 << 16])
@pytest.mark.parametrize("lanes_of", [(), (3,)])
def test_losses_of_one_model_are_computed_together(
    gathered: int, lanes_of: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of samples in a call they are those of each client on its own, in the order of the clients."""
    monkeypatch.setattr(local_work, "GATHERED", gathered)
    federation = federate(load("digits"), clients=9, size_imbalance=1.5)
    model, who = build_model(federation), np.array([7, 0, 3, 8, 1])
    assert len(set(federation.train.sizes[who].tolist())) > 3
    one = torch.randn(*lanes_of, 1, model.size, generator=torch.Generator().manual_seed(2))
    losses = SampleLosses(model, federation.train, who)
    together, each = (
        losses.mean(models) for models in (one.expand(*lanes_of, 5, -1), one.repeat(*[1] * len(lanes_of), 5, 1))
    )
    assert together.shape == (*lanes_of, 5, 1)
    torch.testing.assert_close(together, each, rtol=1e-6, atol=1e-6)


def test_fine_tuning_lowers_the_error_of_numbers() -> None:
    """Clients with opposite slopes: one model for all predicts 0, models of their own are right."""
    x = torch.linspace(-1, 1, 20)[:, None]
    made = federation_of("number", 1)
    both = replace(made.train, x=torch.cat([x, x]), y=torch.cat([x[:, 0], -x[:, 0]]), offsets=np.array([0, 20, 40]))
    federation = replace(made, train=both, test=both, paired=True, target=Target("number"))
    local = Local(epochs=5, batch_size=None, l2=0.0)
    tuned = train(federation, FineTuned(step_size=0.5, tuning_epochs=50), graph="uniform", local=local, rounds=10)
    assert tuned.test_mse[-1] > 0.3
    assert tuned.own_test_mse[-1] < 0.01


def test_a_module_with_one_output_may_squeeze_it() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out.squeeze(-1)

    federation = federation_of("number", 5)
    flat, usual = (build_model(federation, net) for net in (Flat(), nn.Linear(5, 1)))
    x = torch.randn(4, 5)
    w = flat.start(0)
    torch.testing.assert_close(flat.scores(w, x), usual.scores(w, x))
    args = x, torch.randn(4), torch.full((4,), 0.25)
    torch.testing.assert_close(flat.gradient(w, *args), usual.gradient(w, *args))
    with pytest.raises(BadInput, match="must have a single output"):
        build_model(federation, nn.Linear(5, 2))


def test_a_model_with_another_loss_is_refused() -> None:
    with pytest.raises(BadInput, match="the federation needs Squared"):
        train(federation_of("number", 5), FedAvg(), model=Linear(5, 1), rounds=1)
