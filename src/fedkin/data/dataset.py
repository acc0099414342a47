"""A data set in memory: samples with labels, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.streams import stream
from fedkin.errors import BadInput
from fedkin.types import Integers

Array = NDArray[Any]

MOST_CLASSES = 100_000  # a larger label is an identifier, not a class: models have a row of weights per class


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, a training and a testing part.

    x_train, x_test            (N, H, W) or (N, H, W, channels) images, or (N, D) feature vectors
    y_train, y_test            (N,) int64, classes numbered from 0
    groups_train, groups_test  the origin of each sample, (N,) per key: `{"writer": …}`
    classes                    K, the largest label of both parts + 1
    """

    name: str
    x_train: Array
    y_train: Integers
    x_test: Array
    y_test: Integers
    groups_train: dict[str, Array]
    groups_test: dict[str, Array]
    classes: int


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    groups: Mapping[str, ArrayLike] | None = None,
    groups_test: Mapping[str, ArrayLike] | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Dataset:
    """A data set from arrays in memory; without a testing part, a fifth of the samples becomes the testing part.

    x       (N, H, W) or (N, H, W, channels) images or (N, D) features; uint8 stands for 0 to 255
    y       (N,) classes numbered from 0
    groups  the origin of each sample: arrays (N,) by name
    """
    x_train, y_train = _samples(name, "train", x, y)
    origins = _groups(name, "train", groups, len(x_train))
    if x_test is None and y_test is None:
        if groups_test:
            raise BadInput(
                f"{name}: groups of the testing part are given without x_test and y_test: give these as well"
            )
        if len(x_train) < 2:
            raise BadInput(f"{name}: a single sample cannot be split into a training and a testing part: give more")
        test = np.zeros(len(x_train), dtype=bool)
        test[stream(seed, "testing part").permutation(len(x_train))[: max(1, len(x_train) // 5)]] = True
        x_test, y_test, origins_test = x_train[test], y_train[test], {key: of[test] for key, of in origins.items()}
        x_train, y_train, origins = x_train[~test], y_train[~test], {key: of[~test] for key, of in origins.items()}
    elif x_test is None or y_test is None:
        raise BadInput(f"{name}: x_test and y_test belong together: give both, or neither for an 80:20 split")
    else:
        x_test, y_test = _samples(name, "test", x_test, y_test)
        origins_test = _groups(name, "test", groups_test, len(x_test))
        if x_test.shape[1:] != x_train.shape[1:]:
            raise BadInput(
                f"{name}: a training sample has shape {x_train.shape[1:]} but a testing sample "
                f"{x_test.shape[1:]}: bring both to the same shape"
            )
        if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
            raise BadInput(
                f"{name}: x_train is {x_train.dtype} but x_test {x_test.dtype}, and only uint8 is divided by "
                "255: store both in the same type"
            )
    if len(seen := np.unique(y_train)) < 2:
        raise BadInput(f"{name}: all training labels are {seen[0]}: give samples of at least two classes")
    classes = int(max(y_train.max(), y_test.max())) + 1
    return Dataset(name, x_train, y_train, x_test, y_test, origins, origins_test, classes)


def _array(name: str, what: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{name}: {what} is ragged: all its entries must have the same shape") from error


def _samples(name: str, part: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, Integers]:
    """Features and labels of a part, checked."""
    features, labels = _array(name, f"x_{part}", x), _array(name, f"y_{part}", y)
    for what, array in ((f"x_{part}", features), (f"y_{part}", labels)):
        if array.size and array.dtype.kind not in "biuf":
            raise BadInput(f"{name}: {what} is of type {array.dtype}, not numbers: convert it first")
    if labels.ndim != 1 or features.ndim not in (2, 3, 4):
        raise BadInput(
            f"{name}: x_{part} has shape {features.shape} and y_{part} {labels.shape}: give N×D features, "
            "N×H×W or N×H×W×channels images as x, and one label per sample as y"
        )
    if len(features) != len(labels):
        raise BadInput(
            f"{name}: x_{part} has {len(features)} samples but y_{part} {len(labels)} labels: give one label per sample"
        )
    if features.size == 0:
        raise BadInput(f"{name}: x_{part} is empty, of shape {features.shape}: give samples with features")
    most = np.finfo(np.float32).max  # larger values are infinite as float32; NaN fails every comparison
    if features.dtype.kind == "f" and not (features.min() >= -most and features.max() <= most):
        raise BadInput(f"{name}: x_{part} contains NaN or infinite values: clean the data first")
    bad = ~np.isfinite(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), dtype=bool)
    bad |= (labels < 0) | (labels != np.floor(labels))
    if bad.any():
        raise BadInput(f"{name}: y_{part} holds the label {labels[bad][0]}: number the classes 0, 1, 2 and so on")
    if labels.max() >= MOST_CLASSES:
        raise BadInput(f"{name}: y_{part} holds the label {labels.max()}: number the classes 0, 1, 2 and so on")
    return features, labels.astype(np.int64)


def _groups(name: str, part: str, groups: Mapping[str, ArrayLike] | None, samples: int) -> dict[str, Array]:
    checked = {}
    for key, values in (groups or {}).items():
        array = _array(name, f"{key}_{part}", values)
        if array.shape != (samples,) or array.dtype.kind not in "biufUS":
            raise BadInput(
                f"{name}: the group '{key}' of the {part}ing part has shape {array.shape} and type "
                f"{array.dtype}: give a number or a string for each of the {samples} samples"
            )
        checked[key] = array
    return checked
