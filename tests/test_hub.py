"""Data sets from the hub: conversion, checks, storage, and the messages when there is no network."""

import io
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets as hub
import numpy as np
import pytest
from PIL import Image

from fedkin.data import load
from fedkin.data.hub import HUB, from_hub
from fedkin.errors import BadInput
from small_data import same, small

pytestmark = pytest.mark.usefixtures("own_cache")


def png(image: np.ndarray[Any, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="png")
    return {"bytes": file.getvalue(), "path": None}


def table(images: list[Any], image: str = "image", label: str = "label", classes: int = 10, **columns: Any) -> Any:
    """A part as stored on the hub; labels 0 1 … classes − 1 0 1 … unless given."""
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


def test_unexpected_hub_data_are_reported() -> None:
    good = table(list(noise(3, 28, 28)))
    with pytest.raises(BadInput, match="has no part 'test'"):
        from_hub("mnist", hub.DatasetDict(train=good))
    with pytest.raises(BadInput, match="has no column 'label'"):
        from_hub("mnist", hub.DatasetDict(train=good.rename_column("label", "digit"), test=good))
    with pytest.raises(BadInput, match=r"shape \(27, 28\), not \(28, 28\)"):
        from_hub("mnist", hub.DatasetDict(train=table(list(noise(3, 27, 28))), test=good))
    with pytest.raises(BadInput, match="labels outside 0 to 9"):
        from_hub("mnist", hub.DatasetDict(train=table(list(noise(12, 28, 28)), classes=12), test=good))


@pytest.fixture
def whole_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of a hundredth of MNIST's sizes, as `datasets` stores it: ten images, again and again."""
    monkeypatch.setitem(HUB, "mnist", replace(HUB["mnist"], samples={"train": 600, "test": 100}))
    images = [png(image) for image in noise(10, 28, 28)]
    path = tmp_path / "hub" / "mnist"
    hub.DatasetDict(train=table(images * 60), test=table(images * 10)).save_to_disk(str(path))
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
    assert first.x_train.shape == (600, 28, 28)
    assert first.x_test.shape == (100, 28, 28)
    assert np.array_equal(first.x_train[590:], noise(10, 28, 28))
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
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "load_dataset", lambda _: hub.load_from_disk(str(whole_mnist)))
    monkeypatch.setattr("fedkin.data.hub.from_hub", lambda *_: small())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"cannot be written \(No space left on device\)"):
        load("mnist", tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []


def test_without_a_network_the_error_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on port 1 of this host: the hub's real code path, refused instead of unreachable."""
    from huggingface_hub import constants

    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    start = time.perf_counter()
    with pytest.raises(BadInput) as raised:
        load("cifar10", tmp_path)
    assert time.perf_counter() - start < 8
    for words in (
        f"cifar10 is neither in {tmp_path} nor",
        "put cifar10.npz",
        "--data",
        "FEDKIN_DATA",
        "fedkin[hub]",
    ):
        assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not constants.HF_HUB_OFFLINE


def test_without_the_extra_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"the datasets library is missing.*install fedkin\[hub\]"):
        load("mnist", tmp_path)
