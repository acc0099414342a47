"""Figures of the theory report: the measured gap and its bounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedkin.algorithms import FedKin
from fedkin.paper.bounds import convex_bound, tightened_bound
from fedkin.paper.trajectories import Trajectory
from fedkin.reports.figures import ACCENT, FIGURE_WIDTH, INK, MUTED, style

PANELS_PER_ROW = 3
WARM = "#c1440e"


def bounds_figure(runs: Sequence[Trajectory], title: str = "") -> Figure:
    """A panel for each run: the measured gap, the theorem's bound and the tightened one; then all runs side by side."""
    rows = -(-(len(runs) + 1) // PANELS_PER_ROW)
    with style():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, hspace=0.04)
        figure = Figure(figsize=(FIGURE_WIDTH, 2.6 * rows + 0.8), layout=layout)
        panels = figure.subplots(rows, PANELS_PER_ROW, squeeze=False, sharex=True)
        for panel, run in zip(panels.flat, runs, strict=False):
            _draw(panel, run)
        low = min(float(run.gap[run.gap > 0].min()) for run in runs) / 2
        high = max(float(convex_bound(run).max()) for run in runs) * 3
        for panel in panels.flat[: len(runs)]:
            panel.set_ylim(low, high)  # the same scale, so that panels can be compared
        _draw_together(panels.flat[len(runs)], runs)
        for panel in panels.flat[len(runs) + 1 :]:
            panel.set_visible(False)
        for panel in panels[:, 0]:
            panel.set_ylabel("F(w̄) − F*")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        figure.suptitle(title)
        lines = panels.flat[0].get_lines()
        figure.legend(handles=lines[:3], loc="outside lower center", ncols=3, handlelength=2.6)
    return figure


def _draw(axes: Axes, run: Trajectory) -> None:
    t = np.arange(len(run.gap))
    axes.plot(t, np.where(run.gap > 0, run.gap, np.nan), color=ACCENT, label="measured")
    axes.plot(t, convex_bound(run), color=WARM, linestyle="--", label="the theorem's bound")
    axes.plot(t, tightened_bound(run), color=INK, linestyle=":", label="the same proof, tightened")
    axes.axhline(run.gap[0], color=MUTED, linewidth=0.7)  # a bound above this line is vacuous
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(run.name, loc="left")


def _draw_together(axes: Axes, runs: Sequence[Trajectory]) -> None:
    for run in runs:
        if isinstance(run.algorithm, FedKin):
            light = 0.65 * (1 - run.beta)  # the further from FedAvg, the lighter
            color: Any = tuple(part + light * (1 - part) for part in to_rgb(ACCENT))
        else:
            color = WARM if run.alpha else INK
        axes.plot(np.where(run.gap > 0, run.gap, np.nan), color=color, linewidth=1.2, label=run.name)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high < 100 * low:  # powers of ten alone would leave one label or none
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title("all, measured", loc="left")
    axes.legend(fontsize=7, handlelength=1.2, labelspacing=0.2, borderaxespad=0.1)
