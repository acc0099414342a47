"""A federation from a data set and the samples of each client: ordered by client, and preprocessed."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedkin.data.dataset import Array, Dataset
from fedkin.data.features import chosen_preprocessing, is_whole, pixels, preprocessing, sample_shape
from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.types import Integers

Parts = tuple[tuple[str, ...], list[Integers]]  # the clients' names, or none, and the samples of each


def assembled(
    dataset: Dataset,
    train: Parts,
    test: Parts,
    preprocess: str,
    scale_target: str,
    *,
    paired: bool,
    validation: Parts | None = None,
) -> Federation:
    """The federation of these clients: `train` and `validation` are samples of the training part, `test` of the testing
    part. Preprocessing is that of the training samples.
    """
    kind = chosen_preprocessing(preprocess, dataset.x_train, dataset.x_test)
    raw_train = pixels(dataset.x_train[np.concatenate(train[1])])
    shift, scale = preprocessing(kind, raw_train)
    target = dataset.target.scaled(dataset.y_train[np.concatenate(train[1])], scale_target)

    def clients(raw: NDArray[np.float32], y: Array, parts: Parts) -> Clients:
        raw -= shift  # in place: a copy of the training part can be the largest array in memory
        raw /= scale
        sizes = np.array([len(part) for part in parts[1]])
        y = y[np.concatenate(parts[1])]
        y = target.encoded(y) if target.is_number else y
        return from_rows(torch.from_numpy(raw), torch.from_numpy(y), sizes, parts[0])

    def held_out() -> Clients | None:
        if validation is None:
            return None
        return clients(pixels(dataset.x_train[np.concatenate(validation[1])]), dataset.y_train, validation)

    return Federation(
        train=clients(raw_train, dataset.y_train, train),
        test=clients(pixels(dataset.x_test[np.concatenate(test[1])]), dataset.y_test, test),
        classes=dataset.classes,
        shape=sample_shape(dataset.x_train),
        shift=torch.from_numpy(shift),
        scale=torch.from_numpy(scale),
        name=dataset.name,
        paired=paired,
        validation=held_out(),
        target=target,
        whole=is_whole(dataset.x_train),
    )
