"""Data sets: arrays of samples with their labels, from a name, an npz file or memory.

`digits` comes with the package: 1,797 handwritten digits of 8 × 8 pixels with values 0 to 16. Source:
E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), UCI Machine Learning Repository,
licence CC BY 4.0 (the test part of the original, as scikit-learn distributes it). The other named data sets
are found in a directory or downloaded once.
"""

import os
import socket
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import Progress

from fedkin.errors import BadInput, nearest

Array = NDArray[Any]

MOST_CLASSES = 100_000  # a label above is an identifier, not a class: the models hold a row of weights a class
BLOCK = 4096  # rows handled at a time where a whole temporary copy would be too much memory


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, a training and a testing part.

    x_train, x_test            (N, H, W) or (N, H, W, channels) images, or (N, D) plain features
    y_train, y_test            (N,) int64, classes numbered from 0
    groups_train, groups_test  who or what each sample comes from, (N,) each: `{"writer": …}`
    classes                    K, the largest label of both parts + 1
    """

    name: str
    x_train: Array
    y_train: NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.int64]
    groups_train: dict[str, Array]
    groups_test: dict[str, Array]
    classes: int


@dataclass(frozen=True)
class _Hub:
    """Where a data set lies on the Hugging Face hub, and what must be found there.

    samples  of each part, before any are left out
    classes  labels from here on are left out (FEMNIST: the letters)
    groups   column on the hub → name of the group
    """

    address: str
    image: str
    label: str
    shape: tuple[int, ...]
    samples: dict[str, int]
    classes: int
    groups: dict[str, str]
    inverted: bool = False


_HUB = {
    "mnist": _Hub("ylecun/mnist", "image", "label", (28, 28), {"train": 60_000, "test": 10_000}, 10, {}),
    "fashion_mnist": _Hub(
        "zalando-datasets/fashion_mnist",
        "image",
        "label",
        (28, 28),
        {"train": 60_000, "test": 10_000},
        10,
        {},
    ),
    "femnist": _Hub(
        "flwrlabs/femnist",
        "image",
        "character",
        (28, 28),
        {"train": 814_277},
        10,
        {"writer_id": "writer", "hsf_id": "hsf"},
        inverted=True,
    ),
    "cifar10": _Hub("uoft-cs/cifar10", "img", "label", (32, 32, 3), {"train": 50_000, "test": 10_000}, 10, {}),
    "cifar100": _Hub("uoft-cs/cifar100", "img", "fine_label", (32, 32, 3), {"train": 50_000, "test": 10_000}, 100, {}),
}

NAMES = ("digits", *_HUB)


def load(source: str | Path = "digits", data_dir: Path | None = None, *, seed: int = 0) -> Dataset:
    """A data set from an npz file, or by name: `digits mnist fashion_mnist femnist cifar10 cifar100`.

    A named one is read from NAME.npz in `data_dir` (default: the environment variable FEDKIN_DATA), else in
    the user's cache; else it is downloaded from the Hugging Face hub and stored as NAME.npz for next time.

    An npz file holds `x_train y_train x_test y_test`. Other arrays `NAME_train` (and `NAME_test`) with one
    entry a sample are groups. A file without a testing part (`x y`, or only `x_train y_train`) is split
    80:20, the same way for the same seed. Files whose name begins with femnist are inverted where their
    background is white, so that they look like MNIST.
    """
    if str(source).lower().endswith(".npz"):
        path = Path(source).expanduser()
        if not path.exists():
            raise BadInput(f"there is no file {path}: check the path")
        return _from_npz(path, path.stem, seed)
    name = str(source)
    if name == "digits":
        with resources.as_file(resources.files("fedkin") / "data" / "digits.npz") as path:
            arrays = _read(path)
        return from_arrays(arrays["x"].astype(np.float32) / 16, arrays["y"], name=name, seed=seed)
    if name not in _HUB:
        raise BadInput(f"there is no data set '{name}'{nearest(name, NAMES)}, nor is it a path ending in .npz")
    cache = _cache_dir()
    if data_dir is None:
        data_dir = Path(given) if (given := os.environ.get("FEDKIN_DATA")) else cache
    home = Path(data_dir).expanduser()
    for folder in (home, cache):
        if (path := folder / f"{name}.npz").exists():
            return _from_npz(path, name, seed)
    return _from_npz(_download(name, home), name, seed)


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
    """A data set from arrays in memory; without a testing part a fifth of the samples becomes it.

    x       (N, H, W) or (N, H, W, channels) images or (N, D) features: uint8 for 0 to 255, else as they are
    y       (N,) classes numbered from 0
    groups  arrays (N,) that say where each sample comes from, by name
    """
    x_train, y_train = _samples(name, "train", x, y)
    sources = _groups(name, "train", groups, len(x_train))
    if x_test is None and y_test is None:
        if groups_test:
            raise BadInput(f"{name}: groups of the testing part are given without x_test and y_test: give these too")
        if len(x_train) < 2:
            raise BadInput(f"{name}: a single sample cannot be split into a training and a testing part: give more")
        test = np.zeros(len(x_train), dtype=bool)
        test[stream(seed, "testing part").permutation(len(x_train))[: max(1, len(x_train) // 5)]] = True
        x_test, y_test, sources_test = (
            x_train[test],
            y_train[test],
            {key: of[test] for key, of in sources.items()},
        )
        x_train, y_train, sources = (
            x_train[~test],
            y_train[~test],
            {key: of[~test] for key, of in sources.items()},
        )
    elif x_test is None or y_test is None:
        raise BadInput(f"{name}: x_test and y_test belong together: give both, or neither for an 80:20 split")
    else:
        x_test, y_test = _samples(name, "test", x_test, y_test)
        sources_test = _groups(name, "test", groups_test, len(x_test))
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
        raise BadInput(f"{name}: all training labels are {seen[0]}: a classifier needs at least two classes")
    classes = int(max(y_train.max(), y_test.max())) + 1
    return Dataset(name, x_train, y_train, x_test, y_test, sources, sources_test, classes)


def pixels(x: Array) -> NDArray[np.float32]:
    """The raw features, one flattened sample a row, (N, D): uint8 is divided by 255, all else taken as it is.

    Images with channels (N, H, W, channels) are flattened channel after channel, as convolutions want them.
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
    """Shape of one sample: (1, H, W) or (channels, H, W) for images, (D,) for plain features."""
    if x.ndim == 4:
        return (int(x.shape[3]), int(x.shape[1]), int(x.shape[2]))
    return (1, int(x.shape[1]), int(x.shape[2])) if x.ndim == 3 else (int(x.shape[1]),)


PREPROCESSING = ("half", "none", "standardise")


def preprocessing(kind: str, raw_train: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The shift and scale, (D,) each, of the map x = (raw − shift) / scale.

    half         shift 0.5, scale 0.5: [0, 1] becomes [−1, 1]
    standardise  mean and standard deviation of each feature over the training part; scale 1 if constant
    none         shift 0, scale 1
    """
    samples, width = raw_train.shape
    if kind == "half":
        return np.full(width, 0.5, dtype=np.float32), np.full(width, 0.5, dtype=np.float32)
    if kind == "none":
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    if kind != "standardise":
        raise BadInput(f"there is no preprocessing '{kind}'{nearest(kind, PREPROCESSING)}")
    shift = raw_train.mean(axis=0, dtype=np.float64)
    squares = np.zeros(width)
    for start in range(0, samples, BLOCK):
        squares += np.square(raw_train[start : start + BLOCK] - shift).sum(axis=0)
    scale = np.sqrt(squares / samples).astype(np.float32)
    scale[scale == 0] = 1  # exactly 0 where constant: sums of float32 values are exact in float64
    return shift.astype(np.float32), scale


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers for one purpose; its name is in the key, so other uses of the seed do not shift them."""
    if seed < 0:
        raise BadInput(f"the seed is {seed}: seeds are whole numbers from 0 on")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(purpose.encode())))


def from_hub(name: str, parts: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of an npz file from what the hub holds, a `datasets.DatasetDict`.

    FEMNIST keeps its digits only, as 255 − x: white on black like MNIST. It has no testing part on the hub.
    """
    hub = _HUB[name]
    arrays: dict[str, Array] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for part in hub.samples:
            if part not in parts:
                raise BadInput(f"{hub.address} has no part '{part}' on the hub, so {name} cannot be made from it")
            table = parts[part]
            wanted = {hub.image, hub.label, *hub.groups}
            if missing := wanted - set(table.column_names):
                raise BadInput(
                    f"{hub.address} has no column '{min(missing)}' on the hub: {name} cannot be made from it"
                )
            labels = np.asarray(table[hub.label][:])
            if hub.inverted:
                table = table.select(np.flatnonzero(labels < hub.classes))
                labels = labels[labels < hub.classes]
            if not ((labels >= 0) & (labels < hub.classes)).all():
                raise BadInput(f"{hub.address} holds labels outside 0 to {hub.classes - 1}: {name} cannot be trusted")
            x = np.empty((len(table), *hub.shape), dtype=np.uint8)
            bar = progress.add_task(f"{name}: {part} images", total=len(table))
            row = 0
            for batch in table.select_columns([hub.image]).iter(batch_size=1000):
                for image in batch[hub.image]:
                    plain = np.asarray(image.convert("L" if len(hub.shape) == 2 else "RGB"))
                    if plain.shape != hub.shape:
                        raise BadInput(
                            f"{hub.address} holds an image of shape {plain.shape}, not {hub.shape}: "
                            f"{name} cannot be made from it"
                        )
                    x[row] = plain
                    row += 1
                progress.update(bar, completed=row)
            arrays[f"x_{part}"] = 255 - x if hub.inverted else x
            arrays[f"y_{part}"] = labels.astype(np.uint8)
            for column, group in hub.groups.items():
                arrays[f"{group}_{part}"] = np.asarray(table[column][:])
    return arrays


def _download(name: str, home: Path) -> Path:
    """Fetch a data set from the hub, check it and store it as NAME.npz in `home`."""
    hub = _HUB[name]
    keys = "x_train y_train x_test y_test"
    way_out = (
        f"put {name}.npz with keys {keys} into {home}, pass --data DIR or set FEDKIN_DATA, "
        "or install fedkin[hub] and connect to the internet"
    )
    try:
        import datasets
    except ImportError as error:
        raise BadInput(
            f"{name} is neither in {home} nor downloadable (the datasets library is missing): {way_out}"
        ) from error
    try:
        with _no_waiting():
            parts = datasets.load_dataset(hub.address)
    except Exception as error:  # the library raises whatever its many layers raise: all of it means no data
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(f"{name} is neither in {home} nor downloadable ({reason}): {way_out}") from error
    for part, samples in hub.samples.items():
        if part in parts and len(parts[part]) != samples:
            raise BadInput(
                f"{hub.address} holds {len(parts[part]):,} images in its part '{part}', not {samples:,}, so "
                f"the download is incomplete or the data set has changed: {way_out}"
            )
    return _store(from_hub(name, parts), home / f"{name}.npz")


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Without a network, put the hub library into its offline mode: it uses its cache or fails at once.

    Left alone it retries for half a minute. Its offline mode is the constant that its environment variable
    HF_HUB_OFFLINE sets. Behind a proxy a direct connection says nothing, so the library is left alone.
    """
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT)
    offline: bool = constants.HF_HUB_OFFLINE
    if not offline and not getproxies():
        try:
            port = host.port or (80 if host.scheme == "http" else 443)
            socket.create_connection((host.hostname or "", port), timeout=5).close()
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def _store(arrays: Mapping[str, Any], path: Path) -> Path:
    """Write an npz file so that it is there whole or not at all."""
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", delete=False) as file:
            partial = Path(file.name)
            np.savez_compressed(file, **arrays)
        partial.chmod(0o644)  # temporary files are private, data sets are shared between users
        partial.replace(path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror or error}): choose another directory with --data or FEDKIN_DATA"
        ) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return path


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedkin"


def _read(path: Path) -> dict[str, Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise BadInput(f"{path} holds a single array, not an npz archive: write it with numpy.savez")
        with file:
            arrays = {key: file[key] for key in file.files}
    except BadInput:
        raise
    except Exception as error:  # the readers of the zip, of deflate and of the header all have errors of their own
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{path} is damaged or no npz file: write it with numpy.savez") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path} cannot be read ({reason}): it is damaged or holds Python objects; write it again with numpy.savez"
        ) from error
    return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}


def _from_npz(path: Path, name: str, seed: int) -> Dataset:
    arrays = _read(path)
    if "x_train" not in arrays and "x" in arrays:
        arrays = {key if key.endswith("_train") else f"{key}_train": array for key, array in arrays.items()}
    for part in ("train", "test"):
        present = {key for key in (f"x_{part}", f"y_{part}") if key in arrays}
        if len(present) == 1 or (part == "train" and not present):
            missing = min({f"x_{part}", f"y_{part}"} - present)
            raise BadInput(
                f"{path} has no array '{missing}': it needs x_train y_train and, where there is a testing "
                "part, x_test y_test (or x y alone)"
            )

    def groups(part: str) -> dict[str, Array]:
        end = f"_{part}"
        length = arrays[f"y{end}"].shape if f"y{end}" in arrays else None
        return {
            key.removesuffix(end): array
            for key, array in arrays.items()
            if key.endswith(end) and key not in (f"x{end}", f"y{end}") and array.shape == length
        }

    x, x_test = arrays["x_train"], arrays.get("x_test")
    if name.startswith("femnist") and x.dtype == np.uint8 and x.size and x.mean() > 127:
        x, x_test = 255 - x, None if x_test is None else 255 - x_test
    return from_arrays(
        x,
        arrays["y_train"],
        x_test,
        arrays.get("y_test"),
        groups=groups("train"),
        groups_test=groups("test"),
        name=name,
        seed=seed,
    )


def _array(name: str, what: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{name}: {what} is ragged: all its entries must have the same shape") from error


def _samples(name: str, part: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Features and labels of a part, checked."""
    features, labels = _array(name, f"x_{part}", x), _array(name, f"y_{part}", y)
    for what, array in ((f"x_{part}", features), (f"y_{part}", labels)):
        if array.size and array.dtype.kind not in "biuf":
            raise BadInput(f"{name}: {what} is of type {array.dtype}, not numbers: convert it first")
    if labels.ndim != 1 or features.ndim not in (2, 3, 4):
        raise BadInput(
            f"{name}: x_{part} has shape {features.shape} and y_{part} {labels.shape}: x must be N×D "
            "features, N×H×W or N×H×W×channels images, and y one label a sample"
        )
    if len(features) != len(labels):
        raise BadInput(
            f"{name}: x_{part} has {len(features)} samples but y_{part} {len(labels)} labels: "
            "each sample needs one label"
        )
    if features.size == 0:
        raise BadInput(f"{name}: x_{part} is empty, of shape {features.shape}: give samples with features")
    most = np.finfo(np.float32).max  # more is infinite in the federation's float32; a NaN fails every comparison
    if features.dtype.kind == "f" and not (features.min() >= -most and features.max() <= most):
        raise BadInput(f"{name}: x_{part} contains NaN or infinite values: clean the data first")
    bad = ~np.isfinite(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), dtype=bool)
    bad |= (labels < 0) | (labels != np.floor(labels))
    if bad.any():
        raise BadInput(f"{name}: y_{part} holds the label {labels[bad][0]}: labels must be whole numbers from 0 on")
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
                f"{array.dtype}: it needs a number or a word for each of the {samples} samples"
            )
        checked[key] = array
    return checked
