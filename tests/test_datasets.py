"""Data sets: what is read, how it is checked and scaled, and the messages for data that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.data import SOURCES, from_arrays, load, pixels, preprocessing, sample_shape, stream
from fedkin.errors import BadInput
from small_data import same, save, small

pytestmark = pytest.mark.usefixtures("own_cache")


# --- what comes with the package ---


def test_digits_are_the_uci_digits() -> None:
    """1,797 images, a fifth (359) for testing; the class sizes are those of the original's test part."""
    data = load("digits")
    assert (data.x_train.shape, data.x_test.shape) == ((1438, 8, 8), (359, 8, 8))
    counts = np.bincount(data.y_train) + np.bincount(data.y_test)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    raw = pixels(np.concatenate([data.x_train, data.x_test]))
    assert (raw.min(), raw.max()) == (0, 1)
    assert set(np.unique(raw * 16)) == set(range(17))
    assert data.classes == 10


def test_digits_match_their_source() -> None:
    """Every digit of scikit-learn's copy is there, once (scikit-learn is for this test only)."""
    source = pytest.importorskip("sklearn.datasets").load_digits()
    data = load()
    x = np.concatenate([data.x_train, data.x_test]).reshape(1797, 64) * 16
    y = np.concatenate([data.y_train, data.y_test])
    ours = sorted(map(tuple, np.column_stack([x, y]).astype(int).tolist()))
    assert ours == sorted(map(tuple, np.column_stack([source.data, source.target]).astype(int).tolist()))


# --- npz files ---


def test_npz_round_trip(tmp_path: Path) -> None:
    arrays = small()
    groups = {
        "writer_train": np.arange(10) // 2,
        "writer_test": np.array([7, 7, 8, 8]),
        "hsf_train": np.ones(10),
    }
    data = load(save(tmp_path / "mine.npz", **arrays, **groups, mean_train=np.zeros(6)))
    assert data.name == "mine"
    for key, array in arrays.items():
        assert np.array_equal(getattr(data, key), array)
    assert set(data.groups_train) == {"writer", "hsf"}
    assert set(data.groups_test) == {"writer"}
    assert np.array_equal(data.groups_train["writer"], groups["writer_train"])
    assert np.array_equal(data.groups_test["writer"], groups["writer_test"])
    assert data.classes == 3


def test_classes_count_both_parts() -> None:
    x = np.zeros((3, 2))
    assert from_arrays(x, [0, 1, 1], x, [0, 0, 2]).classes == 3


@pytest.mark.parametrize("keys", [("x", "y", "writer"), ("x_train", "y_train", "writer_train")])
def test_without_a_testing_part_a_fifth_is_split_off(tmp_path: Path, keys: tuple[str, str, str]) -> None:
    """Sample j has feature j, label j mod 3 and writer 100 + j, which must stay together."""
    j = np.arange(50)
    path = save(tmp_path / "whole.npz", **dict(zip(keys, (j[:, None] * 1.0, j % 3, 100 + j), strict=True)))
    data = load(path, seed=4)
    assert (len(data.x_train), len(data.x_test)) == (40, 10)
    assert sorted(np.concatenate([data.x_train, data.x_test]).ravel().tolist()) == j.tolist()
    for x, y, groups in (
        (data.x_train, data.y_train, data.groups_train),
        (data.x_test, data.y_test, data.groups_test),
    ):
        assert np.array_equal(x.ravel() % 3, y)
        assert np.array_equal(x.ravel() + 100, groups["writer"])
    assert same(data, load(path, seed=4))
    assert not same(data, load(path, seed=5))


def test_two_samples_give_one_for_each_part() -> None:
    """Each part gets one, so the training part has a single class: that is what is said."""
    with pytest.raises(BadInput, match="all training labels are"):
        from_arrays([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("name", ["femnist", "femnist_part"])
def test_femnist_is_made_white_on_black(tmp_path: Path, name: str) -> None:
    """Mean 200 is a white background: 255 − 200 = 55. Mean 55 is black already and stays."""
    x, y = np.full((10, 28, 28), 200, dtype=np.uint8), np.arange(10) % 2
    test = np.full((4, 28, 28), 90, dtype=np.uint8)
    white = load(save(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=test, y_test=y[:4]))
    assert np.unique(white.x_train).tolist() == [55]
    assert np.unique(white.x_test).tolist() == [165]  # the training part decides for both
    black = load(save(tmp_path / f"{name}.npz", x_train=255 - x, y_train=y, x_test=255 - test, y_test=y[:4]))
    assert same(white, black)
    other = load(save(tmp_path / "other.npz", x_train=x, y_train=y, x_test=test, y_test=y[:4]))
    assert np.unique(other.x_train).tolist() == [200]


# --- where a named data set is looked for ---


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory given, else FEDKIN_DATA; then the cache. The number of samples tells which was read."""
    save(tmp_path / "cache" / "fedkin" / "mnist.npz", **small(11))
    assert len(load("mnist").x_train) == 11
    save(tmp_path / "env" / "mnist.npz", **small(12))
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "env"))
    assert len(load("mnist").x_train) == 12
    save(tmp_path / "given" / "mnist.npz", **small(13))
    assert len(load("mnist", tmp_path / "given").x_train) == 13
    assert len(load("mnist", tmp_path / "empty").x_train) == 11


# --- bad input ---


def test_unknown_source_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no data set 'minst'.*did you mean 'mnist'"):
        load("minst")
    with pytest.raises(BadInput, match="choose from: " + ", ".join(sorted(SOURCES))):
        load("zzz")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no file .*nowhere\.npz"):
        load(tmp_path / "nowhere.npz")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
def test_damaged_files_are_refused_or_read(tmp_path: Path, where: float, flip: int, cut: bool) -> None:
    """A flipped byte may hit one that does not matter (a date, say); no error but BadInput may come out."""
    content = bytearray(save(tmp_path / "whole.npz", **small()).read_bytes())
    place = int(where * len(content))
    if cut:
        del content[place:]
    else:
        content[place] ^= flip
    (tmp_path / "damaged.npz").write_bytes(content)
    try:
        load(tmp_path / "damaged.npz")
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017 - not raising is fine too
    else:
        assert not cut


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(BadInput, match="single array"):
        load(tmp_path / "array.npz")


def test_something_else_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "table.npz").write_text("x,y\n1,2\n")
    with pytest.raises(BadInput, match=r"table\.npz is damaged or not an npz file: write it with numpy\.savez$"):
        load(tmp_path / "table.npz")


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = save(tmp_path / "objects.npz", x=np.array([[{}], [{}]], dtype=object), y=[0, 1])
    with pytest.raises(BadInput, match="Python objects"):
        load(path)


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ("y_train x_test y_test", "x_train"),
        ("x_train x_test y_test", "y_train"),
        ("x_train y_train y_test", "x_test"),
        ("x_train y_train x_test", "y_test"),
        ("x_test y_test", "x_train"),
    ],
)
def test_missing_keys(tmp_path: Path, keys: str, missing: str) -> None:
    arrays = small()
    path = save(tmp_path / "part.npz", **{key: arrays[key] for key in keys.split()})
    with pytest.raises(BadInput, match=f"has no array '{missing}'"):
        load(path)


X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X[:5], Y, "5 samples but y_train 6 labels"),
        (X.astype(str), Y, "x_train is of type <U"),
        (X.astype(object), Y, "x_train is of type object"),
        (X.astype(complex), Y, "x_train is of type complex"),
        (X, Y.astype(complex), "y_train is of type complex"),
        (X, [None, *Y[1:]], "y_train is of type object"),
        (np.where(X == 3, np.nan, X), Y, "NaN or infinite"),
        (np.where(X == 3, np.inf, X), Y, "NaN or infinite"),
        (np.where(X == 3, -np.inf, X), Y, "NaN or infinite"),
        (np.where(X == 3, 1e300, X), Y, "NaN or infinite"),  # infinite as float32
        (X, np.where(Y == 1, np.nan, Y), "y holds the value nan"),
        (X, np.where(Y == 1, np.inf, Y), "y holds the value inf"),
        (X, np.where(Y == 1, 1e300, Y + 0.5), "y holds the value 1e.300"),  # infinite as float32
        (X[:0], Y[:0], "x_train is empty"),
        (X[:, :0], Y, "x_train is empty"),
        (X, np.full(6, 3), r"y has 1 different value \(3\): give samples of at least two"),
        (X, np.full(6, 3.5), "y is 3.5 throughout"),
        (X[:, 0], Y, "has shape"),
        (X, Y[:, None], "has shape"),
        ([[1.0], [1.0, 2.0]], [0, 1], "ragged"),
        (X[:1], Y[:1], "a single sample"),
    ],
)
def test_bad_arrays(x: Any, y: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        from_arrays(x, y)


def test_bad_testing_part() -> None:
    with pytest.raises(BadInput, match="y_train is int64 but y_test <U"):
        from_arrays(X, Y, X, Y.astype(str))
    with pytest.raises(BadInput, match="all training labels are 1: give samples of at least two classes"):
        from_arrays(X, [1] * 6, X, Y)
    with pytest.raises(BadInput, match=r"all training labels are 0.5: give samples with different values"):
        from_arrays(X, [0.5] * 6, X, Y)
    with pytest.raises(BadInput, match="give both"):
        from_arrays(X, Y, X)
    with pytest.raises(BadInput, match=r"shape \(2,\) but a testing sample \(1,\)"):
        from_arrays(X, Y, X[:, :1], Y)
    with pytest.raises(BadInput, match="x_train is uint8 but x_test float64"):
        from_arrays(X.astype(np.uint8), Y, X, Y)


def test_bad_groups() -> None:
    with pytest.raises(BadInput, match=r"group 'writer' of the training part has shape \(5,\)"):
        from_arrays(X, Y, groups={"writer": np.arange(5)})
    with pytest.raises(BadInput, match="group 'writer' of the testing part"):
        from_arrays(X, Y, X, Y, groups_test={"writer": np.array([None] * 6)})
    with pytest.raises(BadInput, match="without x_test"):
        from_arrays(X, Y, groups_test={"writer": Y})


def test_negative_seed() -> None:
    with pytest.raises(BadInput, match="the seed is -1"):
        load("digits", seed=-1)


def test_whole_numbers_stored_as_floats_are_labels() -> None:
    data = from_arrays(X, Y.astype(float), X, Y)
    assert data.y_train.dtype == np.int64
    assert data.y_train.tolist() == Y.tolist()


# --- features ---


def test_pixels_by_hand() -> None:
    """One image of 1 × 2 pixels in three colours, (r g b)(r g b): reds first, then greens, then blues."""
    image = np.array([[[[0, 51, 102], [153, 204, 255]]]], dtype=np.uint8)
    assert pixels(image).tolist() == [pytest.approx([0, 0.6, 0.2, 0.8, 0.4, 1])]
    assert sample_shape(image) == (3, 1, 2)
    assert pixels(image.astype(float)).tolist() == [[0, 153, 51, 204, 102, 255]]
    grey = np.array([[[0, 255], [51, 0]]], dtype=np.uint8)
    assert pixels(grey).tolist() == [pytest.approx([0, 1, 0.2, 0])]
    assert sample_shape(grey) == (1, 2, 2)
    features = np.array([[-2.5, 7.0]])
    assert pixels(features).tolist() == [[-2.5, 7.0]]
    assert sample_shape(features) == (2,)
    assert pixels(features).dtype == pixels(image).dtype == np.float32


def test_preprocessing_by_hand() -> None:
    """Feature 0 is 1, 3: mean 2, deviation 1, 1 is constant; 2 is 0, 1: mean and deviation ½."""
    raw = np.array([[1, 0.1, 0], [3, 0.1, 1]], dtype=np.float32)
    shift, scale = preprocessing("standardise", raw)
    assert shift.tolist() == pytest.approx([2, 0.1, 0.5])
    assert scale.tolist() == [1, 1, 0.5]
    assert [part.tolist() for part in preprocessing("half", raw)] == [[0.5] * 3, [0.5] * 3]
    assert [part.tolist() for part in preprocessing("none", raw)] == [[0] * 3, [1] * 3]
    with pytest.raises(BadInput, match="did you mean 'standardise'"):
        preprocessing("standardize", raw)


def test_standardised_features_have_mean_0_and_deviation_1() -> None:
    """More rows than a block of the running sum; the middle feature is constant."""
    raw = np.random.default_rng(0).gamma(2, size=(10_000, 3)).astype(np.float32)
    raw[:, 1] = 0.1
    shift, scale = preprocessing("standardise", raw)
    x = (raw - shift) / scale
    assert x.mean(axis=0) == pytest.approx([0, 0, 0], abs=1e-4)
    assert x.std(axis=0) == pytest.approx([1, 0, 1], abs=1e-4)
    assert scale[1] == 1


def test_streams_are_fixed_and_apart() -> None:
    draws = [stream(seed, purpose).random() for seed in (0, 1) for purpose in ("training", "testing")]
    assert len(set(draws)) == 4
    assert stream(0, "training").random() == draws[0]
