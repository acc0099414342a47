"""The related systems as explicit loops in float64, one client after another: references for their classes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from fedkin.algorithms.rounds import random_numbers
from fedkin.engine.simulation import Simulation
from fedkin.types import Floats
from loops import CLIENTS, Loop


class System(Loop, ABC):
    """One round after the other: `round` changes `w` and what `names` are, `uses` are the models of the clients."""

    names: tuple[str, ...] = ("w",)

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.g, self.x0 = self.algorithm.step_size, self.w
        self.zero, self.zeros = np.zeros_like(self.w), np.zeros((CLIENTS, len(self.w)))
        self.copies = np.tile(self.w, (CLIENTS, 1))
        self.share = self.p / self.p.sum()
        self.begin()

    def begin(self) -> None: ...

    @abstractmethod
    def round(self, t: int, who: list[int], p: Floats) -> None: ...

    def uses(self) -> Floats | None:
        return None

    def sgd(self, i: int, w: Floats, pull: Callable[[Floats], Any] = lambda w: 0, g: float | None = None) -> Floats:
        for rows in self.batches(i):
            w = w - (self.g if g is None else g) * (self.gradient(w, i, rows) + pull(w))
        return w

    def rounds(self, count: int) -> dict[str, Floats]:
        for t in range(count):
            self.round(t, *self.clients(t))
        return {
            {"w": "model"}.get(name, name.replace("memory_", "memory ")): getattr(self, name) for name in self.names
        }


# -- one global model --------------------------------------------------------------------------------------------------


class FedAvgMLoop(System):
    names = ("w", "velocity")

    def begin(self) -> None:
        self.velocity = self.zero

    def round(self, t: int, who: list[int], p: Floats) -> None:
        update = sum(q * (self.sgd(i, self.w) - self.w) for i, q in zip(who, p, strict=True))
        self.velocity = self.algorithm.server_momentum * self.velocity + update
        self.w = self.w + self.algorithm.server_step * self.velocity


class AdaptiveLoop(System):
    names: tuple[str, ...] = ("w", "square")
    kind = ""

    def begin(self) -> None:
        self.mean, self.square = self.zero, self.zero + self.algorithm.tau**2

    def round(self, t: int, who: list[int], p: Floats) -> None:
        a = self.algorithm
        d = sum((q * (self.sgd(i, self.w) - self.w) for i, q in zip(who, p, strict=True)), start=self.zero)
        b1, b2 = getattr(a, "beta1", 0.0), getattr(a, "beta2", 0.0)
        self.mean = b1 * self.mean + (1 - b1) * d
        self.square = {
            "adagrad": self.square + d**2,
            "adam": b2 * self.square + (1 - b2) * d**2,
            "yogi": self.square - (1 - b2) * d**2 * np.sign(self.square - d**2),
        }[self.kind]
        self.w = self.w + a.server_step * self.mean / (np.sqrt(self.square) + a.tau)


class AdagradLoop(AdaptiveLoop):
    kind = "adagrad"


class AdamLoop(AdaptiveLoop):
    kind, names = "adam", ("w", "square", "mean")


class YogiLoop(AdaptiveLoop):
    kind, names = "yogi", ("w", "square", "mean")


class FedNovaLoop(System):
    def round(self, t: int, who: list[int], p: Floats) -> None:
        steps = np.array([len(self.batches(i)) for i in who])
        per_step = sum(q * (self.sgd(i, self.w) - self.w) / k for i, q, k in zip(who, p, steps, strict=True))
        self.w = self.w + (p @ steps) * per_step


class FedDynLoop(System):
    names = ("w", "memory_gradient")

    def begin(self) -> None:
        self.h, self.memory_gradient = self.zero, self.zeros

    def round(self, t: int, who: list[int], p: Floats) -> None:
        a, ends = self.algorithm.alpha, []
        for i in who:
            own, x = self.memory_gradient[i].copy(), self.w
            y = self.sgd(i, x, lambda w, own=own, x=x: -own + a * (w - x))  # type: ignore[misc]
            self.memory_gradient[i] -= a * (y - x)
            ends.append(y)
        self.h = self.h - a / CLIENTS * sum(y - self.w for y in ends)
        self.w = np.mean(ends, axis=0) - self.h / a

    def rounds(self, count: int) -> dict[str, Floats]:
        return {**super().rounds(count), "gradient": self.h}


class PowerLoop(System):
    def begin(self) -> None:
        self.losses = np.full(CLIENTS, np.inf)

    def clients(self, t: int) -> tuple[Any, Floats]:
        rng = random_numbers(self.run.seed, "candidates", t)
        drawn = sorted(rng.choice(CLIENTS, self.algorithm.candidates, replace=False, p=self.share).tolist())
        exact = self.algorithm.losses == "exact"
        known = {i: self.loss(self.w, i) if exact else self.losses[i] for i in drawn}
        who = sorted(sorted(drawn, key=lambda i: -known[i])[: self.run.take_part])
        return who, self.p[who] / self.p[who].sum()

    def round(self, t: int, who: list[int], p: Floats) -> None:
        for i in who:
            self.losses[i] = self.loss(self.w, i)
        self.w = p @ np.array([self.sgd(i, self.w) for i in who])


# -- a model for every client ------------------------------------------------------------------------------------------


class APFLLoop(System):
    names = ("w", "memory_own")

    def begin(self) -> None:
        self.memory_own, self.a = self.copies, np.full(CLIENTS, float(self.algorithm.share))

    def round(self, t: int, who: list[int], p: Floats) -> None:
        ends = []
        for i in who:
            w, v, a = self.w, self.memory_own[i], self.a[i]
            for rows in self.batches(i):
                g = self.gradient(a * v + (1 - a) * w, i, rows)
                slope = (v - w) @ g if self.algorithm.adaptive else 0.0
                w, v, a = w - self.g * self.gradient(w, i, rows), v - self.g * a * g, np.clip(a - self.g * slope, 0, 1)
            self.memory_own[i], self.a[i] = v, a
            ends.append(w)
        self.w = p @ np.array(ends)

    def uses(self) -> Floats:
        return np.asarray(self.a[:, None] * self.memory_own + (1 - self.a[:, None]) * self.w)


class PFedMeLoop(System):
    names = ("w", "memory_own")

    def begin(self) -> None:
        self.memory_own = self.copies

    def round(self, t: int, who: list[int], p: Floats) -> None:
        a, ends = self.algorithm, []
        for i in who:
            y = theta = self.w
            for rows in self.batches(i):
                for _ in range(a.inner_steps):
                    theta = theta - a.inner_step * (self.gradient(theta, i, rows) + a.pull * (theta - y))
                y = y - self.g * a.pull * (y - theta)
            self.memory_own[i] = y if a.uses == "y" else theta
            ends.append(y)
        if a.aggregated:
            rng = random_numbers(self.run.seed, "aggregated", t)
            counted = np.zeros(len(who))
            counted[rng.choice(len(who), a.aggregated, replace=False)] = 1
            p = p * counted / (p @ counted)
        self.w = (1 - a.server_step) * self.w + a.server_step * (p @ np.array(ends))

    def uses(self) -> Floats:
        return self.memory_own


class PerFedAvgLoop(System):
    def round(self, t: int, who: list[int], p: Floats) -> None:
        a, ends = self.algorithm, []
        for i in who:
            w, every = self.w, self.batches(i)
            for k in range(len(every)):
                first, second, third = (every[(k + s * a.separate) % len(every)] for s in range(3))
                g = self.gradient(w - a.inner_step * self.gradient(w, i, first), i, second)
                ahead, behind = (self.gradient(w + s * a.delta * g, i, third) for s in (1, -1))
                hessian = (ahead - behind) / (2 * a.delta) if a.variant == "hf" else 0.0
                w = w - self.g * (g - a.inner_step * hessian)
            ends.append(w)
        self.w = p @ np.array(ends)

    def uses(self) -> Floats:
        every = range(CLIENTS)
        return np.array([self.w - self.algorithm.inner_step * self.gradient(self.w, i, slice(None)) for i in every])


class MRMTLLoop(System):
    names = ("w", "memory_own")

    def begin(self) -> None:
        self.memory_own = self.copies

    def round(self, t: int, who: list[int], p: Floats) -> None:
        for i in who:
            self.memory_own[i] = self.sgd(i, self.memory_own[i], lambda v: self.algorithm.pull * (v - self.w))
        self.w = self.share @ self.memory_own

    def uses(self) -> Floats:
        return self.memory_own


class L2GDLoop(MRMTLLoop):
    def round(self, t: int, who: list[int], p: Floats) -> None:
        a, q = self.algorithm, 1 / self.algorithm.every
        for i in who:
            v = self.memory_own[i]
            if random_numbers(self.run.seed, "coin", t).random() < q:
                self.memory_own[i] = v - self.g * a.pull / q * (v - self.w)
            else:
                self.memory_own[i] = self.sgd(i, v, g=self.g / (1 - q))
        self.w = self.share @ self.memory_own


class FedULoop(System):
    names = ("w", "models")

    def begin(self) -> None:
        self.models, self.known = self.copies, np.zeros(CLIENTS, dtype=bool)

    def coupling(self, i: int) -> Floats:
        others = [n for n in range(CLIENTS) if self.known[n] and n != i]
        edges = self.run.graph.adjacency[i]
        return sum((edges[n] / edges.sum() * (self.models[i] - self.models[n]) for n in others), start=self.zero)

    def round(self, t: int, who: list[int], p: Floats) -> None:
        for i in who:
            self.models[i], self.known[i] = self.sgd(i, self.models[i]), True
        pulls = [self.algorithm.pull * self.g * len(self.batches(i)) * self.coupling(i) for i in who]
        for i, pull in zip(who, pulls, strict=True):
            self.models[i] = self.models[i] - pull
        self.w = p @ self.models[who]

    def uses(self) -> Floats:
        return self.models


class MOCHALoop(FedULoop):
    """The matrix root from the singular values of W, whose columns are the models."""

    def coupling(self, i: int) -> Floats:
        columns = self.models[self.known].T
        _, singular, right = np.linalg.svd(columns, full_matrices=False)
        root = right.T @ np.diag(singular) @ right
        omega = root / np.trace(root) + self.algorithm.ridge * np.eye(len(root))
        place = int(np.count_nonzero(self.known[:i]))
        return np.asarray(columns @ np.linalg.inv(omega)[:, place])


class FedAMPLoop(System):
    names = ("w", "models", "memory_own")

    def begin(self) -> None:
        self.models, self.known = self.copies, np.zeros(CLIENTS, dtype=bool)

    @property
    def memory_own(self) -> Floats:
        return self.models

    def mixed(self, i: int) -> Floats:
        mine, u = self.models[i], self.models[i]
        others = [n for n in range(CLIENTS) if self.known[n] and n != i]
        for n in others:
            weight = np.exp(-np.sum((mine - self.models[n]) ** 2) / self.algorithm.sigma) / len(others)
            u = u + self.algorithm.share * weight * (self.models[n] - mine)
        return np.asarray(u)

    def round(self, t: int, who: list[int], p: Floats) -> None:
        starts = [self.mixed(i) for i in who]
        for i, u in zip(who, starts, strict=True):
            self.models[i] = self.sgd(i, u, lambda w, u=u: self.algorithm.pull * (w - u))  # type: ignore[misc]
            self.known[i] = True
        self.w = p @ self.models[who]

    def uses(self) -> Floats:
        return self.models


class FedEMLoop(System):
    names = ("w", "components", "memory_shares")

    def begin(self) -> None:
        self.components = self.run.start().server["components"].double().numpy()
        self.memory_shares = np.full((CLIENTS, len(self.components)), 1 / len(self.components))

    def posterior(self, i: int) -> Floats:
        """The probabilities with which each sample of a client comes from each component, (M, n)."""
        likely = self.memory_shares[i][:, None] * [np.exp(-self.sample_losses(w, i)) for w in self.components]
        return np.asarray(likely / likely.sum(0))

    def round(self, t: int, who: list[int], p: Floats) -> None:
        new = np.zeros_like(self.components)
        for i, share in zip(who, p, strict=True):
            q = self.posterior(i)
            self.memory_shares[i] = q.mean(1)
            for m, w in enumerate(self.components):
                for rows in self.batches(i):
                    w = w - self.g * self.gradient(w, i, rows, q[m][rows])
                new[m] += share * w
        self.components = new
        self.w = new.mean(0)

    def uses(self) -> Floats:
        return np.array([[*self.components.ravel(), *shares] for shares in self.memory_shares])


class CFLLoop(System):
    def begin(self) -> None:
        self.centers, self.label = [self.w], [0] * CLIENTS
        self.updates: dict[int, Floats] = {}

    def round(self, t: int, who: list[int], p: Floats) -> None:
        ends = {i: self.sgd(i, self.centers[self.label[i]]) for i in who}
        self.updates |= {i: ends[i] - self.centers[self.label[i]] for i in who}
        self.w = p @ np.array([ends[i] for i in who])
        stalled = []
        for group in range(len(self.centers)):
            mine = [k for k, i in enumerate(who) if self.label[i] == group]
            if mine:
                mean = sum(p[k] * self.updates[who[k]] for k in mine) / p[mine].sum()
                self.centers[group] = self.centers[group] + mean
                longest = max(np.linalg.norm(self.updates[who[k]]) for k in mine)
                if np.linalg.norm(mean) < self.algorithm.eps1 and longest > self.algorithm.eps2:
                    stalled.append(group)
        for group in stalled:
            members = [i for i in sorted(self.updates) if self.label[i] == group]
            if len(members) > 1 and len(self.centers) < self.algorithm.groups:
                for i in self.apart(members):
                    self.label[i] = len(self.centers)
                self.centers.append(self.centers[group])

    def apart(self, members: list[int]) -> list[int]:
        """Join the two clients with the largest cosine until two parts are left; that without the first client."""
        unit = {i: self.updates[i] / np.linalg.norm(self.updates[i]) for i in members}
        parts = [{i} for i in members]
        pairs = sorted(((unit[i] @ unit[n], i, n) for i in members for n in members if i < n), reverse=True)
        for _, i, n in pairs:
            one, other = (next(part for part in parts if k in part) for k in (i, n))
            if one is not other and len(parts) > 2:
                parts.remove(other)
                one |= other
        return sorted(next(part for part in parts if members[0] not in part))

    def uses(self) -> Floats:
        return np.array([self.centers[group] for group in self.label])
