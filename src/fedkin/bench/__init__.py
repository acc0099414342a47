"""Benchmarks: the engine against loops written by hand and against the machine's limit. Nothing imports this."""
