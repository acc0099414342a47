"""Compiled rounds on parameters: products against PyTorch, and whole rounds against single clients in plain space."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import small_federation, tensors_of
from fedkin.algorithms import APFL, Algorithm, FedAvg, FedKin, FedProx, PerFedAvg, PFedMe
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.data.federation import Federation
from fedkin.engine import cohorts
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import build_graph
from fedkin.models import MLP, CrossEntropy, Linear, Logistic, Model, Softmax, Squared
from fedkin.types import Tensors
from own_algorithms import Ditto, Scaffold

pytest.importorskip("numba")

from fedkin.engine.spaces.primal import Primal

SIZES = (70, 130, 33, 64, 7, 101)
LOCAL = Local(epochs=3, batch_size=48, l2=0.05)


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do."""
    monkeypatch.setattr(cohorts, "MUCH", 0)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def simulation(
    algorithm: Algorithm, local: Local = LOCAL, model: Model | None = None, sizes: Any = SIZES, **other: Any
) -> Simulation:
    model = model or Softmax(37, 4)
    federation = small_federation(sizes, features=model.features, classes=4)  # type: ignore[attr-defined]
    graph = build_graph(federation)
    return Simulation(federation, model, algorithm, graph, graph.degrees, local, seed=3, **other)


def played(run: Simulation, rounds: int = 3) -> State:
    state = run.start()
    for _ in range(rounds):
        state = run.advance(state)
    return state


def assert_plain(run: Simulation) -> None:
    quick, plain = played(run), played(replace(run, stacked=False))
    assert quick.spaces.keys() == {"primal"}
    assert tensors_of(quick).keys() == tensors_of(plain).keys()
    assert not torch.equal(plain.model, run.start().model)
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(quick)[name], value, rtol=1e-4, atol=2e-6)


# -- whole rounds ------------------------------------------------------------------------------------------------------

MODELS: dict[str, Model] = {"softmax": Softmax(37, 4), "network": MLP(37, 4, hidden=9)}
MEMBERS: list[Algorithm] = [
    FedAvg(step_size=0.05),
    FedProx(step_size=0.05, alpha=7.0),
    FedKin(step_size=0.05, beta=0.6),
    FedKin(step_size=0.03, beta=Schedule(0.3, 1.0, over=2)),
]
LOCALS = {
    "shuffled": LOCAL,
    "clipped": replace(LOCAL, clip=0.3),
    "fixed, clipped": replace(LOCAL, order="fixed", clip=0.3),
    "small batches": replace(LOCAL, epochs=1, batch_size=5),
    "steps": Local(steps=5, l2=0.05),
    "most steps": Local(epochs=3, batch_size=48, most_steps=7, l2=0.05),
    "all at once": replace(LOCAL, batch_size=None, l2=0.0),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
@pytest.mark.parametrize("take_part", [None, 4], ids=["all", "sampled"])
def test_local_work(model: Model, local: Local, take_part: int | None) -> None:
    assert_plain(simulation(FedKin(step_size=0.05, beta=0.6), local, model, take_part=take_part))


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("algorithm", [*MEMBERS, Scaffold(step_size=0.05), Ditto(step_size=0.05)], ids=str)
def test_algorithms(algorithm: Algorithm, clip: float | None) -> None:
    """SCAFFOLD and Ditto keep vectors between rounds, which are evaluated and changed as well."""
    for model in MODELS.values():
        assert_plain(simulation(algorithm, replace(LOCAL, clip=clip), model, take_part=4))


SEVERAL_GRADIENTS: dict[str, tuple[Algorithm, Local]] = {
    "pFedMe": (PFedMe(step_size=0.01, pull=7.0, inner_step=0.05, inner_steps=3), LOCAL),
    "Per-FedAvg": (PerFedAvg(step_size=0.05, inner_step=0.1), LOCAL),
    "Per-FedAvg, hf": (PerFedAvg(step_size=0.05, inner_step=0.1, variant="hf", delta=0.1), LOCAL),
    "APFL": (APFL(step_size=0.05, share=0.3), LOCAL),
    "momentum": (FedKin(step_size=0.02, beta=0.6), replace(LOCAL, optimizer="momentum", weight_decay=0.1)),
    "momentum of two models": (Ditto(step_size=0.02), replace(LOCAL, optimizer="momentum")),
}


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(("algorithm", "local"), SEVERAL_GRADIENTS.values(), ids=SEVERAL_GRADIENTS.keys())
def test_several_gradients_per_step(algorithm: Algorithm, local: Local, clip: float | None) -> None:
    """Vectors that depend on each other, or several gradients: one client at a time in plain space is the same."""
    for model in MODELS.values():
        assert_plain(simulation(algorithm, replace(local, clip=clip), model, take_part=4))


def test_lanes_of_several_gradients() -> None:
    """Lanes differ in all numbers of pFedMe; strong pulls shrink its trails so much that they have to be rescaled."""
    members = [PFedMe(step_size=0.01, pull=p, inner_step=s) for p, s in ((1.0, 0.1), (15.0, 0.06), (30.0, 0.03))]
    for clip in (None, 0.3):
        for model in MODELS.values():
            assert_plain(together([simulation(member, replace(LOCAL, clip=clip), model) for member in members]))


@pytest.mark.parametrize(
    ("clips", "penalties"),
    [
        ((None,) * 4, (0.05,) * 4),
        ((None,) * 4, (0.0, 0.3, 0.1, 12.0)),
        ((0.3,) * 4, (0.0, 0.3, 0.1, 12.0)),
        ((0.3, None, 0.2, 1e3), (0.05,) * 4),
    ],
    ids=str,
)
def test_lanes(clips: tuple[float | None, ...], penalties: tuple[float, ...]) -> None:
    """With a penalty of 12 the trail shrinks so much that it has to be rescaled."""
    for model in MODELS.values():
        runs = [
            simulation(member, replace(LOCAL, l2=l2, clip=clip), model, sizes=SIZES[:3])
            for member, l2, clip in zip(MEMBERS, penalties, clips, strict=True)
        ]
        assert_plain(together(runs))


@pytest.mark.parametrize("clip", [None, 0.3])
def test_a_diverging_lane_does_not_change_the_others(clip: float | None) -> None:
    for model in MODELS.values():
        calm = simulation(FedKin(step_size=0.05, beta=0.6), replace(LOCAL, clip=clip), model)
        wild = replace(calm, algorithm=FedAvg(step_size=1e30))
        both, alone = played(together([calm, wild])), played(calm)
        assert clip or not both.model[1].isfinite().all()
        assert not both.model[1].abs().max() < 1e6
        torch.testing.assert_close(both.model[0], alone.model, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("clip", [None, 0.3])
def test_gradients_are_clipped_to_the_bit_where_they_are_short(model: Model, clip: float | None) -> None:
    """A bound that no gradient reaches changes nothing but the order of two additions; a low one does."""
    free = played(simulation(FedAvg(step_size=0.05), LOCAL, model))
    loose = played(simulation(FedAvg(step_size=0.05), replace(LOCAL, clip=1e6), model))
    tight = played(simulation(FedAvg(step_size=0.05), replace(LOCAL, clip=clip or 0.1), model))
    torch.testing.assert_close(loose.model, free.model, rtol=1e-5, atol=1e-6)
    assert (tight.model - free.model).norm() > 1e-3


def numbers(made: Federation) -> Federation:
    """With targets between 0 and 1."""
    train, test = (replace(part, y=part.x.mean(-1)) for part in (made.train, made.test))
    return replace(made, train=train, test=test)


@pytest.mark.parametrize("make", [Linear, lambda d, k, loss: MLP(d, k, 6, loss)], ids=["linear", "network"])
def test_losses(make: Callable[..., Any]) -> None:
    for loss, outputs in ((CrossEntropy(), 5), (Logistic(), 1), (Squared(), 1)):
        run = replace(simulation(FedKin(step_size=0.05, beta=0.6)), model=make(37, outputs, loss=loss))
        if isinstance(loss, Logistic):
            made = run.federation
            run = replace(run, federation=replace(made, train=replace(made.train, y=made.train.y % 2)))
        elif isinstance(loss, Squared):
            run = replace(run, federation=numbers(run.federation))
        assert_plain(run)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [LOCALS["shuffled"], LOCALS["clipped"]], ids=["shuffled", "clipped"])
@pytest.mark.parametrize("take_part", [None, 4], ids=["all", "sampled"])
def test_threads_do_not_change_the_result(local: Local, take_part: int | None) -> None:
    """To the bit, with unequal clients; nor does the grouping of small clients, which share a call."""
    sizes, before, models = (400, 3, 20, 20, 20, 90, 1), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            runs = [simulation(member, local, sizes=sizes, take_part=take_part) for member in MEMBERS[:3]]
            models.append(played(together(runs)).model)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_the_largest_client_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled client uses one core, so others run beside it, the most expensive first."""
    waiting: list[int] = []
    threads, play = set(), Primal.play

    class Pool(ThreadPoolExecutor):
        def map(self, work: Any, given: Any, **_: Any) -> Any:  # type: ignore[override]
            waiting.extend(int(cohort.places[0]) for cohort in given)
            return super().map(work, given)

    def noted(self: Primal, *given: Any) -> Tensors:
        threads.add(threading.current_thread())
        return play(self, *given)

    monkeypatch.setattr(Primal, "play", noted)
    monkeypatch.setattr("fedkin.threads.ThreadPoolExecutor", Pool)
    monkeypatch.setattr(cohorts, "CALL", 0)  # each client by itself
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        played(simulation(FedAvg(step_size=0.02), sizes=(20, 400, 30, 100, 25, 40)), 1)
    finally:
        torch.set_num_threads(before)
    assert waiting == [1, 3, 5, 2, 4, 0]
    assert threading.main_thread() not in threads


def test_clients_of_a_call_take_equally_many_steps() -> None:
    """Batches of 48: clients with 1 to 48 samples take three steps, those with 70 six, with 101 and 130 nine."""
    model = Softmax(37, 4)
    steps = cohorts.Steps(model, LOCAL, torch.device("cpu"), True, True, 1, True, 1, False, False)
    made = list(cohorts.cohorts_of([70, 130, 33, 40, 7, 101], 37, steps))
    assert [sorted(cohort.places.tolist()) for cohort in made] == [[1, 5], [0], [2, 3, 4]]
    assert {cohort.space for cohort in made} == {Primal}


# -- when it is used ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"local": replace(LOCAL, order="fixed")}, {"compiled", "samples", "primal"}),
        ({"local": replace(LOCAL, optimizer="adam")}, {"fused"}),
        ({"model": Softmax(15, 4)}, {"samples", "fused"}),
        ({"model": MLP(37, 4, hidden=5), "local": replace(LOCAL, order="fixed")}, {"samples", "primal"}),
    ],
    ids=["kept Gram matrices", "adam", "few features", "network, kept Gram matrices"],
)
def test_other_spaces(change: dict[str, Any], expected: set[str]) -> None:
    run = simulation(FedKin(step_size=0.02), **change)
    quick, plain = played(run), played(replace(run, stacked=False))
    assert quick.spaces.keys() <= expected
    assert quick.spaces.keys() != {"primal"}
    torch.testing.assert_close(quick.model, plain.model, rtol=1e-4, atol=2e-6)


def test_short_rounds_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "MUCH", 2e8)
    assert "primal" not in played(simulation(FedAvg(step_size=0.1)), 1).spaces
