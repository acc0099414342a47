"""A digest of a data set, by which a run knows its data again."""

import hashlib
from collections.abc import Iterator

import numpy as np

from fedkin.data.dataset import Array, Dataset
from fedkin.data.own_clients import OwnClients


def data_digest(dataset: Dataset | OwnClients) -> str:
    """Of all samples, labels and groups, with their types and shapes. Names of data sets and paths do not count.

    Of clients' tables, names of clients and columns count, and the order of columns does not.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name, array in _arrays(dataset):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        # Objects, such as strings of any length, have no bytes of their own.
        plain = np.asarray(array.astype(str) if array.dtype == object else array)
        digest.update(np.ascontiguousarray(plain).view(np.uint8).data)
    return digest.hexdigest()


def count_of_numbers(dataset: Dataset | OwnClients) -> int:
    """How many there are: features, labels and groups of all samples."""
    return sum(array.size for _, array in _arrays(dataset))


def _arrays(dataset: Dataset | OwnClients) -> Iterator[tuple[str, Array]]:
    return _of_clients(dataset) if isinstance(dataset, OwnClients) else _of_dataset(dataset)


def _of_dataset(dataset: Dataset) -> Iterator[tuple[str, Array]]:
    yield "x_train", dataset.x_train
    yield "y_train", dataset.y_train
    yield "x_test", dataset.x_test
    yield "y_test", dataset.y_test
    yield from ((f"train {name}", values) for name, values in sorted(dataset.groups_train.items()))
    yield from ((f"test {name}", values) for name, values in sorted(dataset.groups_test.items()))


def _of_clients(own: OwnClients) -> Iterator[tuple[str, Array]]:
    for part in [own.samples] if own.test is None else [own.samples, own.test]:
        for i, (x, y) in enumerate(zip(part.x, part.y, strict=True)):
            yield f"client {part.names[i] if part.names else i}: y", y
            if own.kinds is None:
                yield "x", x
                continue
            for name in sorted(x):
                column = x[name]
                yield f"column {name}, {column.kind}, {chr(0).join(column.words)}", column.values
