"""Runs beside their bounds: the engine and the algorithms as they are, with everything the theorems speak of measured.

A `Problem` is a federation whose constants L, μ, Γ and minimum are known. `follow` runs an algorithm on it and keeps
what the theory bounds; `theorem` and `tightened` are the bounds for that very run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from scipy.linalg import eigvalsh
from scipy.optimize import minimize
from torch import Tensor

from fedkin.algorithms import Algorithm, FedKin, Vector
from fedkin.algorithms.base import Who
from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients, Federation
from fedkin.engine.simulation import Simulation
from fedkin.engine.spaces.plain import stack
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Model, Softmax, residual
from fedkin.paper import theory
from fedkin.types import Floats, Tensors

Told = Callable[[str], None]

STACK_NUMBERS = 1 << 22  # of float64 that one product goes through at most, unless a single client has more


@dataclass(frozen=True, eq=False)
class Problem:
    """A federation whose constants are known; P parameters, C clients.

    optimum   w*, (P,), and minimum F* = F(w*)
    value     w (P,) → F(w) = Σ pᵢ fᵢ(w), with the graph's degrees p
    gradient  w (P,) → ∇F(w), (P,)
    variance  points (n, C, P), E → the largest E‖g − ∇fᵢ‖² there, if the client's samples are dealt at random into E
    """

    federation: Federation
    model: Model
    graph: SimilarityGraph
    l2: float
    L: float
    mu: float
    Gamma: float
    optimum: Floats
    minimum: float
    value: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    variance: Callable[[Tensor, int], float]

    @property
    def p(self) -> Floats:
        """The weights of the clients, (C,)."""
        return self.graph.degrees


# -- following a run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Witness(Algorithm):
    """Another algorithm, whose local models and gradients of the last round are kept as the clients' memory.

    models     (E, C, P): w_1 … w_E
    points     (E, C, P): where the gradient was taken, w̃_0 … w̃_{E−1}
    gradients  (E, C, P)
    """

    inner: Algorithm
    steps: int

    def at(self, round: int) -> Self:
        """The inner algorithm, as it is in the round."""
        return replace(self, inner=self.inner.at(round))

    def start(self, model: Tensor, clients: int) -> Tensors:
        """The inner algorithm's."""
        return self.inner.start(model, clients)

    def send(self, server: Tensors, graph: SimilarityGraph, who: Who) -> Tensors:
        """The inner algorithm's."""
        return self.inner.send(server, graph, who)

    def combine(self, server: Tensors, replies: Tensors, who: Who, p: Tensor) -> Tensors:
        """The inner algorithm's."""
        return self.inner.combine(server, replies, who, p)

    def remember(self, model: Tensor, clients: int) -> Tensors:
        """Room for a round."""
        room = model.new_zeros(self.steps, clients, model.shape[-1])
        return {"models": room, "points": room, "gradients": room}

    def step(
        self, w: Vector, got: dict[str, Vector], memory: Tensors, gradient: Callable[[Vector], Vector]
    ) -> tuple[Vector, Tensors]:
        """The inner algorithm's step, written down: the oldest step falls out, the new one comes last."""
        seen: Tensors = {}

        def noted(v: Tensor) -> Tensor:
            seen["points"], seen["gradients"] = v, gradient(v)
            return seen["gradients"]

        w, _ = self.inner.step(w, got, {}, noted)
        seen["models"] = w
        return w, {name: torch.cat([memory[name][1:], seen[name][None]]) for name in memory}


@dataclass(frozen=True, eq=False)
class Followed:
    """A run, with what the theory bounds; T rounds of E steps.

    gap        F(w̄_t) − F*, (T + 1,)
    distance   ‖w̄_t − w*‖², (T + 1,)
    largest    the largest ‖g‖² of each round, (T,)
    variance   the largest variance of a stochastic gradient at the points of each round, (T,)
    slope      the mean of ‖∇F(w̄_{t,k})‖² over the steps k of each round, (T,); empty unless asked for
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
    def alpha(self) -> float:
        """α."""
        return float(self.algorithm.alpha)

    @property
    def beta(self) -> float:
        """β."""
        return float(self.algorithm.beta)

    @property
    def name(self) -> str:
        """The algorithm with its knob: FedKin, β = 0.5."""
        kind = type(self.algorithm).__name__
        return {"FedProx": f"{kind}, α = {self.alpha:g}", "FedKin": f"{kind}, β = {self.beta:g}"}.get(kind, kind)

    @cached_property
    def constants(self) -> theory.Constants:
        """The constants of the theorems for this run: G² and σ² are the largest seen on its way."""
        return self.constants_with(float(self.largest.max()), float(self.variance.max()))

    def constants_with(self, G2: float, sigma2: float) -> theory.Constants:
        """The same with other G² and σ²."""
        q = self.problem
        Delta = max(float(self.gap[0]), 0.0)
        S = float(q.p @ q.p)
        return theory.Constants(L=q.L, mu=q.mu, sigma2=sigma2, G2=G2, Gamma=q.Gamma, Delta=Delta, S=S)


def follow(
    problem: Problem,
    algorithm: Algorithm,
    E: int,
    rounds: int,
    *,
    whole: bool = False,
    slopes: bool = False,
    seed: int = 0,
    after: Callable[[int], None] = lambda _: None,
) -> Followed:
    """Run an algorithm at its own step size for some rounds of E local steps.

    whole   every step on all of a client's samples, so that σ² = 0, instead of one of E random batches
    slopes  also measure ‖∇F‖² at every mean of local models
    after   told how many rounds are done
    """
    local = Local(epochs=E, batch_size=None) if whole else Local(steps=E, order="shuffled")
    local = replace(local, l2=problem.l2)
    if not whole and (few := np.flatnonzero(problem.federation.train.sizes < E)).size:
        raise BadInput(
            f"training client {few[0]} holds {problem.federation.train.sizes[few[0]]} samples, too few for E = {E} "
            "local steps: use fewer steps, fewer clients or less size imbalance"
        )
    simulation = Simulation(
        problem.federation, problem.model, Witness(inner=algorithm, steps=E), problem.graph, problem.p, local, seed=seed
    )
    p = torch.as_tensor(problem.p)
    state = simulation.start()
    models = [state.model.double()]
    largest, variance, slope = [], [], []
    lemmas: dict[str, list[float]] = {}
    for t in range(rounds):
        state = simulation.advance(state)
        seen = {name: value.double() for name, value in state.memory.items()}
        for name, value in _deviations(models[-1], seen, p, float(algorithm.beta)).items():
            lemmas.setdefault(name, []).append(value)
        largest.append(_squared(seen["gradients"]))
        variance.append(0.0 if whole else problem.variance(seen["points"], E))
        if slopes:
            means = [models[-1], *torch.einsum("c,kcp->kp", p, seen["models"][:-1])]
            slope.append(float(np.mean([np.sum(problem.gradient(m.numpy()) ** 2) for m in means])))
        models.append(state.model.double())
        after(t + 1)
    path = torch.stack(models).numpy()
    return Followed(
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


def _squared(vectors: Tensor) -> float:
    """The largest squared norm."""
    return float((vectors**2).sum(dim=-1).max())


def _deviations(start: Tensor, seen: Tensors, p: Tensor, beta: float) -> dict[str, float]:
    """What the lemmas bound, in a round that started in w̄_0."""
    models, points = seen["models"], seen["points"]
    local = torch.cat([start.expand_as(models[:1]), models])  # w_0 … w_E
    mean = torch.einsum("c,kcp->kp", p, local)
    middle = torch.einsum("c,kcp->kp", p, points)
    found = {
        "average": _squared(middle - theory.average_perturbed(beta, mean[:-1], start)),
        "deviation": _squared(local - start),
        "divergence": _squared(local - mean[:, None]),
        "perturbed": _squared(points - mean[:-1, None]),
    }
    if beta < 1:
        anchors = (points[0] - beta * start) / (1 - beta)
        found["anchors"] = float(torch.cdist(anchors, anchors).max() ** 2)
    return found


# -- bounds of a run ---------------------------------------------------------------------------------------------------


def theorem(run: Followed) -> Floats:
    """The strongly convex theorem's bound on F(w̄_t) − F*, for t = 0 … T."""
    c, t = run.constants, np.arange(len(run.gap))
    if isinstance(run.algorithm, FedKin):
        return np.asarray(theory.fedkin_convex(c, run.steps, t, run.beta))
    return np.asarray(theory.fedprox_convex(c, run.steps, t, run.alpha))


def floor(run: Followed, A: float | None = None) -> float:
    """What the theorem's bound does not fall below."""
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_floor(run.constants, run.steps, run.beta, A)
    return theory.fedprox_floor(run.constants, run.steps, run.alpha)


def kappa(run: Followed) -> float:
    """κ of the round lemma, at the run's step size."""
    gamma, mu = run.algorithm.step_size, run.problem.mu
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_kappa(gamma, run.steps, mu, run.beta)
    return theory.fedprox_kappa(gamma, run.steps, mu, run.alpha)


def progress(run: Followed, A: float | None = None) -> Floats:
    """The round lemma's additive term in each round, (T,), with the G² and σ² of that round and the one before.

    The lemma's proof uses no gradient of any other round.
    """
    gamma, E = run.algorithm.step_size, run.steps
    terms = []
    for t in range(len(run.largest)):
        now = slice(max(t - 1, 0), t + 1)
        c = run.constants_with(float(run.largest[now].max()), float(run.variance[t]))
        if isinstance(run.algorithm, FedKin):
            terms.append(theory.fedkin_progress(c, gamma, E, run.beta, A))
        else:
            terms.append(theory.fedprox_progress(c, gamma, E))
    return np.array(terms)


def tightened(run: Followed) -> Floats:
    """The same proof with nothing given away: (L/2)·Dₜ with D₀ measured and Dₜ₊₁ = κDₜ + Aₜ, for t = 0 … T.

    κ is not rounded, Aₜ takes the gradients of its own round, and FedKin's has the sharper factor (3−β)²/4.
    """
    D, k = [float(run.distance[0])], kappa(run)
    for A in progress(run, theory.sharper_perturbation(run.beta)):
        D.append(k * D[-1] + A)
    return run.problem.L / 2 * np.array(D)


def nonconvex_theorem(run: Followed, A: float | None = None) -> float:
    """The nonconvex theorem's bound on the mean of ‖∇F‖² over all T·E means of local models."""
    T = len(run.largest)
    if isinstance(run.algorithm, FedKin):
        return float(theory.fedkin_nonconvex(run.constants, run.steps, T, run.beta, A))
    return float(theory.fedprox_nonconvex(run.constants, run.steps, T, run.alpha))


def at_convex_step(problem: Problem, algorithm: Algorithm, E: int) -> Algorithm:
    """The algorithm with the step size of the strongly convex theorems."""
    return replace(algorithm, step_size=theory.convex_step_size(problem.L, E, float(algorithm.alpha)))


def at_nonconvex_step(problem: Problem, algorithm: Algorithm, E: int, T: int) -> Algorithm:
    """The algorithm with the step size of the nonconvex theorems."""
    return replace(algorithm, step_size=theory.nonconvex_step_size(problem.L, E, T, float(algorithm.alpha)))


# -- softmax regression ------------------------------------------------------------------------------------------------


def softmax_problem(federation: Federation, graph: SimilarityGraph, l2: float, tell: Told = lambda _: None) -> Problem:
    """The constants of softmax regression on a federation, with minima found by L-BFGS in float64.

    L   the largest λ_max(x̃ᵀx̃)/(2nᵢ) + λ over the clients, x̃ = (x, 1): the Hessian of the cross-entropy in the scores
        has no eigenvalue above 1/2
    μ   λ, the penalty alone: the loss itself is flat along adding a constant to all scores
    """
    if not l2 > 0:
        raise BadInput("softmax regression is strongly convex only with a penalty: set local.l2 above 0 (0.01, say)")
    clients, p = federation.train, graph.degrees
    model = Softmax(federation.features, federation.classes)
    losses = SoftmaxLosses(model, clients, p, l2)
    count = len(clients)
    L = 0.0
    for i in range(count):
        tell(f"bounding the curvature of client {i + 1} of {count}")
        L = max(L, losses.smoothness(i))
    optimum, minimum = _least(losses.whole, np.zeros(model.size), l2, tell, "finding the global minimum")
    own = 0.0
    for i in range(count):
        words = f"finding the minimum of client {i + 1} of {count}"
        own += p[i] * _least(losses.own(i), optimum, l2, tell, words)[1]
    return Problem(
        federation,
        model,
        graph,
        l2,
        L,
        l2,
        max(minimum - own, 0.0),
        optimum,
        minimum,
        lambda w: losses.whole(w)[0],
        lambda w: losses.whole(w)[1],
        losses.variance,
    )


class SoftmaxLosses:
    """fᵢ and F = Σ pᵢ fᵢ of softmax regression in float64, with the penalty λ/2 ‖w‖².

    Clients are stacked while their samples together stay small: twenty tiny products cost far more than one.
    """

    def __init__(self, model: Softmax, clients: Clients, p: Floats, l2: float) -> None:
        self.model, self.clients, self.l2 = model, clients, l2
        order = np.argsort(-clients.sizes, kind="stable")
        room = max(1, STACK_NUMBERS // int(clients.sizes.max() * clients.x.shape[1]))
        self.cohorts = [order[first : first + room] for first in range(0, len(order), room)]
        everything = [np.arange(n) for n in clients.sizes]
        stacked = (stack(clients, cohort, [everything[i] for i in cohort]) for cohort in self.cohorts)
        self.batches = [replace(b, x=b.x.double(), weight=b.weight.double()) for b in stacked]
        self.p = [torch.as_tensor(p[cohort]) for cohort in self.cohorts]

    def own(self, i: int) -> Callable[[Floats], tuple[float, Floats]]:
        """The function w → fᵢ(w) and ∇fᵢ(w)."""
        rows = self.clients.rows(i)
        x, y = self.clients.x[rows].double(), self.clients.y[rows]
        weight = x.new_full((len(y),), 1 / len(y))
        return lambda w: self._weighted(w, [(x, y, weight)])

    def whole(self, w: Floats) -> tuple[float, Floats]:
        """F(w) and ∇F(w)."""
        stacks = zip(self.batches, self.p, strict=True)
        return self._weighted(
            w, ((b.x.flatten(0, 1), b.y.flatten(), (b.weight * p[:, None]).flatten()) for b, p in stacks)
        )

    def _weighted(self, w: Floats, parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, Floats]:
        v = torch.from_numpy(w)
        value, gradient = self.l2 / 2 * (v @ v), self.l2 * v
        for x, y, weight in parts:
            z, g = self.model.scores(v, x), torch.empty_like(v)
            value = value + weight @ torch.nn.functional.cross_entropy(z.mT, y, reduction="none")
            self.model.first.backward(x, residual(z, y, weight), into=g)
            gradient += g
        return float(value), gradient.numpy()

    def smoothness(self, i: int) -> float:
        """λ_max(x̃ᵀx̃)/(2n) + λ."""
        x = self.clients.x[self.clients.rows(i)].double().numpy()
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
        top = eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0]
        return float(top) / (2 * len(x)) + self.l2

    def variance(self, points: Tensor, E: int) -> float:
        """The largest E‖g − ∇fᵢ‖² over points (n, C, P), for a batch of B = ⌊n/E⌋ samples drawn without replacement.

        (n − B)/(B(n − 1)) times the variance over single samples, whose gradients r x̃ᵀ have ‖r x̃ᵀ‖ = ‖r‖·‖x̃‖.
        """
        worst = 0.0
        for cohort, batch in zip(self.cohorts, self.batches, strict=True):
            x, weight, w = batch.x, batch.weight, points[:, cohort]
            y = batch.y.expand(len(w), *batch.y.shape)
            r = residual(self.model.scores(w, x), y, torch.ones_like(weight))  # (points, clients, K, samples)
            squares = ((r**2).sum(dim=-2) * ((x**2).sum(dim=-1) + 1) * weight).sum(dim=-1)
            r *= weight.unsqueeze(-2)
            mean = ((r @ x) ** 2).sum(dim=(-2, -1)) + (r.sum(dim=-1) ** 2).sum(dim=-1)
            n = self.clients.sizes[cohort]
            B = np.maximum(n // E, 1)
            shrinking = torch.as_tensor((n - B) / (B * np.maximum(n - 1, 1)))
            worst = max(worst, float(((squares - mean) * shrinking).max()))
        return worst


def _least(
    function: Callable[[Floats], tuple[float, Floats]], begin: Floats, mu: float, tell: Told, words: str
) -> tuple[Floats, float]:
    """Minimise a μ-strongly convex function until F(w) − F* ≤ ‖∇F(w)‖²/(2μ) is far below any gap."""
    seen = 0

    def told(_: Any) -> None:
        nonlocal seen
        seen += 1
        tell(f"{words}, iteration {seen}")

    tell(words)
    options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-7}
    solve: Any = minimize  # its stubs do not know a function of value and gradient by this type
    found = solve(function, begin, jac=True, method="L-BFGS-B", callback=told, options=options)
    w = np.asarray(found.x, dtype=np.float64)
    value, gradient = function(w)
    excess = float(gradient @ gradient) / (2 * mu)
    if excess > 1e-6 * max(abs(value), 1e-12):
        raise BadInput(
            f"{words} was only possible to within {excess:.1e} of {value:.3g}, too coarse to measure a gap: "
            "use a larger penalty local.l2"
        )
    return w, value
