"""Data sets: what is read, how it is checked and scaled, and what a user is told when it cannot be used."""

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import datasets as hub
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedkin.data.sources import (
    NAMES,
    Dataset,
    from_arrays,
    from_hub,
    load,
    pixels,
    preprocessing,
    sample_shape,
    stream,
)
from fedkin.errors import BadInput


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's files, and none leaves any."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)


def small(samples: int = 10) -> dict[str, Any]:
    """Distinct images of 2 × 3 with labels 0 1 2 0 1 2 …"""
    x = np.arange(samples * 6, dtype=np.uint8).reshape(samples, 2, 3)
    return {"x_train": x, "y_train": np.arange(samples) % 3, "x_test": x[:4] + 1, "y_test": np.arange(4) % 2}


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def same(one: Dataset, other: Dataset) -> bool:
    return all(
        np.array_equal(getattr(one, part), getattr(other, part)) for part in ("x_train", "y_train", "x_test", "y_test")
    )


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
    assert from_arrays(x, [0, 1, 1], x, [0, 0, 5]).classes == 6


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


# --- the hub ---


def png(image: np.ndarray[Any, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="png")
    return {"bytes": file.getvalue(), "path": None}


def table(images: list[Any], image: str = "image", label: str = "label", classes: int = 10, **columns: Any) -> Any:
    """A part as it lies on the hub; labels 0 1 … classes − 1 0 1 … unless given."""
    labels = columns.pop(label, [i % classes for i in range(len(images))])
    features = hub.Features(
        {
            image: hub.Image(),
            label: hub.ClassLabel(num_classes=max(classes, max(labels) + 1)),
            **{key: hub.Value("string" if isinstance(of[0], str) else "int64") for key, of in columns.items()},
        }
    )
    return hub.Dataset.from_dict({image: images, label: labels, **columns}, features=features)


def noise(samples: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (samples, *shape), dtype=np.uint8)


def test_hub_images_become_arrays() -> None:
    x = noise(6, 28, 28)
    parts = hub.DatasetDict(train=table(list(x)), test=table(list(x[:2])))
    arrays = from_hub("mnist", parts)
    assert set(arrays) == {"x_train", "y_train", "x_test", "y_test"}
    assert np.array_equal(arrays["x_train"], x)
    assert np.array_equal(arrays["x_test"], x[:2])
    assert arrays["y_train"].tolist() == [0, 1, 2, 3, 4, 5]


def test_hub_colours_keep_their_place() -> None:
    x = noise(3, 32, 32, 3)
    part = table(list(x), image="img", label="fine_label", classes=100, coarse_label=[1, 1, 1])
    arrays = from_hub("cifar100", hub.DatasetDict(train=part, test=part))
    assert np.array_equal(arrays["x_train"], x)
    assert arrays["y_test"].tolist() == [0, 1, 2]


def test_hub_femnist_keeps_digits_inverted_with_their_writers() -> None:
    x = noise(4, 28, 28)
    part = table(
        list(x),
        label="character",
        classes=62,
        character=[3, 10, 9, 61],
        writer_id=["f0_1", "f0_1", "f0_2", "f0_3"],
        hsf_id=[0, 0, 4, 7],
    )
    arrays = from_hub("femnist", hub.DatasetDict(train=part))
    assert set(arrays) == {"x_train", "y_train", "writer_train", "hsf_train"}
    assert np.array_equal(arrays["x_train"], 255 - x[[0, 2]])
    assert arrays["y_train"].tolist() == [3, 9]
    assert arrays["writer_train"].tolist() == ["f0_1", "f0_2"]
    assert arrays["hsf_train"].tolist() == [0, 4]


def test_hub_surprises_are_told() -> None:
    good = table(list(noise(3, 28, 28)))
    with pytest.raises(BadInput, match="has no part 'test'"):
        from_hub("mnist", hub.DatasetDict(train=good))
    with pytest.raises(BadInput, match="has no column 'label'"):
        from_hub("mnist", hub.DatasetDict(train=good.rename_column("label", "digit"), test=good))
    with pytest.raises(BadInput, match=r"shape \(27, 28\), not \(28, 28\)"):
        from_hub("mnist", hub.DatasetDict(train=table(list(noise(3, 27, 28))), test=good))
    with pytest.raises(BadInput, match="labels outside 0 to 9"):
        from_hub("mnist", hub.DatasetDict(train=table(list(noise(12, 28, 28)), classes=12), test=good))


@pytest.fixture(scope="module")
def whole_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of MNIST's sizes, as `datasets` stores it: ten images, again and again."""
    images = [png(image) for image in noise(10, 28, 28)]
    path = tmp_path_factory.mktemp("hub") / "mnist"
    hub.DatasetDict(train=table(images * 6000), test=table(images * 1000)).save_to_disk(str(path))
    return path


def test_download_is_checked_stored_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_mnist: Path
) -> None:
    asked: list[str] = []

    def load_dataset(address: str) -> Any:
        asked.append(address)
        return hub.load_from_disk(str(whole_mnist))

    monkeypatch.setattr(hub, "load_dataset", load_dataset)
    first = load("mnist", tmp_path / "data")
    assert first.x_train.shape == (60_000, 28, 28)
    assert first.x_test.shape == (10_000, 28, 28)
    assert np.array_equal(first.x_train[59_990:], noise(10, 28, 28))
    assert os.listdir(tmp_path / "data") == ["mnist.npz"]  # and no temporary file
    assert same(first, load("mnist", tmp_path / "data"))
    assert asked == ["ylecun/mnist"]


def test_incomplete_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = table(list(noise(3, 28, 28)))
    monkeypatch.setattr(hub, "load_dataset", lambda _: hub.DatasetDict(train=part, test=part))
    with pytest.raises(BadInput, match="holds 3 images in its part 'train', not 60,000"):
        load("mnist", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_mnist: Path) -> None:
    def full(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "load_dataset", lambda _: hub.load_from_disk(str(whole_mnist)))
    monkeypatch.setattr("fedkin.data.sources.from_hub", lambda *_: small())
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(BadInput, match=r"cannot be written \(No space left on device\)"):
        load("mnist", tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []


def test_without_a_network_the_user_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on port 1 of this host: the hub's real code path, refused instead of unreachable."""
    from huggingface_hub import constants

    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    start = time.perf_counter()
    with pytest.raises(BadInput) as told:
        load("cifar10", tmp_path)
    assert time.perf_counter() - start < 8
    for words in (
        f"cifar10 is neither in {tmp_path} nor",
        "put cifar10.npz",
        "--data",
        "FEDKIN_DATA",
        "fedkin[hub]",
    ):
        assert words in str(told.value)
    assert "\n" not in str(told.value)
    assert not constants.HF_HUB_OFFLINE


def test_without_the_extra_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"the datasets library is missing.*install fedkin\[hub\]"):
        load("mnist", tmp_path)


# --- bad input ---


def test_unknown_source_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no data set 'minst'.*did you mean 'mnist'"):
        load("minst")
    with pytest.raises(BadInput, match="choose from: " + ", ".join(sorted(NAMES))):
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
    with pytest.raises(BadInput, match=r"table\.npz is damaged or no npz file: write it with numpy\.savez$"):
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
        (X, Y.astype(str), "y_train is of type <U"),
        (np.where(X == 3, np.nan, X), Y, "NaN or infinite"),
        (np.where(X == 3, np.inf, X), Y, "NaN or infinite"),
        (np.where(X == 3, -np.inf, X), Y, "NaN or infinite"),
        (np.where(X == 3, 1e300, X), Y, "NaN or infinite"),  # infinite as float32
        (X, Y - 1, "the label -1"),
        (X, Y + 0.5, "the label 0.5"),
        (X, np.where(Y == 1, np.nan, Y), "the label nan"),
        (X, np.where(Y == 1, np.inf, Y), "the label inf"),
        (X, Y + 10**9, "the label 1000000002"),
        (X[:0], Y[:0], "x_train is empty"),
        (X[:, :0], Y, "x_train is empty"),
        (X, np.full(6, 3), "all training labels are 3"),
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
    with pytest.raises(BadInput, match="y_test holds the label -1"):
        from_arrays(X, Y, X, Y - 1)
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
