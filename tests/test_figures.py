"""The figure of a federation, how figures are saved, and histograms for terminals."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fedkin.errors import BadInput
from fedkin.reports.figures import federation_figure, save, style
from fedkin.reports.histograms import histogram_text, sparkline


def federation(clients: int, classes: int, seed: int = 0) -> dict[str, Any]:
    """A synthetic federation: sizes, class counts, misalignments around 1e-4, and the Laplacian's spectrum."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(5, 300, clients)
    counts = np.stack([draw.multinomial(n, draw.dirichlet(np.full(classes, 0.2))) for n in sizes])
    mis = draw.lognormal(np.log(1e-4), 0.8, clients * (clients - 1) // 2)
    spectrum = np.sort(draw.uniform(0.5, 1.5, clients))
    return {"sizes": sizes, "class_counts": counts, "misalignment": mis, "spectrum": spectrum}


def texts(figure: Figure) -> list[str]:
    """Everything written in the panels: titles, and the notes under them."""
    return [
        text
        for axes in figure.axes
        for text in [axes.get_title(loc="left"), *(entry.get_text() for entry in axes.texts)]
        if text
    ]


def inside(figure: Figure) -> bool:
    """Whether all that is drawn, with labels and legends, lies within the figure."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    boxes = [box for axes in figure.axes if (box := axes.get_tightbbox()) is not None]
    return all(b.x0 > -1 and b.y0 > -1 and b.x1 < width + 1 and b.y1 < height + 1 for b in boxes)


def test_federation_figure_shows_what_it_was_given() -> None:
    given = federation(20, 10)
    figure = federation_figure(**given, title="digits, 20 clients")
    sizes, misalignment, classes, spectrum = figure.axes[:4]
    assert figure.get_suptitle() == "digits, 20 clients"
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (sizes, misalignment, classes, spectrum)]
    assert labels == [
        ("clients by size, largest first", "samples"),
        ("misalignment (log scale)", "pairs"),
        ("clients by size, largest first", "class"),
        ("eigenvalue number, smallest first", "eigenvalue"),
    ]
    heights = [bar.get_height() for bar in sizes.patches]  # type: ignore[attr-defined]
    assert heights == sorted(given["sizes"], reverse=True)
    assert sum(bar.get_height() for bar in misalignment.patches) == 190  # type: ignore[attr-defined]
    assert misalignment.get_xscale() == "log"
    # Column 0 of the heat map is the largest client, and shares of a client sum to one.
    share = np.asarray(classes.images[0].get_array())
    largest = int(np.argmax(given["sizes"]))
    np.testing.assert_allclose(share[:, 0], given["class_counts"][largest] / given["sizes"][largest])
    np.testing.assert_allclose(share.sum(axis=0), 1)
    points = np.asarray(spectrum.collections[0].get_offsets())
    np.testing.assert_allclose(points[:, 1], given["spectrum"])
    assert f"second smallest {given['spectrum'][1]:.3g}" in texts(figure)


@pytest.mark.parametrize(("clients", "classes"), [(2, 2), (20, 10), (100, 10), (100, 100), (600, 62)])
def test_federation_figure_is_legible_at_every_size(clients: int, classes: int) -> None:
    figure = federation_figure(**federation(clients, classes), title=f"digits, {clients} clients")
    assert inside(figure)


def test_pairs_without_a_logarithm_are_counted_in_a_note() -> None:
    """Three clients with the same data: 3 of the 10 pairs of 5 clients have misalignment exactly 0."""
    given = federation(5, 3)
    given["misalignment"][:3] = 0
    figure = federation_figure(**given)
    assert "10 pairs, 3 exactly 0 not shown" in texts(figure)
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == 7  # type: ignore[attr-defined]
    given["misalignment"][:] = 0
    assert "every pair is exactly 0" in texts(federation_figure(**given))


def test_a_federation_without_messages_or_spectrum() -> None:
    given = federation(5, 3) | {"misalignment": np.zeros(0), "spectrum": np.zeros(0)}
    assert "no pair to show" in texts(federation_figure(**given))


def test_federation_figure_refuses_arrays_of_different_federations() -> None:
    given = federation(5, 3)
    with pytest.raises(BadInput, match="not of the same clients"):
        federation_figure(**given | {"class_counts": np.ones((4, 3))})


def test_save_writes_both_formats_and_repeats_itself_byte_for_byte(tmp_path: Path) -> None:
    given = federation(6, 3)
    first = save(federation_figure(**given), tmp_path / "new" / "beta0.5")
    assert [path.name for path in first] == ["beta0.5.png", "beta0.5.pdf"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["beta0.5.pdf", "beta0.5.png"]
    assert imread(first[0]).shape[:2] == (1280, 1600)
    assert imread(first[0])[..., :3].std() > 0.05  # something is drawn
    assert first[1].read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in first[1].read_bytes()
    second = save(federation_figure(**given), tmp_path / "again")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: Figure, out: Any, **__: Any) -> None:
        out.write(b"half of the f")
        raise RuntimeError

    path = tmp_path / "curves.png"
    path.write_text("old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(RuntimeError):
        save(federation_figure(**federation(3, 2)), tmp_path / "curves")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_style_is_left_behind_and_does_not_depend_on_the_caller() -> None:
    with mpl.rc_context({"font.size": 31.0, "lines.marker": "o"}):
        with style():
            assert mpl.rcParams["font.size"] == 10
            assert mpl.rcParams["lines.marker"] == "None"
        assert mpl.rcParams["font.size"] == 31


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█"
    assert sparkline([3, np.nan, 0]) == "█ ▁"
    assert sparkline([5, 5]) == "▅▅"
    assert sparkline([np.nan]) == " "
    assert sparkline([]) == ""


def test_histogram_text_counts_every_value_once() -> None:
    assert histogram_text([0, 0, 1, 1, 1, 1, 2, 2], bins=2, width=4) == ["0 – 1  █▍    2", "1 – 2  ████  6"]
    values = np.random.default_rng(0).lognormal(-9, 1, 500)
    lines = histogram_text([*values, 0, 0, np.nan], log=True, bins=6)
    assert sum(int(line.split()[-1]) for line in lines) == 503
    assert lines[0].strip().startswith("exactly 0 ")
    assert lines[-1].strip().startswith("not finite")
    assert len(lines) == 8
    assert len({len(line) for line in lines}) == 1


def test_histogram_text_of_little() -> None:
    assert histogram_text([]) == []
    assert histogram_text([0.25, 0.25], width=2) == ["0.25  ██  2"]
    assert histogram_text([0.0, 0.0], log=True, width=2) == ["exactly 0  ██  2"]
    assert histogram_text([0.0, 0.0], width=2) == ["0  ██  2"]
