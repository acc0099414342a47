"""Batches of local training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.algorithms.local import Local
from fedkin.errors import BadInput


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_epochs_by_hand() -> None:
    batches = Local(epochs=2, batch_size=3, order="fixed").batches(7, rng())
    assert [b.tolist() for b in batches] == [[0, 1, 2], [3, 4, 5], [6]] * 2


def test_steps_by_hand() -> None:
    """Algorithm 1: the samples are divided into E batches, each used once; at most one batch per sample."""
    assert [b.tolist() for b in Local(steps=3, order="fixed").batches(7, rng())] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [b.tolist() for b in Local(steps=3, order="fixed").batches(2, rng())] == [[0], [1]]


def test_shuffled_in_each_epoch() -> None:
    first, second = Local(epochs=2, batch_size=None, order="shuffled").batches(50, rng())
    assert sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second)


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 50),
    st.integers(1, 30),
    st.sampled_from(["fixed", "shuffled"]),
)
def test_most_steps_are_the_first_of_all(samples: int, epochs: int, batch: int, most: int, order: str) -> None:
    """A limit takes the first batches of the same round, whatever the order."""
    whole = Local(epochs=epochs, batch_size=batch, order=order)
    limited = Local(epochs=epochs, batch_size=batch, order=order, most_steps=most)
    every, first = whole.batches(samples, rng()), limited.batches(samples, rng())
    assert len(first) == limited.count(samples) == min(most, len(every))
    assert [b.tolist() for b in first] == [b.tolist() for b in every[:most]]
    used = sum(map(len, first)) / samples
    assert (
        used <= limited.passes(samples) <= used + epochs * batch / samples
    )  # the last batch of an epoch may be smaller


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 50), st.sampled_from(["fixed", "shuffled"]), st.booleans())
def test_every_sample_once_per_epoch(samples: int, passes: int, batch: int, order: str, by_steps: bool) -> None:
    local = Local(steps=passes, order=order) if by_steps else Local(epochs=passes, batch_size=batch, order=order)
    batches = local.batches(samples, rng())
    assert all(len(b) for b in batches)
    assert len(batches) == local.count(samples)
    assert max(map(len, batches)) == local.width(samples)
    counts = np.bincount(np.concatenate(batches), minlength=samples)
    assert (counts == (1 if by_steps else passes)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": -1},
        {"steps": 0},
        {"most_steps": 0},
        {"order": "random"},
        {"l2": -1.0},
        {"clip": 0.0},
    ],
)
def test_bad_input(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Local(**wrong)  # type: ignore[arg-type]
