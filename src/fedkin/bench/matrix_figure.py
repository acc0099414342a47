"""The matrix as a heat map."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkin.bench.matrix_table import column_names, lines_by_row, named
from fedkin.reports.figures import FIGURE_WIDTH, INK, MUTED, style
from fedkin.types import Record

# Times faster: red is slower than the loop, blue faster; the same colours in all figures.
LOWEST, HIGHEST = 0.25, 64.0


def matrix_figure(cells: Sequence[Record]) -> Figure:
    """Times faster than the loop, a panel for each model: red below 1, blue above, on a logarithmic scale."""
    models = list(dict.fromkeys(cell["model"] for cell in cells))
    norm = TwoSlopeNorm(0.0, np.log2(LOWEST), np.log2(HIGHEST))
    with style():
        most = max(len(lines_by_row([c for c in cells if c["model"] == model])) for model in models)
        figure = Figure(figsize=(FIGURE_WIDTH, 1.6 + 0.27 * most), layout=ConstrainedLayoutEngine(w_pad=0.08))
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        shown: list[str] = []
        for axes, model in zip(panels, models, strict=True):
            lines, columns = lines_by_row([c for c in cells if c["model"] == model]), column_names()
            values = np.full((len(lines), len(columns)), np.nan)
            for y, (_, line) in enumerate(lines):
                for x, (words, _) in enumerate(columns):
                    if words in line:
                        values[y, x] = line[words]["ratio"]["median"]
            image = axes.imshow(np.log2(values), cmap="RdBu", norm=norm, aspect="auto")
            for (y, x), value in np.ndenumerate(values):
                if np.isfinite(value):
                    dark = abs(float(norm(np.log2(value))) - 0.5) > 0.32
                    axes.text(
                        x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else INK
                    )
            axes.set_xticks(range(len(columns)), [title.replace(", ", "\n") for _, title in columns])
            rows = [_row_name(row[1:]) for row, _ in lines]
            # Panels side by side with the same rows have their names on the left only.
            axes.set_yticks(range(len(rows)), [] if rows == shown else rows, fontsize=8)
            shown = rows
            axes.grid(visible=False)
            axes.tick_params(length=0)
            axes.set_title(model, loc="left")
            for spine in axes.spines.values():
                spine.set_visible(False)
        bar = figure.colorbar(image, ax=list(panels), orientation="horizontal", aspect=60, pad=0.02)
        ticks = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64]
        bar.set_ticks(np.log2(ticks).tolist(), labels=[f"{tick:g}" for tick in ticks])
        bar.outline.set_visible(False)
        bar.set_label("times faster than the loop, per run", color=MUTED)
    return figure


def _row_name(words: Sequence[str]) -> str:
    sizes, clients, batch, runs = map(named, words)
    return f"{sizes}, {clients}, B = {batch}, {runs}"
