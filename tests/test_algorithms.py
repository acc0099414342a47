"""The algorithms: numbers computed by hand, identities, and Lemma 1."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conftest import small_federation
from fedkin.algorithms import ALGORITHMS, Algorithm, FedAvg, FedKin, FedProx, FedSGD, Round, algorithm_named
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.models import Softmax
from fedkin.types import Tensors
from loops import played


def simulation(algorithm: Algorithm, **settings: Any) -> Simulation:
    federation = small_federation()
    graph = build_graph(federation)
    local = Local(epochs=2, batch_size=4, l2=0.01, order="fixed")
    made = Simulation(federation, Softmax(5, 3), algorithm, graph, graph.degrees, local, seed=1)
    return replace(made, **settings)


# --- by hand ---------------------------------------------------------------------------------------------


def a_round(graph: SimilarityGraph, who: NDArray[np.int64], weights: NDArray[np.float64] | None = None) -> Round:
    """The first round about these clients, with equal weights if none are given."""
    return Round(0, who, np.full(len(who), 1 / len(who)) if weights is None else weights, graph, len(graph))


def square(v: Tensor) -> Tensor:
    """The gradient of f(w) = ½ (w − 3)²."""
    return v - 3.0


def test_step_by_hand() -> None:
    """At w = 1, w̄ = 2, u = 4, γ = 0.1, f(w) = ½ (w − 3)².

    FedAvg            1 − 0.1·(1 − 3)                      = 1.2
    FedProx, α = 0.5  1 − 0.1·((1 − 3) + 0.5·(1 − 2))      = 1.25
    FedKin, β = 0.5   gradient at 0.5·1 + 0.5·4 = 2.5, so 1 − 0.1·(2.5 − 3) = 1.05
    """
    w = torch.tensor([[1.0]])
    got = {"model": torch.tensor([[2.0]]), "anchor": torch.tensor([[4.0]])}
    for algorithm, expected in (
        (FedAvg(step_size=0.1), 1.2),
        (FedProx(step_size=0.1, alpha=0.5), 1.25),
        (FedKin(step_size=0.1, beta=0.5), 1.05),
    ):
        new: Any
        new, memory = algorithm.step(w, got, {}, square)
        assert float(new) == pytest.approx(expected)
        assert memory == {}


def test_fedkin_server_by_hand() -> None:
    """Three clients, A₀₁ = 1, A₀₂ = 3, A₁₂ = 0: mixing rows (0, ¼, ¾), (1, 0, 0), (1, 0, 0), degrees ½, ⅛, ⅜.

    Last models 10, 20, 40 give u = ¼·20 + ¾·40 = 35 for client 0, and 10 for the others.
    The global model becomes ½·10 + ⅛·20 + ⅜·40 = 22.5.
    """
    graph = SimilarityGraph(np.array([[0.0, 1, 3], [1, 0, 0], [3, 0, 0]]))
    everyone = np.arange(3)
    fedkin, round = FedKin(beta=0.5), a_round(graph, everyone, graph.degrees)
    server = fedkin.start(torch.tensor([[5.0]]), a_round(SimilarityGraph.uniform(3), np.arange(3)))
    first = fedkin.send(server, round)
    assert first["anchor"].flatten().tolist() == [5.0, 5.0, 5.0], "before any reply u = w̄"
    replies = {"model": torch.tensor([[10.0], [20.0], [40.0]])}
    server = fedkin.combine(server, replies, round)
    assert float(server["model"]) == pytest.approx(22.5)
    assert fedkin.send(server, round)["anchor"].flatten().tolist() == pytest.approx([35.0, 10.0, 10.0])


@pytest.mark.parametrize(("absent", "expected"), [("global", 0.25 * 22 + 0.75 * 40), ("last", 0.25 * 20 + 0.75 * 40)])
def test_absent_neighbour_by_hand(absent: str, expected: float) -> None:
    """As above; in a second round only clients 0 and 2 are sampled, send 10 and 40, and have weights ⅗ and ⅖: w̄ = 22.

    Client 0 takes ¾ of client 2's 40 and ¼ of client 1, who counts as w̄ or as the 20 it sent before.
    """
    graph = SimilarityGraph(np.array([[0.0, 1, 3], [1, 0, 0], [3, 0, 0]]))
    fedkin = FedKin(beta=0.5, absent=absent)
    server = fedkin.start(torch.tensor([[5.0]]), a_round(SimilarityGraph.uniform(3), np.arange(3)))
    everyone = {"model": torch.tensor([[10.0], [20.0], [40.0]])}
    server = fedkin.combine(server, everyone, a_round(graph, np.arange(3), np.array([0.5, 0.125, 0.375])))
    two = {"model": torch.tensor([[10.0], [40.0]])}
    server = fedkin.combine(server, two, a_round(graph, np.array([0, 2]), np.array([0.6, 0.4])))
    assert float(server["model"]) == pytest.approx(22.0)
    assert float(fedkin.send(server, a_round(graph, np.array([0])))["anchor"]) == pytest.approx(expected)


def test_a_graph_without_edges_sends_nothing_extra() -> None:
    fedkin = FedKin(beta=0.5)
    server = fedkin.start(torch.tensor([[5.0]]), a_round(SimilarityGraph.uniform(3), np.arange(3)))
    assert set(fedkin.send(server, a_round(SimilarityGraph.edgeless(3), np.arange(3)))) == {"model"}
    assert set(fedkin.send(server, a_round(SimilarityGraph.uniform(3), np.arange(3)))) == {"model", "anchor"}


def test_fedsgd_by_hand() -> None:
    """One round is w̄ − γ Σ pᵢ ∇fᵢ(w̄) for any epochs and batch size."""
    run = simulation(FedSGD(step_size=0.5))
    model, clients = run.model, run.federation.train
    w = run.start().model
    total = torch.zeros_like(w)
    for i, p in enumerate(run.weights):
        rows = clients.rows(i)
        n = len(clients.y[rows])
        g = model.gradient(w[None], clients.x[rows][None], clients.y[rows][None], torch.full((1, n), 1 / n))[0]
        total += p * (g + 0.01 * w)
    torch.testing.assert_close(played(run, 1).model, w - 0.5 * total)
    other = replace(run, local=Local(epochs=7, batch_size=2, l2=0.01, order="fixed"))
    torch.testing.assert_close(played(other, 1).model, w - 0.5 * total)


# --- identities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [FedKin(beta=1.0, step_size=0.1), FedProx(alpha=0.0, step_size=0.1)])
@pytest.mark.parametrize("stacked", [True, False])
def test_beta_one_and_alpha_zero_are_fedavg_to_the_bit(same: Algorithm, stacked: bool) -> None:
    average = played(simulation(FedAvg(step_size=0.1), stacked=stacked))
    assert torch.equal(played(simulation(same, stacked=stacked)).model, average.model)


@pytest.mark.parametrize("take_part", [None, 3])
@pytest.mark.parametrize("absent", ["global", "last"])
def test_lemma_1_at_every_step_of_every_round(take_part: int | None, absent: str, one_thread: None) -> None:
    """Σ pᵢ w̃ᵢ = β w̄ₖ + (1 − β) w̄₀, with w̄ₖ = Σ pᵢ wᵢ. All clients take the same number of steps.

    Under partial participation the lemma is about all clients: Σ pᵢ uᵢ = w̄₀ is checked for all of them.
    With `last` it fails then, as the old models do not average to w̄₀; that too is checked.
    """
    beta = 0.4
    points: list[Tensor] = []

    class Watched(FedKin):
        def step(self, w: Any, got: Any, memory: Any, gradient: Any) -> Any:
            def watched(v: Tensor) -> Tensor:
                points.append(torch.stack([w[0], v[0]]))
                return torch.as_tensor(gradient(v))

            return super().step(w, got, memory, watched)

    run = simulation(Watched(beta=beta, step_size=0.3, absent=absent), take_part=take_part, stacked=False)
    run = replace(run, local=Local(steps=3, l2=0.01, order="fixed"))
    p = torch.tensor(run.weights, dtype=torch.float32)
    state = run.start()
    for t in range(4):
        points.clear()
        start = state.model
        u = run.algorithm.at(t).send(state.server, a_round(run.graph, np.arange(5)))["anchor"]
        holds = torch.allclose(p @ u, start, atol=1e-6)
        assert holds == (take_part is None or absent == "global" or t < 2)
        state = run.advance(state)
        if take_part is None:
            seen = torch.stack(points).reshape(5, 3, 2, -1)  # client, step, (w, w̃)
            w, perturbed = seen[:, :, 0], seen[:, :, 1]
            for k in range(3):
                average = p @ w[:, k]
                torch.testing.assert_close(p @ perturbed[:, k], beta * average + (1 - beta) * start)


@pytest.mark.parametrize("algorithm", [FedAvg(step_size=0.2), FedKin(beta=0.5, step_size=0.2), FedProx(step_size=0.2)])
def test_relabelling_the_clients_changes_nothing(algorithm: Algorithm) -> None:
    order = [3, 0, 4, 1, 2]
    run = simulation(algorithm)
    federation = run.federation.relabelled(order)
    graph = build_graph(federation)
    np.testing.assert_allclose(graph.adjacency, run.graph.relabelled(order).adjacency)
    other = replace(run, federation=federation, graph=graph, weights=graph.degrees)
    torch.testing.assert_close(played(other).model, played(run).model, rtol=1e-5, atol=1e-6)


# --- every knob changes the result -----------------------------------------------------------------------

KNOBS: dict[str, Callable[[Simulation], Simulation]] = {
    "step size": lambda s: replace(s, algorithm=FedKin(beta=0.5, step_size=0.21)),
    "beta": lambda s: replace(s, algorithm=FedKin(beta=0.6, step_size=0.2)),
    "absent": lambda s: replace(s, algorithm=FedKin(beta=0.5, step_size=0.2, absent="last")),
    "alpha": lambda s: replace(s, algorithm=FedProx(alpha=0.3, step_size=0.2)),
    "l2": lambda s: replace(s, local=replace(s.local, l2=0.1)),
    "clip": lambda s: replace(s, local=replace(s.local, clip=0.05)),
    "epochs": lambda s: replace(s, local=replace(s.local, epochs=3)),
    "batch size": lambda s: replace(s, local=replace(s.local, batch_size=3)),
    "steps": lambda s: replace(s, local=replace(s.local, steps=2)),
    "order": lambda s: replace(s, local=replace(s.local, order="shuffled")),
    "graph": lambda s: replace(s, graph=SimilarityGraph.uniform(5)),
    "weights": lambda s: replace(s, weights=np.full(5, 0.2)),
    "participation": lambda s: replace(s, take_part=2),
    "seed": lambda s: replace(s, seed=2),
    "schedule": lambda s: replace(s, algorithm=FedKin(beta=Schedule(0.5, 1.0, over=2), step_size=0.2)),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_every_setting_changes_the_result(knob: str) -> None:
    run = simulation(FedKin(beta=0.5, step_size=0.2), take_part=3)
    changed = replace(KNOBS[knob](run))
    before, after = played(run).model, played(changed).model
    assert (before - after).abs().max() > 1e-5


def test_schedule_is_used_round_by_round() -> None:
    """β from 0.5 to 1 over one round: the first round as with 0.5, the second as with 1."""
    moving = simulation(FedKin(beta=Schedule(0.5, 1.0, over=1), step_size=0.2))
    state = moving.advance(moving.start())
    half = simulation(FedKin(beta=0.5, step_size=0.2))
    assert torch.equal(state.model, half.advance(half.start()).model)
    one = simulation(FedKin(beta=1.0, step_size=0.2))
    assert torch.equal(moving.advance(state).model, one.advance(state).model)


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedKin(beta=0.0), "beta = 0 is out of range: it must be above 0 and at most 1"),
        (lambda: FedKin(beta=1.5), "beta = 1.5 is out of range"),
        (lambda: FedKin(beta=Schedule(0.5, 1.5, over=3)), "beta = 1.5 is out of range"),
        (lambda: FedKin(beta=float("nan")), "beta = nan is out of range"),
        (lambda: FedAvg(step_size=-1e-3), "step_size = -0.001 is out of range: it must be above 0"),
        (lambda: FedProx(alpha=-1.0), "alpha = -1 is out of range: it must be at least 0"),
        (lambda: FedKin(absent="never"), "unknown absent 'never'"),
        (lambda: algorithm_named("fedkim"), "unknown algorithm 'fedkim' (did you mean 'fedkin'?)"),
    ],
)
def test_bad_input(make: Callable[[], object], says: str) -> None:
    with pytest.raises(BadInput) as error:
        make()
    assert says in str(error.value)


def test_all_algorithms_are_named() -> None:
    assert {cls.__name__.lower() for cls in ALGORITHMS.values()} == set(ALGORITHMS)


# --- a new algorithm is one small class ------------------------------------------------------------------


def test_an_algorithm_with_memory() -> None:
    """Clients that count how often they were sampled, and send it: state that the engine keeps for them."""

    class Counting(FedAvg):
        def remember(self, model: Tensor) -> Tensors:
            return {"count": torch.zeros(1, 1)}

        def step(self, w: Any, got: Any, memory: Any, gradient: Any) -> Any:
            w, _ = super().step(w, got, memory, gradient)
            return w, {"count": memory["count"] + 1}

    run = simulation(Counting(step_size=0.1))
    state = played(run, 2)
    # sizes 7, 4, 9, 3, 6 in batches of 4: 2, 1, 3, 1, 2 batches, twice over, in 2 rounds
    assert state.memory["count"].values.flatten().tolist() == [8, 4, 12, 4, 8]
    torch.testing.assert_close(state.model, played(simulation(FedAvg(step_size=0.1)), 2).model)
