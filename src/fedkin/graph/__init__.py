"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

similarity.py  messages of clients, and the graph built from them
mixing.py      averages of the models of kin
kin.py         kin: the k nearest clients, of which a client is one, for averages that clients start from
search.py      nearest neighbours, exact or approximate
"""

from fedkin.graph.mixing import mixed
from fedkin.graph.similarity import SimilarityGraph, build_graph, message, messages

__all__ = ["SimilarityGraph", "build_graph", "message", "messages", "mixed"]
