"""Rules of aggregation: for which algorithms they hold."""

from fedkin.algorithms import Algorithm
from fedkin.algorithms.averaging import Averaging
from fedkin.errors import Unsuitable
from fedkin.graph.similarity import SimilarityGraph


def check_aggregation(rule: Averaging, algorithm: Algorithm, graph: SimilarityGraph, clients: int) -> None:
    """Refuse a rule that would not protect an algorithm, or has too few clients.

    clients  the smallest number of clients in a round
    """
    if rule.is_mean:
        return
    rule.check(clients)
    check_only_average(algorithm, graph, f"{type(rule).__name__} protects")


def check_only_average(algorithm: Algorithm, graph: SimilarityGraph, what: str) -> None:
    """Refuse an algorithm whose server uses more of the clients' replies than the average of their models."""
    if not algorithm.needs_only_average(graph):
        raise Unsuitable(
            f"{type(algorithm).__name__} uses more of what clients send than the average of their models, which is all "
            f"that {what}: use FedAvg or FedProx, say, or FedKin with graph.kind = 'global'"
        )
