"""Spaces: where local steps are computed. An algorithm's `step` runs unchanged in each of them."""
