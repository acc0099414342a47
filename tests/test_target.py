"""What is predicted, from the values of a column."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data import Target, federate, from_arrays, from_clients, load, target_of
from fedkin.data.measure import ACCURACY, MSE
from fedkin.errors import BadInput


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        ([2, 0, 1, 2], (), [2, 0, 1, 2]),
        ([2.0, 0.0, 1.0], (), [2, 0, 1]),
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([7, 3, 7, 12], ("3", "7", "12"), [1, 0, 1, 2]),  # in the order of numbers, not of texts
        ([True, False], ("False", "True"), [1, 0]),
        (["no", "yes", "maybe"], ("maybe", "no", "yes"), [1, 2, 0]),
        (np.array(["b", "a"], dtype=object), ("a", "b"), [1, 0]),
        (np.array([b"b", b"a"]), ("a", "b"), [1, 0]),
        ([1e9, 5.0, 5.0], ("5", "1000000000"), [1, 0, 0]),
    ],
)
def test_classes_are_numbered_in_order(values: Any, names: tuple[str, ...], numbers: list[int]) -> None:
    target = target_of(values)
    assert (target.kind, target.names) == ("classes", names)
    encoded = target.encoded(values)
    assert encoded.tolist() == numbers
    assert encoded.dtype == np.int64
    assert [target.text(k) for k in range(2)] == list(names[:2] or ("0", "1"))


def test_names_do_not_depend_on_the_other_values() -> None:
    """1.0 is the class '1' in a column with 2.5 and in one without."""
    target = target_of([1.0, 2.5], "classes")
    assert target.names == ("1", "2.5")
    assert target.encoded([1.0, 1.0]).tolist() == [0, 0]


def test_fractions_are_a_regression() -> None:
    target = target_of([0.5, 1, 2])
    assert (target.kind, target.measure) == ("number", MSE)
    assert target.encoded([0.5, 1]).dtype == np.float32
    assert target_of([1, 2, 3]).measure == ACCURACY
    assert target_of([1, 2, 3], "regression").kind == "number"


def test_many_whole_numbers_are_never_classes_silently() -> None:
    """91 different values, one of which is rare: an error. All of them frequent: a warning. With a task: neither."""
    values = np.append(np.repeat(np.arange(90), 10), 90)
    with pytest.raises(BadInput, match=r"91 different whole numbers from 0 to 90.*set data.task"):
        target_of(values)
    with pytest.warns(UserWarning, match="90 different whole numbers .* taken as classes"):
        assert target_of(values[:-1]).kind == "classes"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert target_of(values, "classes").kind == "classes"
        assert target_of(values, "regression").kind == "number"
        assert target_of(np.arange(20)).kind == "classes"


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        ([0, 1, 2], "binary", r"3 different values \(0, 1, 2\): give samples of exactly two classes"),
        ([0, 1], "regresion", "did you mean 'regression'"),
        (["a", "b"], "regression", "no number to predict: use the task 'classes'"),
        ([True, False], "regression", "no number to predict"),
        (np.arange(100_000), "classes", "100,000 different values, too many"),
        ([[1, 2], [3]], "auto", "ragged"),
        ([0.5, np.nan], "auto", "holds the value nan"),
        ([2, 2], "regression", "2 throughout"),
    ],
)
def test_bad_targets(values: Any, task: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        target_of(values, task)


def test_an_unknown_class_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"y_test holds the class 'yess' \(did you mean 'yes'"):
        Target("classes", ("no", "yes")).encoded(["no", "yess"], "y_test")


def test_outputs() -> None:
    assert [Target(kind).outputs(5) for kind in ("classes", "binary", "number")] == [5, 1, 1]


X = np.arange(12.0).reshape(6, 2)


def test_a_data_set_has_the_classes_of_both_parts() -> None:
    data = from_arrays(X, ["b", "a"] * 3, X, ["c", "a"] * 3)
    assert (data.classes, data.outputs, data.target.names) == (3, 3, ("a", "b", "c"))
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0] * 3, [2, 0] * 3)
    two = from_arrays(X, [-1, 1] * 3, X, [1, 1] * 3, task="binary")
    assert (two.classes, two.outputs, two.target.kind) == (2, 1, "binary")


def test_a_target_that_is_given_decides() -> None:
    """The clients have agreed on three classes, of which these samples have two."""
    data = from_arrays(X, ["b", "c"] * 3, X, ["c"] * 6, target=Target("classes", ("a", "b", "c"), "species"))
    assert (data.classes, data.y_train.tolist(), data.target.name) == (3, [1, 2] * 3, "species")


def test_numbers_are_scaled_by_the_training_part() -> None:
    """Training values 1, 3, 1, 3, 1, 3: mean 2, deviation 1; from 1 to 3."""
    data = from_arrays(X, [1, 3] * 3, X, [0, 5] * 3, task="regression")
    assert (data.classes, data.outputs, data.y_train.tolist()) == (1, 1, [1, 3] * 3)
    by = {
        scaling: federate(data, clients=2, preprocess="none", scale_target=scaling)
        for scaling in ("none", "standardise", "minmax")
    }
    assert {name: (f.target.shift, f.target.scale) for name, f in by.items()} == {
        "none": (0, 1),
        "standardise": (2, 1),
        "minmax": (1, 2),
    }
    assert {name: (set(f.train.y.tolist()), set(f.test.y.tolist())) for name, f in by.items()} == {
        "none": ({1, 3}, {0, 5}),
        "standardise": ({-1, 1}, {-2, 3}),
        "minmax": ({0, 1}, {-0.5, 2}),
    }
    with pytest.raises(BadInput, match="no scaling 'min' of a target"):
        federate(data, clients=2, scale_target="min")


def test_clients_that_are_already_apart_agree_on_classes() -> None:
    """A client without 'c' has the same numbers as the others."""
    federation = from_clients([(X, ["a", "b"] * 3), (X, ["b", "c"] * 3)], [(X, ["c"] * 6), (X, ["a"] * 6)])
    assert federation.target.names == ("a", "b", "c")
    assert federation.train.y.tolist() == [0, 1] * 3 + [1, 2] * 3
    assert federation.outputs == 3
    number = from_clients([(X, X[:, 0] / 7)] * 2, [(X, X[:, 0] / 7)] * 2, scale_target="none")
    assert number.train.y[:6].tolist() == pytest.approx((X[:, 0] / 7).tolist())
    assert (number.classes, number.outputs, number.target.kind) == (1, 1, "number")


def test_numbers_are_divided_without_classes() -> None:
    """A federation of numbers has no class mixes: what depends on them is refused, the rest works."""
    x = np.arange(240.0).reshape(120, 2)
    data = from_arrays(x, x[:, 0] / 3, groups={"town": np.arange(120) % 4}, name="prices")
    for scheme in ("paired", "paper", "published"):
        federation = federate(data, clients=4, size_imbalance=0.1, scheme=scheme, samples=5, preprocess="none")
        values = federation.train.y * federation.target.scale + federation.target.shift
        assert values.tolist() == pytest.approx((federation.train.x[:, 0] / 3).tolist(), abs=1e-4)
    assert len(federate(data, group="town", kinds=2, validation=0.25).train) == 4
    for settings in ({"class_imbalance": 1.0}, {"clusters": 2}, {"kinds": 2, "differ": "permuted"}):
        with pytest.raises(BadInput, match="prices has numbers to predict and no classes: leave out class_imbalance"):
            federate(data, clients=4, **settings)


def test_a_file_with_a_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "marks.npz", x=X, y=np.arange(6) % 3)
    assert load(tmp_path / "marks.npz").target.kind == "classes"
    assert load(tmp_path / "marks.npz", task="regression").target.kind == "number"
    assert load("digits").target == load("digits", task="classes").target == Target()


def test_validation_samples_of_numbers_are_a_random_sample() -> None:
    """Half of the samples have the mark 5, the others marks of their own: about half of those held out have a 5.

    With a stratum for each mark, all of them would: the only one of which several are due.
    """
    marks = np.concatenate([np.full(200, 5.0), np.arange(200) + 10.5])
    pairs = [(np.zeros((400, 1)), marks)] * 2
    federation = from_clients(pairs, pairs, preprocess="none", scale_target="none").held_out(0.25)
    assert federation.validation is not None
    assert federation.validation.sizes.tolist() == [100, 100]
    assert 60 < int((federation.validation.y == 5).sum()) < 140
