"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

similarity.py  messages of clients, the graph built from them, and averages over neighbours
"""

from fedkin.graph.similarity import SimilarityGraph, build_graph, message, messages, mixed

__all__ = ["SimilarityGraph", "build_graph", "message", "messages", "mixed"]
