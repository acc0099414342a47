"""Handwritten digits at a few nodes, learned together."""
