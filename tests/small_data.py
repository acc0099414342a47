"""Small data sets and label arrays for tests of the data modules."""

from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data import Dataset
from fedkin.types import Integers


def labels_of(*sizes: int) -> Integers:
    """Labels of classes of the given sizes: `labels_of(2, 1)` is 0 0 1."""
    return np.repeat(np.arange(len(sizes)), sizes)


def counts_of(labels: Integers, parts: list[Integers]) -> Integers:
    """Samples of each class at each client, (C, K)."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def entropy(counts: Integers) -> float:
    """Mean entropy of the clients' class mixes: ln K when balanced, 0 with one class per client."""
    mix = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return float(-(mix * np.log(np.maximum(mix, 1e-300))).sum(axis=1).mean())


def small(samples: int = 10) -> dict[str, Any]:
    """Distinct images of 2 × 3 with labels 0 1 2 0 1 2 …"""
    x = np.arange(samples * 6, dtype=np.uint8).reshape(samples, 2, 3)
    return {"x_train": x, "y_train": np.arange(samples) % 3, "x_test": x[:4] + 1, "y_test": np.arange(4) % 2}


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def same(one: Dataset, other: Dataset) -> bool:
    return all(
        np.array_equal(getattr(one, part), getattr(other, part)) for part in ("x_train", "y_train", "x_test", "y_test")
    )
