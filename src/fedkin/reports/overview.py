"""A federation before training, as text and as a figure: sizes, class mixes, graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from scipy.sparse import triu

from fedkin.data.federation import Federation
from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.files import writable_folder
from fedkin.graph.similarity import MANY, SimilarityGraph
from fedkin.reports.figures import federation_figure, save
from fedkin.reports.histograms import histogram_text, sparkline
from fedkin.types import Floats


def views(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
) -> list[RenderableType]:
    """For each distinct federation of an experiment: a summary as text. Its figure is written to `out`."""
    listener = listener or Silent()
    preparation = Preparation(Path(data) if data else None, listener)
    shown: list[RenderableType] = []
    seen: list[Any] = []
    for plan in plans(source, overrides):
        split = plan.config.partition.model_copy(update={"pooled": False})  # pooled samples have no federation to show
        config = plan.config.model_copy(update={"partition": split})
        key = (config.data, config.partition, config.graph, config.seed)
        if key in seen:
            continue
        seen.append(key)
        folder = writable_folder(Path(out) / config.name)
        federation, graph = preparation.federation(config), preparation.graph(config)
        name = "federation" if len(seen) == 1 else f"federation-{len(seen)}"
        figure = federation_figure(
            federation.train.sizes,
            federation.train.class_counts(federation.classes),
            _pairs(config, graph),
            _spectrum(graph),
            _title(config, federation),
        )
        files = save(figure, folder / name)
        shown.append(_text(config, federation, graph, files))
    return shown


def _title(config: Experiment, federation: Federation) -> str:
    split = config.partition
    how = f"by {split.group}" if split.group else f"a = {split.class_imbalance:g}, b = {split.size_imbalance:g}"
    return f"{config.data.source}, {len(federation.train)} clients, {how}"


def _pairs(config: Experiment, graph: SimilarityGraph) -> Floats:
    """The misalignment of pairs of clients: of all, of neighbours, or none if the graph is not made from messages."""
    if graph.misalignment is not None:
        return np.asarray(graph.misalignment[np.triu_indices(len(graph), 1)])
    if config.graph.kind == "similarity" and config.graph.temperature == 1:
        return np.asarray(np.exp(-triu(graph.adjacency, 1).tocoo().data))  # A = −ln mis
    return np.zeros(0)


def _spectrum(graph: SimilarityGraph) -> Floats:
    """None for so many clients that it would take minutes."""
    return graph.spectrum if len(graph) <= MANY else np.zeros(0)


def _text(config: Experiment, federation: Federation, graph: SimilarityGraph, files: Sequence[Path]) -> RenderableType:
    train, test = federation.train, federation.test
    counts = train.class_counts(federation.classes)
    held = (counts > 0).sum(axis=1)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("samples", f"{len(train.y):,} training, {len(test.y):,} testing, {federation.features:,} features")
    facts.add_row("clients", f"{len(train)} training, {len(test)} testing")
    facts.add_row("sizes", f"{_spread(train.sizes)}   {sparkline(np.sort(train.sizes)[::-1])}")
    facts.add_row("classes", f"{federation.classes}; a client holds {_spread(held)} of them")
    degrees = graph.degrees * len(graph)
    facts.add_row("graph", f"{config.graph.kind}; degree pᵢ·C from {degrees.min():.3f} to {degrees.max():.3f}")
    spectrum, pairs = _spectrum(graph), _pairs(config, graph)
    if len(spectrum) > 1:
        ends = f"λ₂ = {spectrum[1]:.4g}, λ_max = {spectrum[-1]:.4g}"
        facts.add_row("Laplacian", f"{ends}   {sparkline(spectrum)}")
    parts: list[RenderableType] = [Text(_title(config, federation), style="bold"), facts]
    if pairs.size:
        low, middle, high = np.percentile(pairs, [25, 50, 75])
        parts.append(Text(f"misalignment of pairs: quartiles {low:.3g}, {middle:.3g}, {high:.3g}"))
        parts += [Text(f"  {line}") for line in histogram_text(pairs, log=True)]
    parts += [Text(f"wrote {path}") for path in files]
    return Group(*parts)


def _spread(values: Any) -> str:
    return f"{values.min()} to {values.max()}, median {np.median(values):g}"
