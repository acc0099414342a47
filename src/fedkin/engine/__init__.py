"""The engine: rounds of a simulated federation, whatever the algorithm."""
