"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees."""
