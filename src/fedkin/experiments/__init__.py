"""Experiments: from a TOML file to run folders, resumable."""
