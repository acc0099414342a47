"""SCAFFOLD, Ditto and IFCA as explicit loops in float64, one client after another: references for the hooks."""

from dataclasses import replace
from typing import Any

import numpy as np

from conftest import small_federation
from fedkin.algorithms import IFCA, Algorithm, ClientRows, Local
from fedkin.algorithms.rounds import random_numbers
from fedkin.data.federation import Federation
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Softmax
from fedkin.types import Floats
from own_algorithms import Ditto, Scaffold

CLIENTS, CLASSES, L2 = 20, 3, 0.01
SIZES = [5, 9, 7, 12, 3, 8, 6, 10, 4, 11] * 2


def federation(features: int) -> Federation:
    """Twenty clients of different sizes, with testing clients that belong to them."""
    made = small_federation(sizes=SIZES, features=features)
    return replace(made, test=made.train, paired=True)


def simulation(algorithm: Algorithm, features: int = 40, take_part: int | None = None, **other: Any) -> Simulation:
    weights = np.array(SIZES) / sum(SIZES)
    local = Local(epochs=2, batch_size=4, l2=L2, order="fixed")
    graph = SimilarityGraph.edgeless(CLIENTS)
    settings = {"local": local, "take_part": take_part, "seed": 5, **other}
    return Simulation(federation(features), Softmax(features, CLASSES), algorithm, graph, weights, **settings)


def played(run: Simulation, rounds: int = 3) -> State:
    state = run.start()
    for _ in range(rounds):
        state = run.advance(state)
    return state


# -- the same, step by step, in float64 --------------------------------------------------------------------------------


class Loop:
    """Softmax regression at one client after the other. Subclasses say what SCAFFOLD, Ditto and IFCA do."""

    def __init__(self, run: Simulation) -> None:
        self.run = run
        self.algorithm: Any = run.algorithm.at(0)
        train = run.federation.train
        self.x = [train.x[train.rows(i)].double().numpy() for i in range(CLIENTS)]
        self.y = [train.y[train.rows(i)].numpy() for i in range(CLIENTS)]
        self.w = run.start().model.double().numpy()
        self.p = run.weights

    def gradient(self, w: Floats, i: int, rows: slice, counted: Floats | float = 1.0) -> Floats:
        """Of the batch's mean loss, in which a sample counts as often as given."""
        x, y = self.x[i][rows], self.y[i][rows]
        weight, bias = w[: CLASSES * x.shape[1]].reshape(CLASSES, -1), w[CLASSES * x.shape[1] :]
        z = np.exp(x @ weight.T + bias)
        r = (z / z.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(y) * np.reshape(counted, (-1, 1))
        return np.concatenate([(r.T @ x).ravel(), r.sum(0)]) + L2 * w

    def sample_losses(self, w: Floats, i: int) -> Floats:
        x, y = self.x[i], self.y[i]
        z = x @ w[: CLASSES * x.shape[1]].reshape(CLASSES, -1).T + w[CLASSES * x.shape[1] :]
        return np.asarray(np.log(np.exp(z).sum(1)) - z[range(len(y)), y])

    def loss(self, w: Floats, i: int) -> float:
        return float(np.mean(self.sample_losses(w, i)))

    def batches(self, i: int) -> list[slice]:
        return [slice(first, first + 4) for _ in range(2) for first in range(0, len(self.y[i]), 4)]

    def clients(self, t: int) -> tuple[Any, Floats]:
        state = replace(self.run.start(), round=t)
        round = self.run.sampled(self.run.algorithm.at(t), state)
        return round.who.tolist(), self.p[round.who] / self.p[round.who].sum()


class ScaffoldLoop(Loop):
    def rounds(self, count: int) -> dict[str, Floats]:
        g, eta = self.algorithm.step_size, self.algorithm.server_step
        c, own = np.zeros_like(self.w), np.zeros((CLIENTS, len(self.w)))
        for t in range(count):
            who, p = self.clients(t)
            moved, change = np.zeros_like(c), np.zeros_like(c)
            for i, share in zip(who, p, strict=True):
                y = self.w
                for rows in self.batches(i):
                    y = y - g * (self.gradient(y, i, rows) - own[i] + c)
                new = own[i] - c + (self.w - y) / (len(self.batches(i)) * g)
                moved, change, own[i] = moved + share * (y - self.w), change + new - own[i], new
            self.w, c = self.w + eta * moved, c + change / CLIENTS
        return {"model": self.w, "control": c, "memory control": own}


class DittoLoop(Loop):
    def rounds(self, count: int) -> dict[str, Floats]:
        g, pull, own = self.algorithm.step_size, self.algorithm.pull, np.tile(self.w, (CLIENTS, 1))
        for t in range(count):
            who, p = self.clients(t)
            new = np.zeros_like(self.w)
            for i, share in zip(who, p, strict=True):
                w = self.w
                for rows in self.batches(i):
                    own[i] = own[i] - g * (self.gradient(own[i], i, rows) + pull * (own[i] - self.w))
                    w = w - g * self.gradient(w, i, rows)
                new += share * w
            self.w = new
        return {"model": self.w, "memory own": own}


class IFCALoop(Loop):
    def rounds(self, count: int) -> dict[str, Floats]:
        a, centers = self.algorithm, self.run.start().server["centers"].double().numpy().copy()
        taken: set[int] = set()
        for t in range(count):
            who, p = self.clients(t)
            warm = t < a.warm
            chosen = [0 if warm else int(np.argmin([self.loss(center, i) for center in centers])) for i in who]
            ends = []
            for i, j in zip(who, chosen, strict=True):
                w = self.w if warm else centers[j]
                for rows in self.batches(i):
                    w = w - a.step_size * self.gradient(w, i, rows)
                ends.append(w)
            self.w = p @ np.array(ends)
            if warm:  # after the last of these rounds the models are those around the average
                noise = random_numbers(self.run.seed, "centers", t).standard_normal(centers.shape)
                centers = self.w + a.spread * noise
                continue
            taken |= set(chosen)
            for j in set(chosen):
                mine = [k for k, own in enumerate(chosen) if own == j]
                centers[j] = sum(p[k] * ends[k] for k in mine) / p[mine].sum()
        assert taken == {0, 1}, "each model is chosen by some client"
        return {"model": self.w, "centers": centers}


CASES: list[tuple[list[Algorithm], type[Any]]] = [
    ([Scaffold(step_size=0.2, server_step=0.7), Scaffold(step_size=0.1), Scaffold(step_size=0.2)], ScaffoldLoop),
    ([Ditto(step_size=0.2, pull=0.5), Ditto(step_size=0.1, pull=0.5), Ditto(step_size=0.1, pull=0.0)], DittoLoop),
    ([IFCA(step_size=g, groups=2, spread=s) for g, s in ((0.2, 0.1), (0.1, 0.1), (0.2, 0.2))], IFCALoop),
]


def assert_loop(state: State, expected: dict[str, Floats]) -> None:
    for name, value in expected.items():
        held = state.memory[name[7:]] if "memory" in name else state.server[name]
        found = held.at(np.arange(CLIENTS)) if isinstance(held, ClientRows) else held
        off = np.linalg.norm(found.double().squeeze(0).numpy() - value) / np.linalg.norm(value)
        assert off < 1e-6, f"{name} is off by {off:.1e}"
