"""Models of one's own: buffers, tied weights, shapes, tokens, and what `vmap` does not support."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkin
from conftest import small_federation
from fedkin import FedAvg, Local, from_arrays
from fedkin.algorithms import FineTuned
from fedkin.data import federate
from fedkin.data.federation import Federation
from fedkin.engine.metrics import score
from fedkin.engine.own import own_model, own_scores
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments import plans
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Model, Module, build_model, plain_module
from own_nets import Centred, Counting, Deciding, Digits, Dropping, Frozen, Positions, Tied, Viewing


def simulation(federation: Federation, model: Model, local: Local) -> Simulation:
    """FedAvg, weighted by samples."""
    sizes = federation.train.sizes
    graph = SimilarityGraph.edgeless(len(sizes))
    return Simulation(federation, model, FedAvg(step_size=0.5), graph, sizes / sizes.sum(), local, seed=3)


def one_round(run: Simulation) -> Tensor:
    return run.advance(run.start()).model


def gradients_agree(model: Module, x: Tensor, classes: int = 3) -> None:
    """Of stacked clients, one by one, and of the plain module."""
    clients, samples = x.shape[:2]
    y = torch.randint(0, classes, (clients, samples), generator=torch.Generator().manual_seed(1))
    w = torch.stack([model.start(seed) for seed in range(clients)])
    stacked = model.gradient(w, x, y, torch.full((clients, samples), 1 / samples))
    for i in range(clients):
        net = plain_module(model, w[i]).train()
        shaped = x[i].reshape(samples, *model.shape).to(model.dtype)
        nn.functional.cross_entropy(net(shaped), y[i]).backward()  # type: ignore[no-untyped-call]
        expected = torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
        torch.testing.assert_close(stacked[i], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model.scores(w[i], x[i]).mT, net.eval()(shaped), rtol=1e-4, atol=1e-6)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "tied": (Tied, (5,), torch.float32),
    "view": (Viewing, (1, 4, 4), torch.float32),
    "decides": (Deciding, (5,), torch.float32),
    "tokens": (Positions, (6,), torch.int64),
}


@pytest.mark.parametrize("batch", [4, 40000])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_stacked_clients(case: str, batch: int) -> None:
    make, shape, dtype = CASES[case]
    model = Module(make, shape, 3, dtype=dtype)
    clients, features = (5, int(np.prod(shape))) if batch < 100 else (2, int(np.prod(shape)))
    torch.manual_seed(0)
    x = torch.randn(clients, batch, features)
    if not dtype.is_floating_point:
        x = torch.randint(0, 12, (clients, batch, features)).float()
    gradients_agree(model, x)


def test_tied_weights_are_trained_as_one() -> None:
    model = Module(Tied, (5,), 3)
    assert model.size == 25 + 5 + 5 + 18
    state = plain_module(model, model.start(0)).state_dict()
    assert set(state) == {"first.weight", "first.bias", "second.weight", "second.bias", "out.weight", "out.bias"}
    assert torch.equal(state["first.weight"], state["second.weight"])


def test_a_module_that_vmap_does_not_support_is_computed_client_by_client() -> None:
    model = Module(Deciding, (5,), 3)
    assert not model.stackable
    assert Module(Viewing, (1, 4, 4), 3).stackable
    assert not Module(Viewing, (1, 4, 4), 3).channels_last
    small = small_federation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fedkin.train(small, FedAvg(step_size=0.1), model=model, graph="uniform", rounds=2)
    assert np.isfinite(result.train_loss).all()


def test_batches_are_not_padded_if_samples_depend_on_each_other() -> None:
    """A client of 9 samples in batches of 4 ends with a batch of one, whose mean must not be that of four."""
    model = Module(Centred, (5,), 3)
    assert not model.stackable
    assert Module(Tied, (5,), 3).stackable
    local = Local(epochs=2, batch_size=4, order="fixed")
    run = simulation(small_federation(sizes=(4, 9, 5, 6, 7)), model, local)
    torch.testing.assert_close(one_round(run), one_round(replace(run, stacked=False)))


# -- frozen parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [4, 4000], ids=["together", "one by one"])
def test_frozen_parameters_stay(hidden: int) -> None:
    """P counts the last layer alone; a step moves it as plain PyTorch does, and the first layer not at all."""

    def make() -> nn.Module:
        return Frozen(hidden)

    model = Module(make, (5,), 3)
    assert model.size == 3 * hidden + 3
    assert model.stacks(9) == (hidden == 4)
    federation = small_federation()
    run = simulation(federation, model, Local(epochs=1, batch_size=100, order="fixed", l2=0.1))
    after, net = one_round(run), Frozen(hidden)
    fixed = plain_module(model, after).state_dict()["features.weight"]
    net.load_state_dict(plain_module(model, model.start(run.seed)).state_dict())
    assert torch.equal(net.features.weight, fixed), "what the model keeps is what it computes with"
    # With one step per client, the average of the models is one step on all samples.
    train = federation.train
    loss = nn.functional.cross_entropy(net(train.x), train.y)
    loss = loss + 0.05 * sum(p.square().sum() for p in net.out.parameters())
    weight, bias = torch.autograd.grad(loss, [net.out.weight, net.out.bias])
    expected = torch.cat([(net.out.weight - 0.5 * weight).flatten(), net.out.bias - 0.5 * bias])
    torch.testing.assert_close(after, expected.detach(), rtol=1e-4, atol=1e-6)


def test_frozen_parameters_leave_with_the_model() -> None:
    """They are those of the object that was given, in state dicts and predictions."""
    net = Frozen()
    result = fedkin.train(small_federation(), FedAvg(step_size=0.5), model=net, graph="uniform", rounds=3)
    state = result.state_dict()
    assert torch.equal(state["features.weight"], net.features.weight)
    assert torch.equal(state["features.bias"], net.features.bias)
    assert not torch.allclose(state["out.weight"], net.out.weight)
    net.load_state_dict(state)
    x = small_federation().test.x
    assert result.predict(x.numpy()).tolist() == net(x).argmax(1).tolist()


def test_a_module_of_frozen_parameters_is_refused() -> None:
    with pytest.raises(BadInput, match="all parameters of the module are frozen: set requires_grad = True"):
        build_model(small_federation(), nn.Linear(5, 3).requires_grad_(False))


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", [Digits, Dropping], ids=lambda net: net.__name__)
def test_threads_do_not_change_modules(net: Callable[[], nn.Module]) -> None:
    """Five clients, each on one of two threads, against one thread: to the bit. With dropout they take turns."""
    data = federate(fedkin.load("digits"), clients=5)
    local = Local(epochs=1, batch_size=1000, order="shuffled")
    model = Module(net, (1, 8, 8), 10)
    assert not model.stacks(287)
    assert model.parallel == (net is Digits)
    run = simulation(data, model, local)
    models = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        models[threads] = [one_round(run) for _ in range(2)]
    torch.set_num_threads(1)
    assert torch.equal(*models[1])
    assert torch.equal(*models[2])
    compare = torch.equal if model.parallel else torch.allclose
    assert compare(models[1][0], models[2][0])


def test_threads_do_not_change_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the global model and of each client's own, in pieces of 64 samples, against plain PyTorch."""
    data = federate(fedkin.load("digits"), clients=5).held_out(0.2)
    model = Module(Digits, (1, 8, 8), 10)
    run = simulation(data, model, Local(epochs=1, batch_size=250, order="fixed"))
    run = replace(run, algorithm=FineTuned(step_size=0.5, tuning_epochs=1))
    state = run.advance(run.start())
    assert data.validation is not None
    parts = {"train": data.train, "validation": data.validation}
    monkeypatch.setattr("fedkin.engine.metrics.MOST_ROWS_AT_ONCE", 64)
    monkeypatch.setattr("fedkin.engine.metrics.MUCH", 0)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        own = own_scores(run, state, parts)
        scores = [*score(model, state.model[None], data.train), *own["train"], *own["validation"]]
        assert torch.get_num_threads() == threads
        found.append(np.stack([(one.losses, one.values) for one in scores]))
    torch.set_num_threads(1)
    np.testing.assert_array_equal(found[0], found[1])
    models = [state.model, *(own_model(run, state, client) for client in range(5))]
    for client in range(5):
        for row, (w, part) in enumerate(((0, data.train), (1 + client, data.train), (1 + client, data.validation))):
            rows = part.rows(client)
            z, y = plain_module(model, models[w])(part.x[rows].reshape(-1, 1, 8, 8)).detach(), part.y[rows]
            right = float((z.argmax(1) == y).double().mean())
            expected = float(nn.functional.cross_entropy(z, y)), right
            np.testing.assert_allclose(found[0][row, :, client], expected, rtol=1e-4)


def test_a_copy_does_not_keep_the_parameters_it_was_given() -> None:
    """A view would keep the memory of all clients' models from being used again."""
    model = Module(lambda: nn.Linear(500, 3), (500,), 3)
    w, x = torch.zeros(1, model.size), torch.ones(1, 200, 500)
    model.gradient(w, x, torch.zeros(1, 200, dtype=torch.int64), torch.ones(1, 200))
    model.scores(w, x)
    (own,) = model._idle
    assert [p.numel() for p in own.net.parameters()] == [0, 0]


def test_buffers_that_change_are_refused() -> None:
    with pytest.raises(BadInput, match=r"changes its buffer 'calls' in training.*GroupNorm or LayerNorm"):
        build_model(small_federation(), Counting())
    normed = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    with pytest.raises(BadInput, match=r"1\.running_mean.*use GroupNorm or LayerNorm instead of BatchNorm"):
        build_model(small_federation(), normed)
    assert build_model(small_federation(), nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, track_running_stats=False)))


# -- shapes and tokens -------------------------------------------------------------------------------------------------


def test_samples_without_channels(tmp_path: Path) -> None:
    settings = {
        "name": "rows",
        "rounds": 2,
        "partition": {"clients": 4},
        "model": {"kind": "own_nets:Rows", "shape": "8, 8"},
        "local": {"step_size": 0.1, "epochs": 1},
    }
    (result,) = fedkin.run(settings, out=tmp_path)
    assert result.predict(fedkin.load("digits").x_test).shape == (359,)
    with pytest.raises(BadInput, match=r"model.shape = \(8, 9\) has 72 numbers but a sample has 64"):
        fedkin.run({**settings, "model": {"kind": "own_nets:Rows", "shape": "8, 9"}}, out=tmp_path / "b")
    with pytest.raises(BadInput, match=r"give the shape it expects as model.shape"):
        fedkin.run({**settings, "model": {"kind": "own_nets:Rows"}}, out=tmp_path / "c")
    for wrong in ("8, x", "0, 8", 8, "-8, -8"):
        with pytest.raises(BadInput, match=r"write all sizes in one string, such as '28, 28'"):
            plans({**settings, "model": {"kind": "own_nets:Rows", "shape": wrong}})
    with pytest.raises(BadInput, match=r"leave out model\.shape"):
        fedkin.run({**settings, "model": {"kind": "mlp", "shape": "8, 8"}}, out=tmp_path / "d")


def sequences(dtype: Any = np.int64, top: int = 12, preprocess: str = "none") -> Federation:
    """Class 0 has even tokens, class 1 odd ones, class 2 all."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = rng.integers(0, top, (400, 6))
    x = np.where(y[:, None] < 2, x - x % 2 + y[:, None], x)
    return federate(from_arrays(x.astype(dtype), y), clients=4, preprocess=preprocess)


def test_tokens_reach_the_module_as_integers() -> None:
    federation = sequences(np.int32)
    model = build_model(federation, Positions())
    assert isinstance(model, Module)
    assert model.dtype == torch.int64
    local = Local(epochs=5, batch_size=16, optimizer="adam")
    result = fedkin.train(federation, FedAvg(step_size=0.02), model=model, graph="uniform", local=local, rounds=4)
    assert result.test_accuracy[-1] > 0.8
    x = federation.test.x.numpy().astype(np.int64)
    assert float((result.predict(x) == federation.test.y.numpy()).mean()) == pytest.approx(result.test_accuracy[-1])


def test_integer_features_of_a_linear_layer_are_floats() -> None:
    model = build_model(sequences(), nn.Linear(6, 3))
    assert isinstance(model, Module)
    assert model.dtype == torch.float32


def test_tokens_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(BadInput, match=r"does not take integers from 0 to 13.*as many rows as there are tokens"):
        build_model(sequences(top=14), Positions())
    with pytest.raises(BadInput, match=r"store tokens as int32 or int64 and set data.preprocess = 'none'"):
        build_model(sequences(preprocess="half"), Positions())
    with pytest.raises(BadInput, match=r"store tokens as int32 or int64"):
        build_model(sequences(np.float32), Positions())
    federation = sequences()
    federation.train.x[0, 0] = 2.0**24
    with pytest.raises(BadInput, match=r"hold the integer 16777216, but tokens must be below 2²⁴: renumber"):
        build_model(federation, Positions())


def test_the_largest_exact_token_is_kept() -> None:
    """2²⁴ − 1 is the last one after which float32 skips integers."""
    seen: list[Tensor] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            assert x.dtype == torch.int64
            seen.append(x)
            return torch.as_tensor(self.out((x % 7).float()))

    federation = sequences()
    train = replace(federation.train, x=federation.train.x.clone())
    train.x[0, 0] = 2.0**24 - 1
    model = build_model(replace(federation, train=train), Looking())
    seen.clear()
    model.scores(model.start(0), train.x[:1])
    assert int(seen[-1][0, 0]) == 2**24 - 1


# -- modules beside the TOML file --------------------------------------------------------------------------------------

NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, hidden=4):
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
"""
ALGORITHM = """
from fedkin import FedAvg
class Mine(FedAvg):
    pass
"""
TOML = """
rounds = 1
partition = { clients = 3 }
local = { epochs = 1 }
model = { kind = "beside_net:Net", args = { hidden = 5 } }
algorithm = { name = "beside_algorithm:Mine" }
"""


def experiment(folder: Path, hidden: int) -> Path:
    folder.mkdir()
    (folder / "beside_net.py").write_text(NET.replace("hidden=4", f"hidden={hidden}"))
    (folder / "beside_algorithm.py").write_text(ALGORITHM)
    (folder / "mine.toml").write_text(TOML)
    return folder / "mine.toml"


def test_modules_beside_the_toml_file(tmp_path: Path) -> None:
    one, other = experiment(tmp_path / "one", 4), experiment(tmp_path / "other", 7)
    (result,) = fedkin.run(one, out=tmp_path / "results")
    assert result.state_dict()["1.weight"].shape == (5, 64)
    other.write_text(TOML.replace(", args = { hidden = 5 }", ""))
    (second,) = fedkin.run(other, out=tmp_path / "results2")
    assert second.state_dict()["1.weight"].shape == (7, 64), "of the same name, but beside another file"
    assert result.folder is not None
    again = fedkin.load_run(result.folder)
    assert again.state_dict()["1.weight"].shape == (5, 64)
    moved = tmp_path / "elsewhere"
    (tmp_path / "one").rename(moved)
    assert fedkin.load_run(result.folder, beside=moved).state_dict()["1.weight"].shape == (5, 64)


def test_errors_of_modules_beside_the_toml_file(tmp_path: Path) -> None:
    file = experiment(tmp_path / "broken", 4)
    (tmp_path / "broken" / "beside_net.py").write_text("1 / 0\n")
    with pytest.raises(BadInput, match=r"the model 'beside_net:Net' cannot be imported \(ZeroDivisionError"):
        plans(file)
