"""What `fedkin kin` shows: a summary of each run with kin as text, and its picture as files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedkin.data.measure import ACCURACY
from fedkin.reports.figures import save
from fedkin.reports.kin_figure import drawn_edges, kin_figure
from fedkin.reports.kin_runs import Gains, KinRun, kin_runs


def kin_views(folder: Path | str, name: str | None = None, out: Path | str | None = None) -> Iterator[RenderableType]:
    """For each run with kin in a folder: a summary as text. Its picture is written to the run's folder, or to `out`."""
    found = kin_runs(folder, name)
    several = len({kin.run.experiment for kin in found}) > 1
    for kin in found:
        stem = kin.run.folder / "kin"
        if out is not None:
            stem = (Path(out) / kin.run.experiment if several else Path(out)) / f"kin-{kin.run.name}"
        files = save(kin_figure(kin), stem)
        yield Group(kin_text(kin), *(Text(f"wrote {path}") for path in files))


def kin_text(kin: KinRun) -> RenderableType:
    """What was chosen and when, how the graph of kin agrees with the true kinds, and what clients gain."""
    facts = Table.grid(padding=(0, 2))
    clients, newcomers = len(kin.clients), int(kin.new.sum())
    facts.add_row("clients", f"{clients}, of them {newcomers} newcomers" if newcomers else f"{clients}")
    for place, (round, words) in enumerate(kin.choices()):
        facts.add_row("start" if place == 0 else "", f"after round {round}: {words}" if _is_chosen(kin) else words)
    if others := kin.others():
        words = "; ".join(f"{count} × {words}" for words, count in others.items())
        facts.add_row("others", f"{sum(others.values())} clients differ at the end (start, model used): {words}")
    for row in _graph_rows(kin):
        facts.add_row(*row)
    parts: list[RenderableType] = [Text(f"{kin.run.experiment}: {kin.run.label}", style="bold"), facts]
    return Group(*parts, _gains_table(kin)) if kin.gains else Group(*parts)


def _is_chosen(kin: KinRun) -> bool:
    return any("start" in record for record in kin.rounds)


def _graph_rows(kin: KinRun) -> Iterator[tuple[str, str]]:
    if kin.weights is None:
        yield "kin", "none: all clients start at the global model"
        return
    counts, sizes = np.diff(kin.pairs.indptr), kin.components
    yield "kin", f"{counts.min()} to {counts.max()} of each client, median {np.median(counts):g}; itself not counted"
    largest = ", ".join(str(size) for size in sizes[:8]) + (", …" if len(sizes) > 8 else "")
    yield "components", f"{len(sizes)}, with {largest} clients"
    if (purity := kin.purity()) is not None:
        yield (
            "true kinds",
            f"{100 * purity[0]:.1f} % of the pairs of kin are of one kind ({100 * purity[1]:.1f} % of all pairs)",
        )
    if (angle := kin.angle()) is not None:
        yield "true angles", f"kin are {angle:.1f}° apart on average (90° by chance)"
    if len(drawn_edges(kin)) < len(kin.edges):
        yield "picture", f"a random sample of {len(drawn_edges(kin)):,} of {len(kin.edges):,} pairs is drawn"


def _gains_table(kin: KinRun) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("", "mean gain", "gain", "lose", "worst tenth", "")
    for column in table.columns[1:]:
        column.justify = "right"
    for gains in kin.gains:
        table.add_row(*_cells(f"over {gains.over}", gains.among(~kin.new)), gains.run and f"run {gains.run}")
    for gains in kin.gains:
        if len((of_new := gains.among(kin.new)).each):
            table.add_row(*_cells(f"newcomers over {gains.over}", of_new), "")
    return table


def _cells(title: str, gains: Gains) -> tuple[str, ...]:
    """Mean gain, shares of clients, and the main measure of the worst tenth with the other and the own model."""
    before, after = (gains.measure.text(gains.worst_tenth(of)) for of in (gains.others, gains.own))
    unit = " points" if gains.measure is ACCURACY else ""
    return (
        title,
        f"{gains.points(gains.each.mean())}{unit}",
        f"{100 * gains.share_better:.0f} %",
        f"{100 * gains.share_worse:.0f} %",
        f"{before} → {after}",
    )
