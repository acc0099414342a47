"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

similarity.py  messages of clients, the graph built from them, and averages over neighbours
kin.py         kin: the k nearest clients, of which a client is one, for averages that clients start from
search.py      nearest neighbours, exact or approximate
"""

from fedkin.graph.similarity import SimilarityGraph, build_graph, message, messages, mixed

__all__ = ["SimilarityGraph", "build_graph", "message", "messages", "mixed"]
