"""A digest of a data set, by which a run knows its data again."""

import hashlib

import numpy as np

from fedkin.data.sources import Dataset


def data_digest(dataset: Dataset) -> str:
    """Of all samples, labels and groups, with their types and shapes. Names and paths do not count."""
    digest = hashlib.blake2b(digest_size=12)
    arrays = {
        "x_train": dataset.x_train,
        "y_train": dataset.y_train,
        "x_test": dataset.x_test,
        "y_test": dataset.y_test,
        **{f"train {name}": values for name, values in sorted(dataset.groups_train.items())},
        **{f"test {name}": values for name, values in sorted(dataset.groups_test.items())},
    }
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        # Objects, such as strings of any length, have no bytes of their own.
        plain = np.asarray(array.astype(str) if array.dtype == object else array)
        digest.update(np.ascontiguousarray(plain).view(np.uint8).data)
    return digest.hexdigest()
