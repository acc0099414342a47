"""Data sets from the Hugging Face hub: download, check, store as an npz file."""

import io
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from rich.console import Console
from rich.progress import Progress

from fedkin.data.dataset import Array
from fedkin.errors import BadInput
from fedkin.files import write_atomically


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub, and its expected contents.

    samples   of each part, before any are dropped
    classes   samples with labels from here on are dropped (FEMNIST: the letters)
    groups    column on the hub → name of the group
    inverted  whether images are stored as 255 − x
    """

    address: str
    image: str
    label: str
    shape: tuple[int, ...]
    samples: dict[str, int]
    classes: int
    groups: dict[str, str]
    inverted: bool = False


HUB = {
    "mnist": HubDataset("ylecun/mnist", "image", "label", (28, 28), {"train": 60_000, "test": 10_000}, 10, {}),
    "fashion_mnist": HubDataset(
        "zalando-datasets/fashion_mnist",
        "image",
        "label",
        (28, 28),
        {"train": 60_000, "test": 10_000},
        10,
        {},
    ),
    "femnist": HubDataset(
        "flwrlabs/femnist",
        "image",
        "character",
        (28, 28),
        {"train": 814_277},
        10,
        {"writer_id": "writer", "hsf_id": "hsf"},
        inverted=True,
    ),
    "cifar10": HubDataset("uoft-cs/cifar10", "img", "label", (32, 32, 3), {"train": 50_000, "test": 10_000}, 10, {}),
    "cifar100": HubDataset(
        "uoft-cs/cifar100", "img", "fine_label", (32, 32, 3), {"train": 50_000, "test": 10_000}, 100, {}
    ),
}


def download(name: str, home: Path) -> Path:
    """Download a data set from the hub, check it and store it as NAME.npz in `home`."""
    hub = HUB[name]
    keys = "x_train y_train x_test y_test"
    way_out = (
        f"put {name}.npz with keys {keys} there, pass --data DIR or set FEDKIN_DATA, "
        "or install fedkin[hub] and connect to the internet"
    )
    try:
        import datasets
    except ImportError as error:
        raise BadInput(
            f"{name} is neither in {home} nor downloadable (the datasets library is missing): {way_out}"
        ) from error
    try:
        with _fail_fast():
            parts = datasets.load_dataset(hub.address)
    except Exception as error:  # the library raises errors of many kinds, and all of them mean that there are no data
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:80]
        raise BadInput(f"{name} is neither in {home} nor downloadable ({reason}): {way_out}") from error
    for part, samples in hub.samples.items():
        if part in parts and len(parts[part]) != samples:
            raise BadInput(
                f"{hub.address} holds {len(parts[part]):,} images in its part '{part}', not {samples:,}, so "
                f"the download is incomplete or the data set has changed: {way_out}"
            )
    return _store(from_hub(name, parts), home / f"{name}.npz")


@contextmanager
def _fail_fast() -> Iterator[None]:
    """Without a network, set the hub library to offline mode, in which it uses its cache or fails at once.

    Otherwise it retries for half a minute. Its offline mode is the constant that the environment variable
    HF_HUB_OFFLINE sets. Behind a proxy a direct connection proves nothing, so nothing is changed there.
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


def from_hub(name: str, parts: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of the npz file, from a `datasets.DatasetDict`.

    Of FEMNIST only the digits are used, as 255 − x: white on black like MNIST. It has no testing part on the hub.
    """
    hub, instead = HUB[name], f"put {name}.npz into the data directory instead"
    arrays: dict[str, Array] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for part in hub.samples:
            if part not in parts:
                raise BadInput(f"{hub.address} has no part '{part}' on the hub, so {name} cannot be built: {instead}")
            table = parts[part]
            wanted = {hub.image, hub.label, *hub.groups}
            if missing := wanted - set(table.column_names):
                raise BadInput(
                    f"{hub.address} has no column '{min(missing)}' on the hub, so {name} cannot be built: {instead}"
                )
            labels = np.asarray(table[hub.label][:])
            if hub.inverted:
                table = table.select(np.flatnonzero(labels < hub.classes))
                labels = labels[labels < hub.classes]
            if not ((labels >= 0) & (labels < hub.classes)).all():
                raise BadInput(f"{hub.address} holds labels outside 0 to {hub.classes - 1}: {instead}")
            x = np.empty((len(table), *hub.shape), dtype=np.uint8)
            bar = progress.add_task(f"{name}: {part} images", total=len(table))
            row = 0
            for batch in table.select_columns([hub.image]).iter(batch_size=1000):
                for image in batch[hub.image]:
                    plain = np.asarray(image.convert("L" if len(hub.shape) == 2 else "RGB"))
                    if plain.shape != hub.shape:
                        raise BadInput(
                            f"{hub.address} holds an image of shape {plain.shape}, not {hub.shape}, so {name} "
                            f"cannot be built: {instead}"
                        )
                    x[row] = plain
                    row += 1
                progress.update(bar, completed=row)
            arrays[f"x_{part}"] = 255 - x if hub.inverted else x
            arrays[f"y_{part}"] = labels.astype(np.uint8)
            for column, group in hub.groups.items():
                arrays[f"{group}_{part}"] = np.asarray(table[column][:])
    return arrays


def _store(arrays: Mapping[str, Any], path: Path) -> Path:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror or error}): choose another directory with --data or FEDKIN_DATA"
        ) from error
    return path
