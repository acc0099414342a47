"""The figure of the runs chosen on validation: main measure of every client's model, and its mean over the rounds."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkin.data.measure import ACCURACY
from fedkin.errors import BadInput
from fedkin.reports.curves import MOST_ROWS, draw, looks_of
from fedkin.reports.figures import FIGURE_WIDTH, MUTED, Picture, style
from fedkin.reports.groups import described, problem_of
from fedkin.reports.labels import plain, short
from fedkin.reports.run import Run
from fedkin.reports.selection import Method, client_values, methods

Looks = dict[Path, tuple[str, dict[str, Any]]]
_DASHES: tuple[Any, ...] = ("-", (0, (1, 1.3)), (0, (3, 1.5)), (0, (6, 1.5, 1, 1.5)))


def chosen_figure(runs: Sequence[Run], title: str | None = None) -> Figure:
    """The main measure of the models that clients use, for the runs chosen on validation; a row for each problem.

    On the left, a dot is a client with its testing samples, and a bar is the mean of a method. On the right, the mean
    over the rounds. Of several seeds all clients are shown; a curve is the mean with a band from the lowest to the
    highest value. At most six problems are drawn.
    """
    found = methods(runs)
    if not found:
        raise BadInput("no run has been validated: set partition.validation, such as 0.2, and run the experiment again")
    problems: dict[object, list[Method]] = {}
    for method in found:
        problems.setdefault(problem_of(method.chosen[0]), []).append(method)
    kept = list(problems.values())[:MOST_ROWS]
    looks = _looks([method for problem in kept for method in problem])
    with style():
        height = sum(1.2 + 0.36 * max(len(problem), 5) for problem in kept) + 0.3
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, hspace=0.03)
        figure = Picture(figsize=(FIGURE_WIDTH, height), layout=layout)
        panels = figure.subplots(len(kept), 2, squeeze=False, gridspec_kw={"width_ratios": [1.25, 1]})
        for (left, right), problem in zip(panels, kept, strict=True):
            _draw_clients(left, problem, looks)
            measure = problem[0].chosen[0].measure
            draw(right, [method.chosen for method in problem], measure.name, looks, thresholds=False)
            right.set_ylabel(f"mean {measure.name}" if measure is ACCURACY else measure.title)
            left.set_xlabel(f"{measure.title} on the client's own test samples")
            if len(kept) > 1:
                words = [f"{short(key)} = {plain(value)}" for key, value in problem[0].problem.items()]
                left.set_title(", ".join(words), loc="left")
        panels[-1, 1].set_xlabel("round")
        figure.suptitle(described(runs) if title is None else title)
    return figure


def _looks(found: Sequence[Method]) -> Looks:
    """Label and style of each method: the colour of its algorithm, and dashes where several methods have the same."""
    runs = [run for method in found for run in method.chosen]
    drawn = looks_of(runs, [method.chosen for method in found])
    looks: Looks = {}
    labels: dict[str, list[str]] = {}  # of the methods that have a colour
    for method in found:
        run = method.chosen[0]
        is_pooled = bool(run.settings.get("partition.pooled"))
        color = MUTED if is_pooled else drawn[run.folder][1]["color"]
        alike = labels.setdefault(color, [])
        alike += [method.label] if method.label not in alike else []
        dashes = _DASHES[(alike.index(method.label) + is_pooled) % len(_DASHES)]
        looks[run.folder] = method.label, {"color": color, "linestyle": dashes, "zorder": 2.5}
    return looks


def _draw_clients(axes: Axes, problem: Sequence[Method], looks: Looks) -> None:
    """A line of dots for each method, the best at the top."""
    for place, method in enumerate(problem):
        _, look = looks[method.chosen[0].folder]
        counts = Counter(value for run in method.chosen for value in client_values(run).values())
        most = max(counts.values(), default=1)
        for value, count in counts.items():
            # Clients with the same value lie above each other.
            offsets = (np.arange(count) - (count - 1) / 2) * min(0.12, 0.8 / most)
            axes.scatter(
                np.full(count, value), place + offsets, s=12, color=look["color"], alpha=0.55, linewidths=0, zorder=2
            )
        mean = float(np.mean([run.used_value for run in method.chosen]))
        axes.plot([mean, mean], [place - 0.4, place + 0.4], color=look["color"], linewidth=2.2, zorder=3)
        axes.annotate(
            method.chosen[0].measure.text(mean),
            xy=(1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=look["color"],
        )
    axes.set_yticks(range(len(problem)), [method.label for method in problem])
    for label, method in zip(axes.get_yticklabels(), problem, strict=True):
        label.set_color(looks[method.chosen[0].folder][1]["color"])
    axes.set_ylim(len(problem) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if problem[0].chosen[0].measure is ACCURACY:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
