"""`fedkin graph`: a federation before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedkin.reports.figures import federation_figure
from fedkin.reports.overview import views


def shown(settings: dict[str, object], out: Path) -> list[str]:
    console = Console(width=120, markup=False)
    texts = []
    for view in views(settings, out=out):
        with console.capture() as capture:
            console.print(view)
        texts.append(capture.get())
    return texts


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Basel and Bern have the same main direction, Chur another; Bern has the most samples."""
    directions = {"Basel": [1.0, 0.0, 0.1], "Bern": [1.0, 0.05, 0.1], "Chur [GR]": [0.0, 1.0, 0.0]}
    names = np.repeat(list(directions), [6, 10, 4])
    scale = np.linspace(0.2, 1, len(names))[:, None]
    x = (np.array([directions[name] for name in names]) * scale).astype(np.float32)
    path = tmp_path / "hospitals.npz"
    arrays: dict[str, Any] = {"x_train": x, "y_train": np.arange(20) % 2, "x_test": x, "y_test": np.arange(20) % 2}
    np.savez(path, **arrays, hospital_train=names, hospital_test=names)
    return path


def test_clients_have_their_names(hospitals: Path, tmp_path: Path) -> None:
    (text,) = shown({"data": {"source": str(hospitals)}, "partition": {"group": "hospital"}}, tmp_path)
    lines = [line.split() for line in text.splitlines()]
    assert ["Bern", "10", "Basel"] in lines
    assert ["Basel", "6", "Bern"] in lines
    assert lines.index(["Bern", "10", "Basel"]) < lines.index(["Basel", "6", "Bern"])
    assert any(line[:3] == ["Chur", "[GR]", "4"] for line in lines)
    assert "3 clients, by hospital" in text


def test_of_many_named_clients_both_ends_are_listed(tmp_path: Path) -> None:
    names = np.repeat([f"c{i:02d}" for i in range(30)], np.arange(31, 1, -1))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(len(names), 4)).astype(np.float32), rng.integers(0, 2, len(names))
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x, y_test=y, c_train=names, c_test=names)
    (text,) = shown({"data": {"source": str(tmp_path / "many.npz")}, "partition": {"group": "c"}}, tmp_path)
    listed = [line.split()[0] for line in text.splitlines() if line.strip().startswith("c") and line.split()[1:2]]
    assert [name for name in listed if name[1:].isdigit()] == [f"c{i:02d}" for i in [*range(10), *range(20, 30)]]
    assert "… 10 more" in text


def test_a_page_for_every_federation_not_for_every_seed(tmp_path: Path) -> None:
    settings: dict[str, object] = {"seed": [3, 4, 5], "partition": {"clients": 4, "class_imbalance": [0, 10]}}
    settings |= {"graph": {"weights": ["samples", "uniform"]}, "algorithm": ["fedavg", "kin"]}
    texts = shown(settings, tmp_path)
    assert len(texts) == 2
    assert all("3; there is also 4, 5: --set seed=4 shows that" in text for text in texts)
    assert len(list(tmp_path.rglob("federation*.png"))) == 2
    (text,) = shown({"partition": {"clients": 4}}, tmp_path)
    assert "seed" not in text


def test_names_on_the_axis() -> None:
    given = ([3, 9], [[1, 2], [4, 5]], [0.1, 0.2], [0.0, 1.0])
    figure = federation_figure(*given, names=["Basel", "a hospital with a very long name"])
    ticks = [[label.get_text() for label in axes.get_xticklabels()] for axes in figure.axes]
    assert ["a hospital with…", "Basel"] in ticks  # the largest first
    many = federation_figure([1] * 31, [[1, 0]] * 31, [0.1], [0.0], names=[f"client {i}" for i in range(31)])
    assert not any("client" in label.get_text() for axes in many.axes for label in axes.get_xticklabels())
