"""Sources of data sets: by name, or from an npz file.

`digits` comes with the package: 1,797 handwritten digits of 8 × 8 pixels with values 0 to 16. Source:
E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), UCI Machine Learning Repository,
licence CC BY 4.0 (the test part of the original, as scikit-learn distributes it). The other named data sets
are read from a directory or downloaded once.
"""

import os
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.dataset import Array, Dataset, from_arrays
from fedkin.data.hub import HUB, download
from fedkin.errors import BadInput, nearest

__all__ = ["SOURCES", "Dataset", "from_arrays", "load"]

SOURCES = ("digits", *HUB)


def load(
    source: str | Path = "digits",
    data_dir: Path | None = None,
    *,
    seed: int = 0,
    task: str = "auto",
    test: float = 0.2,
    within: str | None = None,
    groups: int = 0,
    own_test: bool = False,
) -> Dataset:
    """A data set from an npz file, or by name: `digits mnist fashion_mnist femnist cifar10 cifar100`.

    A named data set is read from NAME.npz in `data_dir` (default: the environment variable FEDKIN_DATA) or in the
    user's cache. If it is in neither, it is downloaded from the Hugging Face hub and stored as NAME.npz.

    An npz file holds `x_train y_train x_test y_test`. Other arrays `NAME_train` (and `NAME_test`) with one
    entry per sample are groups. A file without a testing part (`x y`, or only `x_train y_train`) is split
    80:20, in the same way for the same seed. Images in files whose name begins with femnist are inverted if
    their background is white, to match MNIST.

    task          what `y` is: `classes`, `binary`, `regression`, or `auto`, which decides by its values
    test, within  the share of the testing part that is split off, and the group within which; see `from_arrays`
    groups        only the samples of so many values of this group, the first ones in their order (0: all)
    own_test      leave the file's testing part out and split one off from the training part, as if there were none
    """
    part: dict[str, Any] = {"seed": seed, "test": test, "within": within, "groups": groups, "own_test": own_test}
    if str(source).lower().endswith(".npz"):
        path = expanded(Path(source))
        if not path.exists():
            raise BadInput(f"there is no file {path}: give the path of an npz file")
        return _from_npz(path, path.stem, task=task, **part)
    name = str(source)
    if name in SOURCES and task == "auto":
        task = "classes"
    if name == "digits":
        with resources.as_file(resources.files("fedkin") / "data" / "digits.npz") as path:
            arrays = read_npz(path)
        x = arrays["x"].astype(np.float32) / 16
        return from_arrays(x, arrays["y"], name=name, task=task, seed=seed, test=test, within=within)
    cache = _cache_dir()
    if data_dir is None:
        data_dir = Path(given) if (given := os.environ.get("FEDKIN_DATA")) else cache
    home = expanded(Path(data_dir))
    for folder in (home, cache):
        if (path := folder / f"{name}.npz").exists():
            return _from_npz(path, name, task=task, **part)
    if name not in HUB:
        raise BadInput(
            f"there is no data set '{name}'{nearest(name, SOURCES)}: give a name, the path of an npz, CSV or Parquet "
            "file, or a folder with a file for each client"
        )
    return _from_npz(download(name, home), name, task=task, **part)


def _cache_dir() -> Path:
    return expanded(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "fedkin"


def expanded(path: Path) -> Path:
    """A path with the home directory for `~`."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise BadInput(f"the home directory in {path} is unknown: give the whole path") from None


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file."""
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise BadInput(f"{path} holds a single array, not an npz archive: write it with numpy.savez")
        with file:
            arrays = {key: file[key] for key in file.files}
    except BadInput:
        raise
    except Exception as error:  # the readers of zip, deflate and header each raise errors of their own
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{path} is damaged or not an npz file: write it with numpy.savez") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path} cannot be read ({reason}): it is damaged or holds Python objects; write it again with numpy.savez"
        ) from error
    return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}


def _from_npz(
    path: Path, name: str, *, within: str | None = None, groups: int = 0, own_test: bool = False, **how: Any
) -> Dataset:
    arrays = read_npz(path)
    if "x_train" not in arrays and "x" in arrays:
        arrays = {key if key.endswith("_train") else f"{key}_train": array for key, array in arrays.items()}
    if own_test:
        arrays = {key: array for key, array in arrays.items() if not key.endswith("_test")}
    for part in ("train", "test"):
        present = {key for key in (f"x_{part}", f"y_{part}") if key in arrays}
        if len(present) == 1 or (part == "train" and not present):
            missing = min({f"x_{part}", f"y_{part}"} - present)
            raise BadInput(
                f"{path} has no array '{missing}': give x_train y_train and, for a testing part, "
                "x_test y_test (or x y alone)"
            )

    def origins(part: str) -> dict[str, Array]:
        end = f"_{part}"
        length = arrays[f"y{end}"].shape if f"y{end}" in arrays else None
        return {
            key.removesuffix(end): array
            for key, array in arrays.items()
            if key.endswith(end) and key not in (f"x{end}", f"y{end}") and array.shape == length
        }

    if groups and within in origins("train"):
        arrays = _of_first_groups(arrays, within, groups, name)
    x, x_test = arrays["x_train"], arrays.get("x_test")
    if name.startswith("femnist") and x.dtype == np.uint8 and x.size and x.mean() > 127:
        x, x_test = 255 - x, None if x_test is None else 255 - x_test
    return from_arrays(
        x,
        arrays["y_train"],
        x_test,
        arrays.get("y_test"),
        groups=origins("train"),
        groups_test=origins("test"),
        name=name,
        within=within,
        **how,
    )


def _of_first_groups(arrays: dict[str, Array], key: str, count: int, name: str) -> dict[str, Array]:
    """The samples of the first values of a group; a testing part that has none of its values stays as it is."""
    values = np.unique(arrays[f"{key}_train"])
    if count > len(values):
        raise BadInput(f"{name} has {len(values):,} groups by {key}: lower partition.groups = {count}, or leave it out")
    kept = dict(arrays)
    for end in ("_train", "_test"):
        if (own := arrays.get(f"{key}{end}")) is None or not np.isin(own.astype(str), values.astype(str)).any():
            continue
        rows = np.isin(own.astype(str), values[:count].astype(str))
        kept |= {of: array[rows] for of, array in arrays.items() if of.endswith(end) and len(array) == len(own)}
    return kept
