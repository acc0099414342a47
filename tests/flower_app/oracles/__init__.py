"""Algorithms as users write them, on Flower."""
