"""Divisions of published code."""

from pathlib import Path

import numpy as np
import pytest

from fedkin.errors import BadInput
from fedkin.paper.divisions import pfedme_clients, write_division
from fedkin.paper.reproduce import reproduce
from fedkin.types import Integers

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)  # digits of each class, both parts


def test_sizes_are_the_published_ones() -> None:
    """With 75 % for training, the publication has clients of 1,165 to 3,834 samples."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST))
    parts = pfedme_clients(y)
    training = [int(0.75 * len(part)) for part in parts]
    assert (len(parts), min(training), max(training)) == (20, 1165, 3834)
    assert len(np.unique(np.concatenate(parts))) == 23537
    for client, part in enumerate(parts):
        assert set(y[part]) == {client % 10, (client + 1) % 10}
        assert len(set(part)) == len(part)


def test_clients_of_a_class_have_its_first_samples() -> None:
    """Two classes of 12 at four clients, each with both: 4 clients of a class, with ⌊12/5⌋ = 2 to 5 in the first draw.

    The first client of a class begins at its first sample, the others at its second.
    """
    y = np.array([0, 1] * 12)
    parts = pfedme_clients(y, clients=4)
    for label in (0, 1):
        rows = np.flatnonzero(y == label)
        own = [part[y[part] == label] for part in parts]
        assert 2 <= len(own[0]) < 6
        for client, mine in enumerate(own):
            start = min(client, 1)
            np.testing.assert_array_equal(mine, rows[start : start + len(mine)])


def test_the_file_has_the_samples_of_every_client(tmp_path: Path) -> None:
    path = write_division("pfedme", "digits", None, tmp_path)
    with np.load(path) as file:
        x, y, client = file["x"], file["y"], file["client"]
    parts = pfedme_clients_of_digits()
    assert len(x) == len(y) == len(client) == sum(map(len, parts))
    assert np.bincount(client).tolist() == [len(part) for part in parts]
    with pytest.raises(BadInput, match="there is no division 'other': choose one of pfedme"):
        write_division("other", "digits", None, tmp_path)


def pfedme_clients_of_digits() -> list[Integers]:
    from fedkin import load

    digits = load("digits")
    return pfedme_clients(np.concatenate([digits.y_train, digits.y_test]))


def test_a_reproduction_uses_them(tmp_path: Path) -> None:
    output = reproduce("pfedme", quick=True, out=tmp_path, only=["pfedme-global"], overrides=["rounds=5", "seed=0"])
    assert (tmp_path / "quick" / "digits-pfedme-clients.npz").exists()
    assert str(output.tables[0].rows[0][0]) == "global model"
