"""Features: from stored arrays to flat float32 rows, and their preprocessing."""

import numpy as np
from numpy.typing import NDArray

from fedkin.data.dataset import Array
from fedkin.errors import BadInput, nearest

BLOCK = 4096  # rows processed at a time where a temporary copy of all rows would take too much memory
PREPROCESSING = ("auto", "half", "none", "standardise", "by client")


def pixels(x: Array) -> NDArray[np.float32]:
    """The raw features, one flattened sample per row, (N, D): uint8 is divided by 255, other types are unchanged.

    Images with channels (N, H, W, channels) are flattened channel by channel, the order that convolutions expect.
    The result may share memory with `x`.
    """
    planes = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    width = int(np.prod(x.shape[1:]))
    if x.dtype != np.uint8:
        return np.ascontiguousarray(planes.reshape(len(x), width), dtype=np.float32)
    raw = np.empty((len(x), width), dtype=np.float32)
    np.divide(planes, np.float32(255), out=raw.reshape(planes.shape))
    return raw


def sample_shape(x: Array) -> tuple[int, ...]:
    """Shape of one sample: (1, H, W) or (channels, H, W) for images, (D,) for feature vectors."""
    if x.ndim == 4:
        return (int(x.shape[3]), int(x.shape[1]), int(x.shape[2]))
    return (1, int(x.shape[1]), int(x.shape[2])) if x.ndim == 3 else (int(x.shape[1]),)


def is_whole(x: Array) -> bool:
    """Whether features are integers that are not pixels: tokens, or counts."""
    return x.dtype.kind in "iu" and x.dtype != np.uint8


def require_preprocessing(kind: str) -> None:
    """Raise `BadInput` unless there is a preprocessing of this name."""
    if kind not in PREPROCESSING:
        raise BadInput(f"there is no preprocessing '{kind}'{nearest(kind, PREPROCESSING)}")


def chosen_preprocessing(kind: str, *parts: Array) -> str:
    """What `auto` stands for with these features; any other kind is itself.

    half         images; and bytes and features that all lie in [0, 1], as pixels do
    none         other whole numbers: they may be tokens
    standardise  other numbers
    """
    require_preprocessing(kind)
    if kind != "auto":
        return kind
    if parts[0].ndim > 2 or parts[0].dtype.kind == "b" or parts[0].dtype == np.uint8:
        return "half"
    if parts[0].dtype.kind in "iu":
        return "none"
    return "half" if all(x.size == 0 or (x.min() >= 0 and x.max() <= 1) for x in parts) else "standardise"


def preprocessing(kind: str, raw_train: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The shift and scale, (D,) each, of the map x = (raw − shift) / scale.

    half         shift 0.5, scale 0.5: [0, 1] becomes [−1, 1]
    standardise  mean and standard deviation of each feature over the training part; scale 1 for a constant feature
    none         shift 0, scale 1

    (`by client`, the fourth kind, is `Federation.standardised_by_client`.)
    """
    samples, width = raw_train.shape
    kind = chosen_preprocessing(kind, raw_train)
    assert kind != "by client", "it concerns a federation, not an array"
    if kind == "half":
        return np.full(width, 0.5, dtype=np.float32), np.full(width, 0.5, dtype=np.float32)
    if kind == "none":
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    shift = raw_train.mean(axis=0, dtype=np.float64)
    squares = np.zeros(width)
    for start in range(0, samples, BLOCK):
        squares += np.square(raw_train[start : start + BLOCK] - shift).sum(axis=0)
    scale = np.sqrt(squares / samples).astype(np.float32)
    scale[scale == 0] = 1  # exactly 0 for a constant feature: sums of float32 values are exact in float64
    return shift.astype(np.float32), scale
