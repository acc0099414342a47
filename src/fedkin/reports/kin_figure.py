"""The picture of `fedkin kin`: the graph of kin, and what each client gains."""

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator

from fedkin.data.measure import ACCURACY
from fedkin.reports.figures import ACCENT, FIGURE_WIDTH, INK, MUTED, Picture, style
from fedkin.reports.kin_layout import positions
from fedkin.reports.kin_runs import Gains, KinRun
from fedkin.types import Floats, Integers

# With more clients names would cover each other, and with more edges the picture is a grey area.
MOST_NAMES, MOST_DRAWN = 40, 20_000
_KINDS = ("#1c74c4", "#e08e2b", "#2f9e6e", "#b5342c", "#7a5195", "#8c6d31", "#d66ba0", "#5b6770", "#9bb32e", "#2fa7b8")
_CIRCLE = LinearSegmentedColormap.from_list(
    "circle", ["#1c74c4", "#2fa7b8", "#5fae4b", "#e0b52b", "#d9601a", "#b5342c", "#b5479b", "#5a55b8", "#1c74c4"]
)
HALO = withStroke(linewidth=2, foreground="white")  # keeps names legible over edges
# A class is the colour of a client if at half of the clients it has at least this share of the samples.
MAIN = 0.5


@dataclass(frozen=True)
class Colours:
    """A colour for each client.

    each    (C,) colours
    legend  values and their colours
    title   what the values are
    """

    each: list[str]
    legend: dict[str, str]
    title: str = ""


def colours_of(kin: KinRun) -> Colours:
    """Colours by true kind, else by angle, else by main class, else one for all."""
    if (kinds := kin.known("kind")) is not None:
        return _by_group(kinds, "kind")
    if (angles := kin.known("angle")) is not None:
        return Colours([to_hex(_CIRCLE(angle / 360)) for angle in angles], {}, "angle")
    shares, classes = kin.known("main_share"), kin.known("main_class")
    if shares is not None and classes is not None and np.median(shares) >= MAIN:
        return _by_group(classes, "main class")
    return Colours([ACCENT] * len(kin.clients), {})


def _by_group(groups: Floats, word: str) -> Colours:
    present = sorted(set(groups.tolist()))
    many = mpl.colormaps["turbo"]
    shade = {
        group: _KINDS[place] if len(present) <= len(_KINDS) else to_hex(many(place / (len(present) - 1)))
        for place, group in enumerate(present)
    }
    legend = {f"{group:g}": colour for group, colour in shade.items()} if 1 < len(present) <= len(_KINDS) else {}
    return Colours([shade[group] for group in groups.tolist()], legend, word if legend else "")


def kin_figure(kin: KinRun) -> Figure:
    """The graph of kin on the left; on the right the gains over FedAvg's model and over training alone, if known."""
    colours, shown = colours_of(kin), kin.gains[:2] if len(kin.gains) > 2 else kin.gains[:1]
    with style():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04, hspace=0.04)
        figure = Picture(figsize=(FIGURE_WIDTH, 4.9), layout=layout)
        grid = figure.add_gridspec(max(len(shown), 1), 2 if shown else 1, width_ratios=[1.25, 1] if shown else None)
        graph = figure.add_subplot(grid[:, 0])
        _draw_graph(graph, kin, colours)
        if colours.title == "angle":
            scale = ScalarMappable(Normalize(0, 360), _CIRCLE)
            bar = figure.colorbar(scale, ax=graph, location="bottom", aspect=40, pad=0.02, shrink=0.7)
            bar.set_ticks([0, 90, 180, 270, 360], labels=["0°", "90°", "180°", "270°", "360°"])
            bar.outline.set_visible(False)
        first: Axes | None = None
        for row, gains in enumerate(shown):
            panel = figure.add_subplot(grid[row, 1], sharey=first)
            first = first or panel
            _draw_gains(panel, gains, kin, colours)
        _legend(figure, colours, bool(kin.new.any()))
        figure.suptitle(f"{kin.run.experiment}: {kin.run.label}")
    return figure


def drawn_edges(kin: KinRun) -> Integers:
    """The edges that are drawn, (E, 2): all, or a sample if there are very many."""
    if len(kin.edges) <= MOST_DRAWN:
        return kin.edges
    chosen = np.random.default_rng(0).choice(len(kin.edges), MOST_DRAWN, replace=False)
    return np.asarray(kin.edges[np.sort(chosen)])


def _draw_graph(axes: Axes, kin: KinRun, colours: Colours) -> None:
    at, edges, clients = positions(kin.pairs), drawn_edges(kin), len(kin.clients)
    # Fainter where there are more, so that a picture with many edges is as light as one with few.
    alpha = float(np.clip(8 / max(len(edges), 1) ** 0.45, 0.03, 0.6))
    axes.add_collection(LineCollection(list(at[edges]), colors=MUTED, linewidths=0.6, alpha=alpha, zorder=1))
    samples = kin.known("samples")
    relative = np.ones(clients) if samples is None else np.clip(samples / np.median(samples), 0.3, 4)
    sizes = relative * float(np.clip(4500 / clients, 5, 130))
    new = kin.new
    x, y = at.T
    axes.scatter(
        x,
        y,
        s=sizes,
        c=["white" if is_new else colour for is_new, colour in zip(new, colours.each, strict=True)],
        edgecolors=[colour if is_new else "white" for is_new, colour in zip(new, colours.each, strict=True)],
        linewidths=[1.4 if is_new else 0.5 * (clients <= 300) for is_new in new],
        zorder=2,
    )
    if clients <= MOST_NAMES:
        for name, place, size in zip(kin.names, at, sizes, strict=True):
            offset = (0, np.sqrt(size) / 2 + 1.5)
            axes.annotate(
                name, place, xytext=offset, textcoords="offset points", ha="center", va="bottom",
                fontsize=7.5 if clients > 12 else 9, color=INK, zorder=3, path_effects=[HALO],
            )  # fmt: skip
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _title(axes, "Who is kin", _graph_note(kin, edges))


def _graph_note(kin: KinRun, edges: Integers) -> str:
    start = kin.choices()[-1][1]
    if kin.weights is None:
        return f"all start at {start.removesuffix(', then own model')}: nobody has kin"
    if len(edges) < len(kin.edges):
        return f"{start}; {len(edges):,} of {len(kin.edges):,} pairs drawn"
    return start


def _legend(figure: Figure, colours: Colours, with_newcomers: bool) -> None:
    """One line below both panels: the colours are the same in all of them."""
    marks: list[Any] = [
        Line2D([], [], marker="o", linestyle="", markersize=6, color=colour, label=value)
        for value, colour in colours.legend.items()
    ]
    if marks:
        marks.insert(0, Line2D([], [], linestyle="", label=colours.title))
    if with_newcomers:
        marks.append(Line2D([], [], marker="o", linestyle="", markersize=6, mfc="white", mec=INK, label="newcomer"))
    if marks:
        figure.legend(
            handles=marks,
            loc="outside lower left",
            ncols=len(marks),
            handlelength=1,
            handletextpad=0.2,
            columnspacing=1,
        )


def _draw_gains(axes: Axes, gains: Gains, kin: KinRun, colours: Colours) -> None:
    known = np.flatnonzero(np.isfinite(gains.all))
    order = known[np.argsort(gains.all[known], kind="stable")]
    height, each = gains.measure.times * gains.all[order], np.array(colours.each)[order]
    place = np.arange(1, len(order) + 1)
    if len(order) <= 120:
        bars = axes.bar(place, height, width=0.8, color=each, linewidth=0)
        for bar, client, colour in zip(bars, order, each, strict=True):
            if kin.new[client]:
                bar.set(facecolor="white", edgecolor=colour, linewidth=1)
        # A gain of 0 is a bar without height: a dot shows that the client is there.
        none = height == 0
        axes.scatter(place[none], height[none], s=8, c=each[none], linewidths=0, zorder=3)
    else:
        axes.scatter(place, height, s=6, c=each, linewidths=0)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlim(0.3, len(order) + 0.7)
    axes.grid(visible=False, axis="x")
    if len(order) <= MOST_NAMES:
        size = min(7.5, 225 / len(order))
        axes.set_xticks(place, [kin.names[i] for i in order], rotation=90 if len(order) > 8 else 0, fontsize=size)
        axes.tick_params(axis="x", length=0)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("clients by gain")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("points" if gains.measure is ACCURACY else gains.measure.title)
    _title(axes, f"Gain over {gains.over}", _gains_note(gains.among(~kin.new), gains.among(kin.new)))


def _gains_note(trained: Gains, new: Gains) -> str:
    mean, better, worse = trained.points(trained.each.mean()), 100 * trained.share_better, 100 * trained.share_worse
    if len(new.each):  # there is no room for more
        return f"mean {mean}, newcomers {new.points(new.each.mean())}; {better:.0f} % gain"
    return f"mean {mean}; {better:.0f} % gain, {worse:.0f} % lose"


def _title(axes: Axes, title: str, note: str) -> None:
    axes.set_title(title, loc="left", pad=20)
    words = axes.annotate(
        note, xy=(0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
        fontsize=8.5, color=MUTED,
    )  # fmt: skip
    words.set_in_layout(False)  # a long note must not make the panel narrow
