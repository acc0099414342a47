"""Data: sources of samples, their partition into clients, and the federation that results."""
