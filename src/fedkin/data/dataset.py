"""A data set in memory: samples with labels, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.streams import stream
from fedkin.data.target import NUMBERED, Target, column, target_of
from fedkin.errors import BadInput
from fedkin.markup import facts_table

Array = NDArray[Any]


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, a training and a testing part.

    x_train, x_test            (N, H, W) or (N, H, W, channels) images, or (N, D) feature vectors
    y_train, y_test            (N,) int64, classes numbered from 0, or float32 if a number is predicted
    groups_train, groups_test  the origin of each sample, (N,) per key: `{"writer": …}`
    classes                    K, the number of classes of both parts; 1 if a number is predicted
    target                     what is predicted
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    groups_train: dict[str, Array]
    groups_test: dict[str, Array]
    classes: int
    target: Target = NUMBERED

    @property
    def outputs(self) -> int:
        """The number of outputs of a model."""
        return self.target.outputs(self.classes)

    @property
    def strata(self) -> tuple[Array, Array]:
        """The classes of the training and the testing samples; samples with numbers are all of one class."""
        y = self.y_train, self.y_test
        return (0 * y[0].astype(np.int64), 0 * y[1].astype(np.int64)) if self.target.is_number else y

    def require_classes(self, what: str) -> None:
        """Only classes can be distributed unevenly or permuted."""
        if self.target.is_number:
            raise BadInput(f"{self.name} has numbers to predict and no classes: leave out {what}")

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}: {len(self.y_train):,} training and {len(self.y_test):,} testing samples of shape "
            f"{self.x_train.shape[1:]}, {self.target.counted(self.classes)}{_groups_text(self.groups_train)})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "training samples": f"{len(self.y_train):,}",
            "testing samples": f"{len(self.y_test):,}",
            "shape of a sample": " × ".join(map(str, self.x_train.shape[1:])),
            "to predict": self.target.counted(self.classes),
        }
        for key, values in self.groups_train.items():
            facts[f"groups by {key}"] = f"{len(set(values.tolist())):,}"
        return facts_table(f"Dataset {self.name}", facts)


def _groups_text(groups: Mapping[str, Array]) -> str:
    return f", grouped by {', '.join(groups)}" if groups else ""


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
    task: str = "auto",
    target: Target | None = None,
    test: float = 0.2,
    within: str | None = None,
) -> Dataset:
    """A data set from arrays in memory; without a testing part, a share of the samples becomes the testing part.

    x       (N, H, W) or (N, H, W, channels) images or (N, D) features; uint8 stands for 0 to 255
    y       (N,) classes, as numbers or names, or numbers to be predicted
    groups  the origin of each sample: arrays (N,) by name
    task    `classes`, `binary`, `regression`, or `auto`, which decides by the values of y
    target  if given, says how y is to be understood, instead of the task
    test    share of the samples for the testing part, a fifth by default
    within  the name of a group: the testing part has this share of each of its values, so of each client
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
        split = _testing_part(name, len(x_train), test, origins.get(within or ""), seed)
        x_test, y_test, origins_test = x_train[split], y_train[split], {key: of[split] for key, of in origins.items()}
        x_train, y_train, origins = x_train[~split], y_train[~split], {key: of[~split] for key, of in origins.items()}
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
    labels = _concatenated(name, y_train, y_test)
    target = replace(target or target_of(labels, task, where=f"{name}: y"), shift=0.0, scale=1.0)
    y_train, y_test = (target.encoded(y, f"{name}: y") for y in (y_train, y_test))
    if y_train.min() == y_train.max():
        wanted = "give samples with different values" if target.is_number else "give samples of at least two classes"
        raise BadInput(f"{name}: all training labels are {labels[0]}: {wanted}")
    classes = 1 if target.is_number else len(target.names) or int(max(y_train.max(), y_test.max())) + 1
    return Dataset(name, x_train, y_train, x_test, y_test, origins, origins_test, max(classes, 1), target)


def _testing_part(name: str, samples: int, share: float, groups: Array | None, seed: int) -> NDArray[np.bool_]:
    """Which samples are for testing, (N,): a share of all, or of each group, rounded down; at least one stays in both.

    A group with a single sample keeps it for training.
    """
    if not 0 < share < 1:
        raise BadInput(f"{name}: the share of testing samples is {share:g}: it must be above 0 and less than 1")
    split, rng = np.zeros(samples, dtype=np.bool_), stream(seed, "testing part")
    order = rng.permutation(samples)
    of = np.zeros(samples) if groups is None else groups
    for value in np.unique(of):
        own = order[of[order] == value]
        split[own[: max(1, int(share * len(own) + 1e-9)) if len(own) > 1 else 0]] = True
    return split


def _concatenated(name: str, y_train: Array, y_test: Array) -> Array:
    if (y_train.dtype.kind == "U") != (y_test.dtype.kind == "U"):
        raise BadInput(f"{name}: y_train is {y_train.dtype} but y_test {y_test.dtype}: store both in the same type")
    return np.concatenate([y_train, y_test])


def _array(name: str, what: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{name}: {what} is ragged: all its entries must have the same shape") from error


def _samples(name: str, part: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Features and labels of a part, checked."""
    features, labels = _array(name, f"x_{part}", x), column(y, f"{name}: y_{part}")
    if features.size and features.dtype.kind not in "biuf":
        raise BadInput(f"{name}: x_{part} is of type {features.dtype}, not numbers: convert it first")
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
    if place := unusable(features):
        raise BadInput(f"{name}: x_{part} contains NaN or infinite values (the first is {place}): clean the data first")
    return features, labels


def unusable(features: Array) -> str:
    """Where the first value is that is not finite as float32: `feature 2 of sample 7`; empty if there is none."""
    most = np.finfo(np.float32).max  # larger values are infinite as float32; NaN fails every comparison
    if features.dtype.kind != "f" or not features.size or (features.min() >= -most and features.max() <= most):
        return ""
    sample, *place = (int(number) for number in np.argwhere(~(np.abs(features) <= most))[0])
    return f"{'feature' if len(place) == 1 else 'pixel'} {', '.join(map(str, place))} of sample {sample}"


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
