"""Curves of runs over their rounds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from fedkin.data.measure import ACCURACY, Measure
from fedkin.errors import BadInput, nearest
from fedkin.reports.figures import FIGURE_WIDTH, INK, MUTED, Picture, style
from fedkin.reports.groups import described, experiments, groups_of, order_of, problem_of, shown_hyper, varying
from fedkin.reports.labels import (
    MISSING,
    PROBLEM,
    is_problem,
    is_seed,
    method_label,
    plain,
    problem_part,
    setting_text,
    short,
    sortable,
)
from fedkin.reports.measures import measures_of
from fedkin.reports.run import Run
from fedkin.types import Floats

# Blue to green, dark to light: distinct from FedAvg's near black, and ordered in greyscale as well.
_KIN = LinearSegmentedColormap.from_list("kin", ["#10338f", "#1c74c4", "#2fa7b8", "#6cc7a1"])
_PROX = LinearSegmentedColormap.from_list("prox", ["#f2a03d", "#d9601a", "#9c3406"])
_OTHERS = ("#b5479b", "#7a5195", "#8c6d31", "#c44e52", "#5f7f3f", "#3f7f7f", "#6b6b6b")
_DASHES = ((0, (6, 1.5, 1, 1.5)), (0, (1, 1.3)), (0, (3, 1.5)), (0, (8, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
_SERIES = {
    "accuracy": "test accuracy of the clients' models",
    "test_accuracy": "test accuracy",
    "train_accuracy": "training accuracy",
    "mse": "test mean squared error of the clients' models",
    "test_mse": "test mean squared error",
    "train_mse": "training mean squared error",
    "test_loss": "test loss",
    "train_loss": "training loss",
}
MOST_ROWS = 6


def curves(
    runs: Sequence[Run],
    quantities: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Curves over the rounds: a panel per quantity, a row of panels per problem (data, partition and model).

    By default the main measure of the models that clients use, see `Run.series`, and the training loss, if measured.

    Runs that differ only in their seed are one line, the mean, with a band from the lowest to the highest value.
    The line of a diverged run ends in a cross. At most six problems are drawn.
    """
    if not runs:
        raise BadInput("there are no runs to draw: collect some first")
    recorded = {key for run in runs for key in run.rounds} - {"round"}
    names = [measure.name for measure in measures_of(runs)]
    if quantities is None:  # the training loss only if it was measured: see `evaluate` of an experiment
        quantities = [*names, *(["train_loss"] if "train_loss" in recorded or not recorded else [])]
    for quantity in quantities:
        if recorded and quantity not in {*recorded, *names}:
            raise BadInput(f"no run has recorded '{quantity}'{nearest(quantity, recorded)}")
    groups = groups_of(runs)
    problems: dict[object, list[list[Run]]] = {}
    for group in groups:
        problems.setdefault(problem_of(group[0]), []).append(group)
    kept = list(problems.values())[:MOST_ROWS]
    looks = looks_of(runs, [group for problem in kept for group in problem])
    legend = list(dict.fromkeys(looks[group[0].folder][0] for problem in kept for group in problem))
    legend_columns = max(1, min(6, len(legend), int(FIGURE_WIDTH / (0.75 + 0.075 * max(map(len, legend))))))
    legend_rows = math.ceil(len(legend) / legend_columns)
    legend_columns = math.ceil(len(legend) / legend_rows)  # as even as the number of rows allows

    with style():
        # The legend adds to the height, so that panels keep their size.
        height = 3.0 * len(kept) + 0.19 * legend_rows + 0.55
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, hspace=0.03)
        figure = Picture(figsize=(FIGURE_WIDTH, height), layout=layout)
        panels = figure.subplots(len(kept), len(quantities), squeeze=False)
        for row, problem in enumerate(kept):
            for panel, quantity in zip(panels[row], quantities, strict=True):
                draw(panel, problem, quantity, looks)
            if len(problems) > 1:
                panels[row, 0].set_title(_row_title(problem[0][0], runs), loc="left")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        figure.suptitle(title if title is not None else _curves_title(runs, groups, len(problems), len(kept)))
        handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
        lines = [handles[label] for label in legend if label in handles]
        if lines:
            figure.legend(handles=lines, loc="outside lower center", ncols=legend_columns, handlelength=2.2)
    return figure


def looks_of(runs: Sequence[Run], groups: Sequence[Sequence[Run]]) -> dict[Path, tuple[str, dict[str, Any]]]:
    """Label and style of each group's line, by the folder of its first run."""
    shown = shown_hyper(runs)
    extra = [key for key in varying(runs) if not is_problem(key) and not is_seed(key)]
    methods: dict[str, list[str]] = {}
    variants: list[str] = []
    names: dict[Path, tuple[str, str]] = {}
    for group in sorted(groups, key=lambda group: order_of(group[0])):
        run, settings = group[0], group[0].settings
        method = method_label(run.algorithm, run.hyperparameters, shown[run.algorithm])
        variant = ", ".join(filter(None, (setting_text(key, settings.get(key, MISSING)) for key in extra)))
        names[run.folder] = method, variant
        if method not in methods.setdefault(run.algorithm, []):
            methods[run.algorithm].append(method)
        if variant not in variants:
            variants.append(variant)
    variants.sort(key=lambda text: [sortable([_parsed(part)]) for part in text.split(", ")])
    others = [algorithm for algorithm in methods if algorithm not in ("fedavg", "fedprox", "fedkin")]
    looks = {}
    for group in groups:
        run = group[0]
        method, variant = names[run.folder]
        among = methods[run.algorithm]
        position = among.index(method) / (len(among) - 1) if len(among) > 1 else 0.5
        look: dict[str, Any] = {"zorder": 2.5, "linewidth": 1.7 if len(names) <= 12 else 1.1}
        if run.algorithm == "fedavg":
            look |= {"color": to_hex((0.13 + 0.4 * (position if len(among) > 1 else 0),) * 3), "zorder": 2.6}
        elif run.algorithm == "fedprox":
            look |= {"color": to_hex(_PROX(position)), "linestyle": (0, (5, 2))}
        elif run.algorithm == "fedkin":
            look |= {"color": to_hex(_KIN(1 - position if len(among) > 1 else 0.33))}  # the smallest β is darkest
        else:
            number = others.index(run.algorithm)
            dashes = _DASHES[(among.index(method) + number // len(_OTHERS)) % len(_DASHES)]
            look |= {"color": _OTHERS[number % len(_OTHERS)], "linestyle": dashes}
        if marker := _MARKERS[variants.index(variant) % len(_MARKERS)]:
            look |= {"marker": marker, "markersize": 4.5, "markerfacecolor": "white", "markevery": 0.12}
        looks[run.folder] = (", ".join(filter(None, [method, variant])), look)
    return looks


def _parsed(part: str) -> object:
    try:
        return float(part.rpartition("=")[2])
    except ValueError:
        return part


def _row_title(run: Run, runs: Sequence[Run]) -> str:
    """The settings in which a row of panels differs from the others."""
    settings = run.settings
    words = [run.experiment] if len(experiments(runs)) > 1 else []
    for key in varying(runs):
        if is_problem(key) and not is_seed(key) and key in settings:
            known = key in ("data.source", "model.kind", *PROBLEM)
            value = settings[key]
            words.append(problem_part(key, value) if known else f"{short(key)} = {plain(value)}")
    return ", ".join(words)


def _curves_title(runs: Sequence[Run], groups: Sequence[Sequence[Run]], problems: int, drawn: int) -> str:
    parts = [described(runs) or ", ".join(dict.fromkeys(run.experiment for run in runs))]
    sizes = {len(group) for group in groups}
    if max(sizes) > 1:
        parts.append(f"mean and range of {sizes.pop()} seeds" if len(sizes) == 1 else "mean and range over seeds")
    if drawn < problems:
        parts.append(f"the first {drawn} of {problems} settings")
    return "; ".join(parts)


def draw(
    axes: Axes,
    problem: Sequence[Sequence[Run]],
    quantity: str,
    looks: Mapping[Path, tuple[str, dict[str, Any]]],
    thresholds: bool = True,
) -> None:
    """Draw a quantity of the groups of one problem, with labels and styles of `looks_of`, and perhaps thresholds."""
    measure = problem[0][0].measure
    accuracy = quantity.endswith("accuracy") or (quantity.endswith("worst_decile") and measure is ACCURACY)
    steady: list[Floats] = []  # the range of the axis; diverged runs must not determine it
    everything: list[Floats] = []
    ends: list[tuple[Floats, Floats, str]] = []
    for group in problem:
        label, look = looks[group[0].folder]
        rounds, middle, low, high = _band(group, quantity)
        finite = np.flatnonzero(np.isfinite(middle))
        look = dict(look)
        if finite.size <= 1:
            look |= {"marker": look.get("marker", "o"), "markersize": 5, "markevery": 1}
        axes.plot(rounds, middle, label=label, **look)
        if len(group) > 1:
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=2)
        everything += [low, high]
        if any(run.status == "diverged" for run in group):
            ends.append((rounds[finite], middle[finite], str(look["color"])))
        else:
            steady += [low, high]
    _scale(axes, steady, everything, accuracy)
    for rounds, middle, color in ends:
        _draw_end(axes, rounds, middle, color)
    if thresholds and quantity in (measure.name, f"test_{measure.name}"):
        _draw_thresholds(axes, {run.threshold for group in problem for run in group}, measure)
    played = _finite([run.series("round") for group in problem for run in group])
    if played.size and np.ptp(played) == 0:
        # For a single round, automatic limits would place ticks at fractions of a round.
        axes.set_xlim(played[0] - 0.5, played[0] + 0.5)
        axes.set_xticks([played[0]])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    own = f"own_test_{quantity}"
    if quantity == measure.name and not any(own in run.rounds for group in problem for run in group):
        quantity = f"test_{quantity}"
    words = f"{measure.title}, worst decile of clients" if quantity == "worst_decile" else quantity.replace("_", " ")
    axes.set_ylabel(_SERIES.get(quantity, words))


def _draw_end(axes: Axes, rounds: Floats, values: Floats, color: str) -> None:
    """A cross where a diverged run ends, or where it leaves the panel."""
    if not values.size:
        return
    top = axes.get_ylim()[1]
    x, y = rounds[-1], values[-1]
    if (beyond := np.flatnonzero(values > top)).size:
        k = beyond[0]
        x, y = rounds[k], top
        if k:
            x = np.interp(top, values[k - 1 : k + 1], rounds[k - 1 : k + 1])
    axes.plot(
        x,
        y,
        marker="x",
        markersize=8,
        markeredgewidth=2.2,
        color=color,
        zorder=4,
        clip_on=False,
        label="_end",
    )


def _band(group: Sequence[Run], quantity: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Rounds, mean, lowest and highest over the seeds, for the rounds in which all of them have a value.

    A mean over the remaining seeds would jump where one of them ends. Clients' own models may be measured in some
    rounds only.
    """
    started = [run for run in group if len(run.series("round"))]
    if not started:
        empty = np.array([], dtype=np.float64)
        return empty, empty, empty, empty
    pairs = [zip(run.series("round"), run.series(quantity), strict=True) for run in started]
    tables = [{number: value for number, value in some if math.isfinite(value)} for some in pairs]
    rounds = sorted(set.intersection(*(set(entries) for entries in tables)))
    values = np.array([[entries[number] for number in rounds] for entries in tables], dtype=np.float64)
    return np.array(rounds, dtype=np.float64), values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def _scale(axes: Axes, steady: Sequence[Floats], everything: Sequence[Floats], accuracy: bool) -> None:
    if accuracy:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        return
    shown = _finite(steady)
    if not shown.size:
        shown = _finite(everything)
    if not shown.size:
        return
    low, high = float(shown.min()), float(shown.max())
    if low > 0 and high > 30 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
    elif _finite(everything).max() > high + 0.5 * (high - low):
        margin = 0.05 * (high - low) or 0.05
        axes.set_ylim(low - margin, high + 6 * margin)


def _finite(arrays: Sequence[Floats]) -> Floats:
    values: Floats = np.concatenate([np.array([], dtype=np.float64), *arrays])
    finite: Floats = values[np.isfinite(values)]
    return finite


def _draw_thresholds(axes: Axes, thresholds: Iterable[float], measure: Measure) -> None:
    for threshold in sorted(t for t in thresholds if math.isfinite(t)):
        axes.axhline(threshold, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5, label="_threshold")
        # Beyond the right edge, where no curve crosses it.
        axes.annotate(
            measure.goal(threshold),
            xy=(1, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )
