"""Figures: their common style, how they are saved, and the figure of a federation before training.

Figures are plain `matplotlib.figure.Figure` objects. pyplot is not used, so a figure can be made in a notebook or on a
server without a display, and no global state remains.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike, NDArray

from fedkin.errors import BadInput
from fedkin.files import write_atomically
from fedkin.reports.histograms import bin_edges
from fedkin.types import Floats

INK = "#222222"
MUTED = "#6b6b6b"
ACCENT = "#2a6f97"
MOST_LABELS = 30  # names of clients on an axis
FIGURE_WIDTH = 8.0  # inches; the text sizes below are chosen for 800 pixels at 100 dpi

_STYLE: Any = {  # matplotlib types the keys as literals, which differ between versions
    "font.family": "DejaVu Sans",  # included in matplotlib, with Greek letters: the same figure everywhere
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "figure.titlesize": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": "standard",
    "pdf.fonttype": 42,  # text remains searchable and editable
    "svg.hashsalt": "fedkin",
}


class Picture(Figure):
    """A figure that a notebook displays, whatever backend it has chosen."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        without_formulas(self)
        with style():
            self.savefig(content, format="png", dpi=110)
        return content.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """The common style of all figures within a `with` block; the caller's settings are restored after it."""
    with mpl.rc_context():
        # From the defaults, not from the caller's settings: the same runs give the same figure everywhere.
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def save(figure: Figure, path_without_suffix: Path | str) -> list[Path]:
    """Write a figure as PNG and PDF, atomically; the same figure always gives the same bytes."""
    stem = Path(path_without_suffix)
    stem.parent.mkdir(parents=True, exist_ok=True)
    # By default matplotlib writes the time into a PDF and its version into a PNG.
    metadata: dict[str, dict[str, None]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    written, layout = [], figure.get_layout_engine()
    without_formulas(figure)
    with style():
        for suffix, entries in metadata.items():
            # Appended, not `with_suffix`: the name of an experiment may contain a dot (beta0.5).
            path = stem.with_name(f"{stem.name}.{suffix}")
            content = io.BytesIO()
            figure.savefig(content, format=suffix, dpi=200, metadata=entries)
            write_atomically(path, content.getvalue())
            written.append(path)
            figure.set_layout_engine("none")  # the PDF has the layout of the PNG, which takes a while
    figure.set_layout_engine(layout)
    return written


def without_formulas(figure: Figure) -> None:
    """Show a dollar in a name as it is: matplotlib would read what follows as a formula, as in labels of ticks."""
    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$" in text.get_text() and "mathdefault" not in text.get_text():
            text.set_parse_math(False)


def federation_figure(
    sizes: ArrayLike,
    class_counts: ArrayLike,
    misalignment: ArrayLike,
    spectrum: ArrayLike,
    title: str = "",
    names: Sequence[str] = (),
    parts: str = "class",
) -> Figure:
    """A federation before training: sizes and class mixes of the clients, misalignment of pairs, graph spectrum.

    sizes         (C,)   samples of each client
    class_counts  (C, K) samples of each class at each client, or of each of other `parts` into which they fall
    misalignment  (M,)   of those pairs of clients for which it is known, perhaps none
    spectrum      (C,)   eigenvalues of the graph's Laplacian, or none
    names         (C,)   of the clients, or none; shown if there are at most 30
    """
    sizes_, counts = np.asarray(sizes, dtype=float), np.asarray(class_counts, dtype=float)
    mis, eigenvalues = np.asarray(misalignment, dtype=float), np.asarray(spectrum, dtype=float)
    clients = sizes_.size
    if sizes_.shape != (clients,) or not clients or counts.ndim != 2 or len(counts) != clients:
        raise BadInput(
            f"sizes of shape {sizes_.shape} and class counts of shape {counts.shape} "
            "are not of the same clients: give shapes (C,) and (C, K)"
        )

    with style():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04, hspace=0.04)
        figure = Picture(figsize=(FIGURE_WIDTH, 6.4), layout=layout)
        axes = figure.subplots(2, 2, gridspec_kw={"width_ratios": [1.15, 1]})
        # Both panels on the left have the same order of clients, so that a column is one client.
        order = np.argsort(-sizes_, kind="stable")
        _draw_sizes(axes[0, 0], sizes_[order])
        _draw_classes(figure, axes[1, 0], counts[order], parts)
        if 0 < len(names) <= MOST_LABELS:
            shown = [name if len(name) <= 16 else f"{name[:15]}…" for name in (names[client] for client in order)]
            axes[1, 0].set_xticks(range(1, clients + 1), shown, rotation=90, fontsize=7)
            axes[0, 0].set_xticks(range(1, clients + 1), [""] * clients)
        _draw_misalignment(axes[0, 1], mis.ravel())
        _draw_spectrum(axes[1, 1], np.sort(eigenvalues.ravel()))
        if title:
            figure.suptitle(title)
    return figure


def _draw_sizes(axes: Axes, sizes: Floats) -> None:
    clients = len(sizes)
    # Separate bars only while the gaps between them are visible.
    axes.bar(np.arange(1, clients + 1), sizes, width=0.8 if clients <= 60 else 1.0, color=ACCENT, linewidth=0)
    smallest, median, largest = int(sizes.min()), float(np.median(sizes)), int(sizes.max())
    if smallest > 0 and largest > 50 * smallest:
        axes.set_yscale("log")
        axes.set_ylim(bottom=smallest / 2)
    axes.set_xlim(0.5, clients + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("clients by size, largest first")
    axes.set_ylabel("samples")
    note = f"{smallest:,} each" if smallest == largest else f"{smallest:,} to {largest:,}, median {median:,.0f}"
    _head(axes, "Samples per client", note)


def _draw_classes(figure: Figure, axes: Axes, counts: Floats, parts: str) -> None:
    classes = counts.shape[1]
    top = min(1.0, max(float(class_shares(counts).max()), 2 / max(classes, 2)))
    image = draw_class_shares(axes, counts, top)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("clients by size, largest first")
    axes.set_ylabel(parts)
    add_share_scale(figure, image, axes, aspect=25)
    head = "Class mix of each client" if parts == "class" else "Target of each client"
    _head(axes, head, "share of the client's samples")


def class_shares(counts: NDArray[Any]) -> Floats:
    """The share of each class in each client's samples, (C, K); zero for a client without samples."""
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0))


def draw_class_shares(axes: Axes, counts: NDArray[Any], top: float = 1.0) -> AxesImage:
    """Classes over clients, darker for a larger share; `top` is the darkest."""
    clients, classes = counts.shape
    axes.grid(visible=False)
    axes.set_ylabel("class")
    # A heat map instead of stacked bars: a hundred colours cannot be distinguished.
    return axes.imshow(
        class_shares(counts).T,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="Blues",
        vmin=0,
        vmax=top,
        extent=(0.5, clients + 0.5, -0.5, classes - 0.5),  # clients count from 1
    )


def add_share_scale(figure: Figure, image: AxesImage, axes: Any, aspect: float) -> None:
    """Add the colour bar of `draw_class_shares`, in percent."""
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=aspect)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _draw_misalignment(axes: Axes, pairs: Floats) -> None:
    positive = pairs[np.isfinite(pairs) & (pairs > 0)]
    unusable = int((~np.isfinite(pairs)).sum())
    zeros = pairs.size - positive.size - unusable
    notes = [f"{pairs.size:,} pairs" if pairs.size != 1 else "1 pair"]
    if zeros:  # a log axis cannot show them, so they are mentioned
        notes.append(f"{zeros:,} exactly 0 not shown")
    if unusable:
        notes.append(f"{unusable:,} not finite")
    _head(axes, "Misalignment of pairs of clients", ", ".join(notes))
    axes.set_xlabel("misalignment (log scale)")
    axes.set_ylabel("pairs")
    if not positive.size:
        axes.set(xticks=[], yticks=[])
        words = "every pair is exactly 0" if zeros else "no pair to show"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=MUTED)
        return
    edges = bin_edges(positive, bins=min(40, max(8, round(np.sqrt(positive.size)))), log=True)
    axes.hist(positive, bins=edges.tolist(), color=ACCENT, edgecolor="white", linewidth=0.4)
    axes.set_xscale("log")
    axes.set_xlim(edges[0] / 1.1, edges[-1] * 1.1)
    if edges[-1] < 30 * edges[0]:
        # Less than two decades: powers of ten alone would leave one label or none.
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_formatter(LogFormatterSciNotation())
        axes.xaxis.set_minor_formatter(NullFormatter())
    if edges[-1] < 2.2 * edges[0]:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _draw_spectrum(axes: Axes, eigenvalues: Floats) -> None:
    finite = eigenvalues[np.isfinite(eigenvalues)]
    size = 18 if finite.size <= 60 else 8
    axes.scatter(np.arange(1, finite.size + 1), finite, s=size, color=ACCENT, linewidths=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("eigenvalue number, smallest first")
    axes.set_ylabel("eigenvalue")
    # The second smallest eigenvalue is the algebraic connectivity: 0 means that the graph is not connected.
    _head(axes, "Spectrum of the Laplacian", f"second smallest {finite[1]:.3g}" if finite.size > 1 else "")


def _head(axes: Axes, title: str, note: str) -> None:
    """A title on the left with a muted second line below it."""
    axes.set_title(title, loc="left", pad=20 if note else 6)
    if note:
        axes.annotate(
            note,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(0, 6),
            textcoords="offset points",
            fontsize=8.5,
            color=MUTED,
        )
