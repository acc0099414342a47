"""Runs with everything measured that the theorems bound.

`trajectory_of` runs an algorithm through the engine, wrapped in a `Recorder` that keeps each local model and gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, FedKin, Gradient, Local, Round, ServerState, Vector, Vectors
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.paper import theory
from fedkin.paper.problem import Problem
from fedkin.types import Floats, Tensors


@dataclass(frozen=True, kw_only=True)
class Recorder(Algorithm):
    """Another algorithm whose local models and gradients of the last round are recorded in the clients' memory.

    Each of the three is (C, E·P), one block of P columns per step:

    models     w_1 … w_E
    points     w̃_0 … w̃_{E−1}, where the gradients were evaluated
    gradients  of each step
    """

    inner: Algorithm
    steps: int

    def at(self, round: int) -> Self:
        now = self.inner.at(round)
        return self if now is self.inner else replace(self, inner=now)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return self.inner.start(model, round)

    def send(self, server: ServerState, round: Round) -> Tensors:
        return self.inner.send(server, round)

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        return self.inner.combine(server, replies, round)

    def remember(self, model: Tensor) -> Tensors:
        empty = model.new_zeros(*model.shape[:-1], self.steps * model.shape[-1])
        return {"models": empty, "points": empty, "gradients": empty}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        seen: dict[str, Any] = {}

        def recorded(v: Vector) -> Any:
            g = gradient(v)
            seen["points"], seen["gradients"] = v, g
            return g

        w, _ = self.inner.step(w, got, {}, recorded)
        seen["models"] = w
        # The oldest block is dropped and the new one appended, so that after E steps a round is complete.
        # Concatenation is no linear combination, so the engine takes these steps in plain parameter space.
        return w, {name: _appended(memory[name], value) for name, value in seen.items()}


def _appended(blocks: Any, new: Any) -> Any:
    return torch.cat([blocks[..., new.shape[-1] :], new], dim=-1)


def fixed_value(algorithm: Algorithm, name: str) -> float:
    """A hyper-parameter of FedAvg, FedProx or FedKin, which the theorems assume to be constant."""
    general, kind = algorithm.general(), type(algorithm).__name__
    if not isinstance(general, FedKin):
        raise BadInput(f"the theorems do not cover {kind}: choose FedAvg, FedProx or FedKin")
    value = getattr(general, name)
    if not isinstance(value, int | float):
        raise BadInput(f"the theorems assume a constant {name}: give {kind} a number")
    return float(value)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run with the quantities that the theory bounds; T rounds of E steps.

    gap        F(w̄_t) − F*, (T + 1,)
    distance   ‖w̄_t − w*‖², (T + 1,)
    largest    the largest ‖g‖² of each round, (T,)
    variance   the largest variance of a stochastic gradient at the points of each round, (T,)
    slope      the mean of ‖∇F(w̄_{t,k})‖² over the steps k of each round, (T,); empty unless requested
    lemmas     per round, (T,): `average` ‖Σ pᵢ w̃ᵢ − β w̄_k − (1−β) w̄_0‖², `deviation` ‖wᵢ − w̄_0‖²,
               `divergence` ‖w̄_k − wᵢ‖², `perturbed` ‖w̄_k − w̃ᵢ‖², `anchors` ‖uᵢ − uⱼ‖², the largest of each
    """

    problem: Problem
    algorithm: Algorithm
    steps: int
    models: Floats
    gap: Floats
    distance: Floats
    largest: Floats
    variance: Floats
    slope: Floats
    lemmas: dict[str, Floats]

    @property
    def gamma(self) -> float:
        """γ, the step size."""
        return fixed_value(self.algorithm, "step_size")

    @property
    def alpha(self) -> float:
        """α, 0 unless the algorithm is FedProx."""
        return fixed_value(self.algorithm, "alpha")

    @property
    def beta(self) -> float:
        """β, 1 unless the algorithm is FedKin."""
        return fixed_value(self.algorithm, "beta")

    @property
    def name(self) -> str:
        """The algorithm with its main hyper-parameter: FedKin, β = 0.5."""
        kind = type(self.algorithm).__name__
        return {"FedProx": f"{kind}, α = {self.alpha:g}", "FedKin": f"{kind}, β = {self.beta:g}"}.get(kind, kind)

    @cached_property
    def constants(self) -> theory.Constants:
        """The constants of the theorems for this run: G² and σ² are the largest measured in it."""
        return self.constants_with(float(self.largest.max()), float(self.variance.max()))

    def constants_with(self, G2: float, sigma2: float) -> theory.Constants:
        """The same with other G² and σ²."""
        q = self.problem
        Delta = max(float(self.gap[0]), 0.0)
        S = float(q.p @ q.p)
        return theory.Constants(L=q.L, mu=q.mu, sigma2=sigma2, G2=G2, Gamma=q.Gamma, Delta=Delta, S=S)

    def contraction(self, first: int = 15, last: int = 25) -> float:
        """The factor by which the distance to the run's limit shrinks per round, from ‖w̄_{t+1} − w̄_t‖.

        Early rounds still contain faster components of the error; in late ones the moves are near float32 rounding.
        """
        moves = np.linalg.norm(np.diff(self.models, axis=0), axis=1)
        return float((moves[last] / moves[first]) ** (1 / (last - first)))


def trajectory_of(
    problem: Problem,
    algorithm: Algorithm,
    E: int,
    rounds: int,
    *,
    whole: bool = False,
    slopes: bool = False,
    seed: int = 0,
    after: Callable[[int], None] = lambda _: None,
) -> Trajectory:
    """Run an algorithm at its own step size for some rounds of E local steps.

    whole   every step on all of a client's samples, so that σ² = 0, instead of one of E random batches
    slopes  also measure ‖∇F‖² at every mean of local models
    after   called with the number of rounds done
    """
    local = Local(epochs=E, batch_size=None) if whole else Local(steps=E, order="shuffled")
    local = replace(local, l2=problem.l2)
    if not whole and (few := np.flatnonzero(problem.federation.train.sizes < E)).size:
        raise BadInput(
            f"training client {few[0]} holds {problem.federation.train.sizes[few[0]]} samples, too few for E = {E} "
            "local steps: use fewer steps, fewer clients or less size imbalance"
        )
    recorder = Recorder(inner=algorithm, steps=E)
    simulation = Simulation(problem.federation, problem.model, recorder, problem.graph, problem.p, local, seed=seed)
    clients, p, beta = np.arange(len(problem.p)), torch.as_tensor(problem.p), fixed_value(algorithm, "beta")
    state = simulation.start()
    models = [state.model.double()]
    largest, variance, slope = [], [], []
    lemmas: dict[str, list[float]] = {}
    for t in range(rounds):
        state = simulation.advance(state)
        seen = {name: _by_step(rows.at(clients), E) for name, rows in state.memory.items()}
        for name, value in _deviations(models[-1], seen, p, beta).items():
            lemmas.setdefault(name, []).append(value)
        largest.append(_largest_squared_norm(seen["gradients"]))
        variance.append(0.0 if whole else problem.variance(seen["points"], E))
        if slopes:
            means = [models[-1], *torch.einsum("c,kcp->kp", p, seen["models"][:-1])]
            slope.append(float(np.mean([np.sum(problem.gradient(m.numpy()) ** 2) for m in means])))
        models.append(state.model.double())
        after(t + 1)
    path = torch.stack(models).numpy()
    return Trajectory(
        problem,
        algorithm,
        E,
        path,
        np.array([problem.value(w) for w in path]) - problem.minimum,
        ((path - problem.optimum) ** 2).sum(axis=1),
        np.array(largest),
        np.array(variance),
        np.array(slope),
        {name: np.array(values) for name, values in lemmas.items()},
    )


def _by_step(rows: Tensor, E: int) -> Tensor:
    """Recorded blocks (C, E·P) as (E, C, P), in float64."""
    return rows.view(len(rows), E, -1).transpose(0, 1).double()


def _largest_squared_norm(vectors: Tensor) -> float:
    return float((vectors**2).sum(dim=-1).max())


def _deviations(start: Tensor, seen: Tensors, p: Tensor, beta: float) -> dict[str, float]:
    """The quantities that the lemmas bound, in a round that started in w̄_0."""
    models, points = seen["models"], seen["points"]
    local = torch.cat([start.expand_as(models[:1]), models])  # w_0 … w_E
    mean = torch.einsum("c,kcp->kp", p, local)
    middle = torch.einsum("c,kcp->kp", p, points)
    found = {
        "average": _largest_squared_norm(middle - theory.average_perturbed(beta, mean[:-1], start)),
        "deviation": _largest_squared_norm(local - start),
        "divergence": _largest_squared_norm(local - mean[:, None]),
        "perturbed": _largest_squared_norm(points - mean[:-1, None]),
    }
    if beta < 1:
        anchors = (points[0] - beta * start) / (1 - beta)
        found["anchors"] = float(torch.cdist(anchors, anchors).max() ** 2)
    return found
