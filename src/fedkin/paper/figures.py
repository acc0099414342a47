"""Figures of reproductions: curves, sweeps of a setting, and federations before training, in the paper's layout."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import plans
from fedkin.files import write_atomically
from fedkin.paper.reproduce import Context, Output, Part
from fedkin.reports.curves import draw, looks_of
from fedkin.reports.figures import FIGURE_WIDTH, INK, MUTED, add_share_scale, draw_class_shares, style
from fedkin.reports.groups import groups_of, speed_up
from fedkin.reports.run import Run
from fedkin.reports.tables import Cell, Table, number_cell, text_cell
from fedkin.types import Floats

PANEL = 2.55  # inches, the height of a panel
QUANTITIES = ("test_loss", "test_accuracy")  # on unseen clients, loss above accuracy, as in the paper
IMAGES = 12  # per class
SHADES = ("#1c74c4", "#2fa7b8", "#e08e2b", "#b5342c")  # of growing imbalance
_LOSS = {"softmax": "Convex", "mlp": "Nonconvex"}


def _figure(rows: int, columns: int, height: float = PANEL, extra: float = 0.75) -> tuple[Figure, Any]:
    width = max(FIGURE_WIDTH, 2.75 * columns)
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=(width, height * rows + extra), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _legend(figure: Figure, panels: Any, most: int = 6) -> None:
    handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    shown = {label: line for label, line in handles.items() if not str(label).startswith("_")}
    figure.legend(handles=list(shown.values()), loc="outside lower center", ncols=min(most, max(1, len(shown))))


# -- curves ------------------------------------------------------------------------------------------------------------


def curve_figures(context: Context) -> Output:
    """A figure per data set: loss above accuracy; columns for balanced, imbalanced, convex and nonconvex."""
    columns: dict[str, dict[str, list[Run]]] = {}
    for part in context.reproduction.parts:
        for run in context.runs(part):
            if len(run.series("round")):
                balance = part.label.split()[-1].capitalize()
                kind = str(run.config["model"]["kind"])
                title = f"{balance}, {_LOSS.get(kind, kind)}"
                columns.setdefault(part.data, {}).setdefault(title, []).append(run)
    figures = {}
    for data, panels in columns.items():
        figures[data.lower().replace(" ", "-")] = _grid(data, dict(sorted(panels.items())), zoom=True)
    notes = ("Loss and accuracy of the global model on the testing clients. Insets: the rounds around the threshold.",)
    return Output(figures=figures, notes=notes)


def _grid(title: str, columns: Mapping[str, Sequence[Run]], zoom: bool) -> Figure:
    """Loss above accuracy, a column per list of runs."""
    with style():
        figure, panels = _figure(len(QUANTITIES), len(columns))
        all_runs = [run for runs in columns.values() for run in runs]
        looks = looks_of(all_runs, [group for runs in columns.values() for group in groups_of(runs)])
        for column, (head, runs) in enumerate(columns.items()):
            groups = groups_of(runs)
            for row, quantity in enumerate(QUANTITIES):
                panel = panels[row, column]
                plain = {folder: (label.split(", ")[0], look) for folder, (label, look) in looks.items()}
                plain = {folder: (label, _unmarked(look)) for folder, (label, look) in plain.items()}
                draw(panel, groups, quantity, plain)
                if column:
                    panel.set_ylabel("")
                if row == 0:
                    panel.set_title(head, loc="left")
                if zoom and quantity == "test_accuracy":
                    _inset(panel, groups, plain)
            panels[-1, column].set_xlabel("round")
        figure.suptitle(title)
        _legend(figure, panels)
    return figure


def _unmarked(look: Mapping[str, Any]) -> dict[str, Any]:
    """Line style without markers: they distinguish settings that have separate panels here."""
    return {key: value for key, value in look.items() if not key.startswith("mark")}


def _inset(panel: Axes, groups: Sequence[Sequence[Run]], looks: Mapping[Path, tuple[str, dict[str, Any]]]) -> None:
    """An inset of the rounds in which the threshold is reached."""
    reached = [run.reached for group in groups for run in group if math.isfinite(run.reached)]
    if not reached:
        return
    first, last = min(reached), max(reached)
    margin = max(2.0, 0.35 * (last - first))
    window = panel.inset_axes((0.47, 0.1, 0.5, 0.44))
    heights = []
    for group in groups:
        label, look = looks[group[0].folder]
        rounds, values = group[0].series("round"), group[0].series("test_accuracy")
        window.plot(rounds, values, label=f"_{label}", **{**look, "linewidth": 1.1})
        near = values[(rounds >= first - margin) & (rounds <= last + margin)]
        heights += [v for v in near if math.isfinite(v)]
    window.axhline(groups[0][0].threshold, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.5)
    window.set_xlim(max(0, first - margin), last + margin)
    if heights and max(heights) > min(heights):
        window.set_ylim(min(heights), max(heights))
    window.tick_params(labelsize=6.5, length=2, pad=1)
    window.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
    window.grid(visible=False)
    window.patch.set_alpha(0.92)
    for spine in window.spines.values():
        spine.set_visible(True)


# -- a setting that varies ---------------------------------------------------------------------------------------------


def sweep_figures(context: Context) -> Output:
    """A figure per data set with a column per value of the setting, and a table of the results."""
    section, _, leaf = context.reproduction.across.partition(".")
    letter = {"epochs": "E", "clip": "G", "step_size": "γ"}[leaf]
    figures, rows = {}, []
    for part in context.reproduction.parts:
        columns: dict[float, list[Run]] = {}
        for run in context.runs(part):
            value = run.config[section][leaf]
            columns.setdefault(math.inf if value is None or value == "Infinity" else float(value), []).append(run)
        if not columns:
            continue
        titled = {f"{letter} = {_setting_text(value)}": columns[value] for value in sorted(columns)}
        figures[part.name.split("-")[0]] = _grid(part.label, titled, zoom=False)
        for head, runs in titled.items():
            base = next((run.reached for run in runs if run.algorithm == "fedavg"), math.nan)
            for run in runs:
                ratio = speed_up(base, run.reached)
                rows.append(
                    (
                        text_cell(part.label),
                        text_cell(head),
                        text_cell(run.method),
                        number_cell("{:.2f} %", 100 * run.final_value),
                        number_cell("{:g}", run.reached),
                        number_cell("{:.1f}×", ratio),
                        text_cell(run.state),
                    )
                )
    heads = ("federation", letter, "algorithm", "accuracy", "rounds to threshold", "speed-up", "status")
    table = Table(context.reproduction.title, heads, tuple(rows))
    return Output((table,), table, figures)


def _setting_text(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


# -- federations before training ---------------------------------------------------------------------------------------


def _graphs(context: Context, part: Part) -> list[tuple[Experiment, Floats, Floats]]:
    """Misalignments of all pairs and graph spectrum of every federation of a part; computed once and cached."""
    found = []
    for plan in plans(part.settings):
        file = context.out / part.name / f"{plan.name}.npz"
        kept = _read_distributions(file, plan.config)
        if kept is None:
            graph = context.preparation.graph(plan.config)
            assert graph.misalignment is not None
            kept = graph.misalignment[np.triu_indices(len(graph), 1)], graph.spectrum
            content = io.BytesIO()
            np.savez(content, pairs=kept[0], spectrum=kept[1], settings=repr(plan.config))
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content.getvalue())
        found.append((plan.config, *kept))
    return found


def _read_distributions(file: Path, config: Experiment) -> tuple[Floats, Floats] | None:
    """Cached misalignments and spectrum, if they were computed with the same settings."""
    try:
        with np.load(file) as kept:
            return (kept["pairs"], kept["spectrum"]) if str(kept["settings"]) == repr(config) else None
    except (OSError, EOFError, ValueError, KeyError, BadZipFile):  # missing, damaged, or written by an earlier version
        return None


def misalignment_figure(context: Context) -> Output:
    """Distributions of mis(i, n) on a logarithmic axis: a column per data set, a row per size imbalance."""
    return _distributions(context, which=1, log=True, unit="misalignment")


def spectrum_figure(context: Context) -> Output:
    """Distributions of the Laplacian's eigenvalues, without the first, which is always 0."""
    return _distributions(context, which=2, log=False, unit="eigenvalue")


def _distributions(context: Context, which: int, log: bool, unit: str) -> Output:
    values: dict[tuple[float, str], dict[float, Floats]] = {}
    for part in context.reproduction.parts:
        for config, *arrays in _graphs(context, part):
            of = arrays[which - 1]
            of = of if log else of[1:]
            split = config.partition
            at = values.setdefault((split.size_imbalance, part.label), {})
            at[split.class_imbalance] = np.concatenate([at.get(split.class_imbalance, of[:0]), of])
    rows = sorted({b for b, _ in values})
    columns = list(dict.fromkeys(label for _, label in values))
    with style():
        figure, panels = _figure(len(rows), len(columns))
        for i, b in enumerate(rows):
            for j, label in enumerate(columns):
                _densities(panels[i, j], values[b, label], log)
                panels[i, j].set_title(f"{label}, b = {b:g}", loc="left")
                if i == len(rows) - 1:
                    panels[i, j].set_xlabel(f"{unit} (log scale)" if log else unit)
                if j == 0:
                    panels[i, j].set_ylabel("density")
        _legend(figure, panels)
        figure.suptitle(context.reproduction.title)
    cells = []
    for (b, label), by_class in values.items():
        for a, of in by_class.items():
            quartiles = np.percentile(of, [25, 50, 75])
            cells.append(
                (text_cell(label), Cell(f"{a:g}", a), Cell(f"{b:g}", b), *(Cell(f"{q:.3g}", q) for q in quartiles))
            )
    table = Table(
        context.reproduction.title, ("data", "a", "b", "lower quartile", "median", "upper quartile"), tuple(cells)
    )
    return Output((table,), table, {"": figure}, ("Over all seeds together.",))


def _densities(panel: Axes, by_class: Mapping[float, Floats], log: bool) -> None:
    everything = np.concatenate(list(by_class.values()))
    bins = int(np.clip(np.sqrt(len(everything)), 12, 60))
    if log:
        low, high = everything[everything > 0].min(), everything.max()
        edges = np.geomspace(low / 1.05, high * 1.05, bins + 1)
        middles, widths = np.sqrt(edges[1:] * edges[:-1]), np.diff(np.log10(edges))
        panel.set_xscale("log")
    else:
        edges = np.linspace(everything.min(), everything.max() + 1e-9, bins + 1)
        middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    for number, (a, of) in enumerate(sorted(by_class.items())):
        counts, _ = np.histogram(of, edges)
        color = SHADES[number % len(SHADES)]
        density = counts / counts.sum() / widths
        panel.fill_between(middles, density, step="mid", color=color, alpha=0.18, linewidth=0)
        panel.plot(middles, density, drawstyle="steps-mid", color=color, linewidth=1.2, label=f"a = {a:g}")
    panel.set_ylim(bottom=0)
    panel.set_yticks([])


def classes_figure(context: Context) -> Output:
    """The share of each class in each client's samples, a panel per federation."""
    seen = []
    for part in context.reproduction.parts:
        config = plans(part.settings)[0].config
        federation = context.preparation.federation(config)
        seen.append((part.label, config, federation.train.class_counts(federation.classes)))
    with style():
        figure, panels = _figure(math.ceil(len(seen) / 2), 2, extra=0.4)
        for panel in panels.flat[len(seen) :]:
            panel.set_visible(False)
        rows = []
        for panel, (label, config, counts) in zip(panels.flat, seen, strict=False):
            image = draw_class_shares(panel, counts)
            split = config.partition
            panel.set_title(f"{label}: a = {split.class_imbalance:g}, b = {split.size_imbalance:g}", loc="left")
            panel.set_xlabel("client")
            held, sizes = (counts > 0).sum(axis=1), counts.sum(axis=1)
            rows.append(
                (
                    text_cell(label),
                    *(Cell(f"{v:g}", float(v)) for of in (held, sizes) for v in (of.min(), np.median(of), of.max())),
                )
            )
        add_share_scale(figure, image, list(panels.flat), aspect=40)
        figure.suptitle("Share of each class in a client's samples")
    heads = ("federation", *(f"{what} {of}" for of in ("classes", "samples") for what in ("fewest", "median", "most")))
    table = Table(context.reproduction.title, heads, tuple(rows))
    return Output((table,), table, {"": figure})


def sample_figures(context: Context) -> Output:
    """A figure per data set: a row of images per class, for at most ten classes."""
    figures = {}
    for part in context.reproduction.parts:
        federation = context.preparation.federation(plans(part.settings)[0].config)
        raw = (federation.train.x * federation.scale + federation.shift).clamp(0, 1)
        y = federation.train.y.numpy()
        rows = min(10, federation.classes)
        with style():
            figure, panels = _figure(rows, IMAGES, height=0.62, extra=0.5)
            figure.set_size_inches(FIGURE_WIDTH, 0.62 * rows + 0.5)
            for row in range(rows):
                picked = np.flatnonzero(y == row)[:IMAGES]
                for column, panel in enumerate(panels[row]):
                    panel.set(xticks=[], yticks=[])
                    panel.grid(visible=False)
                    for spine in panel.spines.values():
                        spine.set_visible(False)
                    if column < len(picked):
                        _image(panel, raw[picked[column]].numpy(), federation.shape)
                panels[row, 0].set_ylabel(str(row), rotation=0, ha="right", va="center", color=INK)
            figure.suptitle(f"{part.label}: {len(y):,} training images, {federation.classes} classes")
        figures[part.name.split("-")[0]] = figure
    return Output(figures=figures)


def _image(panel: Axes, pixels: Floats, shape: Sequence[int]) -> None:
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    picture = pixels.reshape(channels, height, width).transpose(1, 2, 0)
    panel.imshow(picture[..., 0] if channels == 1 else picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
