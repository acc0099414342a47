"""Softmax regression as a problem with known constants: estimated once, in float64."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigvalsh
from scipy.optimize import minimize
from torch import Tensor

from fedkin.data.federation import Clients, Federation
from fedkin.engine.spaces.plain import stack
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import CROSS_ENTROPY, Softmax
from fedkin.paper.problem import Notify, Problem
from fedkin.types import Floats

STACK_NUMBERS = 1 << 22  # the most float64 numbers in one product, unless a single client has more


def softmax_problem(
    federation: Federation, graph: SimilarityGraph, l2: float, notify: Notify = lambda _: None
) -> Problem:
    """The constants of softmax regression on a federation, with minima found by L-BFGS in float64.

    L   the largest λ_max(x̃ᵀx̃)/(2nᵢ) + λ over the clients, x̃ = (x, 1): the Hessian of the cross-entropy in the scores
        has no eigenvalue above 1/2
    μ   λ, the penalty alone: adding a constant to all scores does not change the cross-entropy
    """
    if not l2 > 0:
        raise BadInput("softmax regression is strongly convex only with a penalty: set local.l2 above 0, such as 0.01")
    clients, p = federation.train, graph.degrees
    model = Softmax(federation.features, federation.classes)
    losses = SoftmaxLosses(model, clients, p, l2)
    count = len(clients)
    L = 0.0
    for i in range(count):
        notify(f"bounding the curvature of client {i + 1} of {count}")
        L = max(L, losses.smoothness(i))
    optimum, minimum = _minimum(losses.whole, np.zeros(model.size), l2, notify, "finding the global minimum")
    own = 0.0
    for i in range(count):
        words = f"finding the minimum of client {i + 1} of {count}"
        own += p[i] * _minimum(losses.own(i), optimum, l2, notify, words)[1]
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

    Small clients are stacked: twenty small products take much longer than one.
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
            value = value + weight @ CROSS_ENTROPY.each(z, y)
            self.model.first.backward(x, CROSS_ENTROPY.residual(z, y, weight), into=g)
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
            r = CROSS_ENTROPY.residual(
                self.model.scores(w, x), y, torch.ones_like(weight)
            )  # (points, clients, K, samples)
            squares = ((r**2).sum(dim=-2) * ((x**2).sum(dim=-1) + 1) * weight).sum(dim=-1)
            r *= weight.unsqueeze(-2)
            mean = ((r @ x) ** 2).sum(dim=(-2, -1)) + (r.sum(dim=-1) ** 2).sum(dim=-1)
            n = self.clients.sizes[cohort]
            B = np.maximum(n // E, 1)
            shrinking = torch.as_tensor((n - B) / (B * np.maximum(n - 1, 1)))
            worst = max(worst, float(((squares - mean) * shrinking).max()))
        return worst


def _minimum(
    function: Callable[[Floats], tuple[float, Floats]], begin: Floats, mu: float, notify: Notify, words: str
) -> tuple[Floats, float]:
    """Minimise a μ-strongly convex function until F(w) − F* ≤ ‖∇F(w)‖²/(2μ) is negligible: w and F(w)."""
    iterations = 0

    def callback(_: Any) -> None:
        nonlocal iterations
        iterations += 1
        notify(f"{words}, iteration {iterations}")

    notify(words)
    options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-7}
    solve: Any = minimize  # its stubs do not know a function of value and gradient by this type
    found = solve(function, begin, jac=True, method="L-BFGS-B", callback=callback, options=options)
    w = np.asarray(found.x, dtype=np.float64)
    value, gradient = function(w)
    excess = float(gradient @ gradient) / (2 * mu)
    if excess > 1e-6 * max(abs(value), 1e-12):
        raise BadInput(
            f"{words} was only possible to within {excess:.1e} of {value:.3g}, too coarse to measure a gap: "
            "use a larger penalty local.l2"
        )
    return w, value
