"""The settings of a strategy: which are sensible, and how they are recorded."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from fedkin.algorithms import Algorithm, Averaging, Local, Round, name_of, trial
from fedkin.algorithms.registry import settings_of
from fedkin.data.measure import ACCURACY
from fedkin.engine.aggregation import check_aggregation
from fedkin.engine.local_work import two_steps
from fedkin.engine.optimizers import check_optimizer, refuse_adam
from fedkin.engine.privacy import Privacy, check_messages, check_privacy
from fedkin.errors import BadInput
from fedkin.flower.secure import SecureSum
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Record

GRAPHS = ("similarity", "uniform", "global")


class StrategySettings:
    """What a `fedkin.flower.Strategy` is given, and says in its docstring."""

    algorithm: Algorithm
    local: Local
    graph: str
    weights: str
    rule: Averaging
    privacy: Privacy | None
    secure: SecureSum | None
    floor: float
    take_part: int | None
    seed: int
    min_nodes: int
    min_replies: int
    fraction: float
    deadline: float | None
    max_norm: float | str | None
    half: bool
    identity: str
    changing_data: bool
    evaluate: bool
    fraction_evaluate: float
    own_loops: bool
    out: Path | None
    threshold: float | None


def check_settings(strategy: StrategySettings) -> None:
    """Raise if a setting is out of range, or the optimizer cannot be used with the algorithm."""
    check_optimizer(strategy.algorithm, strategy.local)
    if strategy.graph not in GRAPHS:
        raise BadInput(f"unknown graph '{strategy.graph}': choose {', '.join(GRAPHS)}")
    edges = SimilarityGraph.edgeless(2) if strategy.graph == "global" else SimilarityGraph.uniform(2)
    check_aggregation(strategy.rule, strategy.algorithm, edges, strategy.min_replies)
    check_protection(strategy)
    if strategy.identity not in ("partition", "key"):
        raise BadInput(f"unknown identity '{strategy.identity}': choose partition or key")
    if strategy.min_nodes < 2:
        raise BadInput(f"min_nodes = {strategy.min_nodes} is out of range: a federation needs at least 2 nodes")
    sure = strategy.take_part or strategy.min_nodes
    if not 1 <= strategy.min_replies <= sure:
        raise BadInput(
            f"min_replies = {strategy.min_replies} is out of range: it must lie between 1 and the {sure} nodes that "
            "are sure to be asked"
        )
    if not 0 < strategy.fraction <= 1:
        raise BadInput(f"fraction = {strategy.fraction} is out of range: it must be above 0 and at most 1")
    if not 0 <= strategy.fraction_evaluate <= 1:
        raise BadInput(f"fraction_evaluate = {strategy.fraction_evaluate} is out of range: it must lie between 0 and 1")
    if strategy.deadline is not None and not strategy.deadline > 0:
        raise BadInput(f"deadline = {strategy.deadline} is out of range: it must be above 0 seconds")
    norm = strategy.max_norm
    if norm not in ("auto", None) and not (isinstance(norm, int | float) and norm > 0):
        raise BadInput(f"max_norm = {norm} is out of range: choose a number above 0, auto, or None for any norm")


def check_steps(strategy: StrategySettings, first: Tensor) -> None:
    """Refuse Adam with an algorithm whose steps it cannot change, before any node is asked.

    Which vectors a step sees is found in a first round of strangers, as no node is known yet.
    """
    if strategy.local.optimizer != "adam":
        return
    algorithm, count = strategy.algorithm.at(0), strategy.min_nodes
    who, graph = np.arange(count), SimilarityGraph.edgeless(count)
    round = Round(0, who, np.full(count, 1 / count), graph, count, strategy.take_part, strategy.seed)
    got, memory = algorithm.send(algorithm.start(first, round), round), algorithm.remember(first)
    names = trial(algorithm, got, memory)
    if two_steps(algorithm, strategy.local, first.device, names.got, names.memory) is None:
        refuse_adam(algorithm)


def recorded_settings(strategy: StrategySettings, rounds: int) -> Record:
    """The content of config.json."""
    hyper = settings_of(strategy.algorithm)
    step_size = hyper.pop("step_size")
    return {
        "seed": strategy.seed,
        "rounds": rounds,
        "threshold": ACCURACY.usual if strategy.threshold is None else strategy.threshold,
        "take_part": strategy.take_part or "all",
        "graph": {"kind": strategy.graph, "weights": strategy.weights, "floor": strategy.floor},
        "local": {"own_loops": True} if strategy.own_loops else {"step_size": step_size, **asdict(strategy.local)},
        "algorithm": {"name": name_of(strategy.algorithm), **hyper},
        **({} if strategy.rule.is_mean else {"aggregation": repr(strategy.rule)}),
        **({} if strategy.secure is None else {"secure": repr(strategy.secure)}),
        **({} if strategy.privacy is None else {"privacy": _recorded_privacy(strategy.privacy, rounds)}),
        "flower": {
            "half": strategy.half,
            "identity": strategy.identity,
            "max_norm": strategy.max_norm,
            "min_nodes": strategy.min_nodes,
        },
    }


def _recorded_privacy(privacy: Privacy, rounds: int) -> Record:
    """With the number of rounds if the noise depends on it: then a run cannot grow."""
    return asdict(privacy if privacy.epsilon is None or privacy.rounds else replace(privacy, rounds=rounds))


def check_protection(strategy: StrategySettings) -> None:
    """Refuse settings under which nodes would not be protected as they are said to be."""
    privacy, secure, algorithm = strategy.privacy, strategy.secure, strategy.algorithm
    graph = SimilarityGraph.edgeless(2) if strategy.graph == "global" else SimilarityGraph.uniform(2)
    if privacy is not None:
        check_messages(privacy, strategy.graph)
        sizes = np.arange(1, strategy.min_nodes + 1)
        weights = {"uniform": np.ones(len(sizes)), "samples": sizes / 1.0}.get(strategy.weights)
        weights = sizes.astype(np.float64) ** 2 if weights is None else weights
        check_privacy(privacy, strategy.rule, algorithm, graph, weights, sizes)
        if privacy.where == "shares" and secure is None:
            raise BadInput(
                "each node adds a share of the noise, which protects sums alone: set secure=SecureSum(), too"
            )
        if privacy.where == "server" and secure is not None:
            raise BadInput("the server adds noise to uploads that it sees: set where='shares' with secure=SecureSum()")
    if secure is None:
        return
    if not strategy.rule.is_mean:
        raise BadInput("secure aggregation gives the mean alone: leave out aggregate, or secure")
    if not algorithm.needs_only_average(graph):
        raise BadInput(
            f"{type(algorithm).__name__} needs more of the clients than the sum of their updates, which is all that "
            "secure aggregation gives: use FedAvg or FedProx, or FedKin with graph='global'"
        )
    if strategy.weights == "adjacency" or strategy.graph == "similarity":
        raise BadInput("secure aggregation hides what messages would show: use graph='global', and other weights")
    if strategy.min_replies < 3:
        raise BadInput("of two nodes each knows the other's part of the sum: set min_replies to 3 or more")
