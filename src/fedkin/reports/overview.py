"""A federation before training, as text and as a figure: sizes, class mixes, graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from scipy.sparse import triu

from fedkin.data.federation import Federation
from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import Plan, plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.files import writable_folder
from fedkin.graph.kin import strongest
from fedkin.graph.similarity import MANY, SimilarityGraph
from fedkin.reports.figures import federation_figure, save
from fedkin.reports.histograms import histogram_text, sparkline
from fedkin.types import Floats, Integers

LISTED = 20  # at most so many clients are listed by name


def views(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
) -> list[RenderableType]:
    """For each distinct federation of an experiment: a summary as text. Its figure is written to `out`.

    Of federations that differ in their seeds only, the first is shown.
    """
    listener = listener or Silent()
    preparation = Preparation(Path(data) if data else None, listener)
    shown: list[RenderableType] = []
    for number, alike in enumerate(_federations(plans(source, overrides)), start=1):
        config, seeds = alike[0], list(dict.fromkeys(config.seed for config in alike))
        folder = writable_folder(Path(out) / config.name)
        federation, graph = preparation.federation(config), preparation.graph(config)
        figure = federation_figure(
            federation.train.sizes,
            _mixes(federation),
            _pairs(config, graph),
            _spectrum(graph),
            _title(config, federation),
            federation.train.names,
            parts="tenth of the values" if federation.target.is_number else "class",
        )
        files = save(figure, folder / ("federation" if number == 1 else f"federation-{number}"))
        shown.append(_text(config, federation, graph, seeds, files))
    return shown


def _federations(runs: Sequence[Plan]) -> list[list[Experiment]]:
    """The runs of each federation, whatever their seeds, algorithms and averaging weights."""
    groups: dict[Any, list[Experiment]] = {}
    for plan in runs:
        split = plan.config.partition.model_copy(update={"pooled": False})  # pooled samples have no federation to show
        config = plan.config.model_copy(update={"partition": split})
        edges = config.graph.model_dump(exclude={"weights"})
        groups.setdefault((config.data, config.partition, str(edges)), []).append(config)
    return list(groups.values())


def _title(config: Experiment, federation: Federation) -> str:
    split = config.partition
    how = f", by {split.group}" if split.group else f", a = {split.class_imbalance:g}, b = {split.size_imbalance:g}"
    return f"{config.data.source}, {len(federation.train)} clients{'' if config.data.has_clients else how}"


def _mixes(federation: Federation) -> Integers:
    """Samples of each class at each client, (C, K); of numbers, samples in each tenth of all training values."""
    train = federation.train
    if not federation.target.is_number:
        return train.class_counts(federation.classes)
    y = train.y.cpu().double().numpy()
    tenth = np.searchsorted(np.quantile(y, np.arange(1, 10) / 10), y, side="left")
    return replace(train, y=torch.from_numpy(tenth)).class_counts(10)


def _target(federation: Federation) -> tuple[str, str]:
    """What is predicted, in words."""
    target, train = federation.target, federation.train
    if target.is_number:
        y = train.y.cpu().double() * target.scale + target.shift
        return "target", f"a number from {y.min():.4g} to {y.max():.4g}, mean {y.mean():.4g}, deviation {y.std():.4g}"
    held = (train.class_counts(federation.classes) > 0).sum(axis=1)
    names = f" ({', '.join(target.names)})" if 0 < len(target.names) <= 6 else ""
    return "classes", f"{federation.classes}{names}; a client holds {_spread(held)} of them"


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


def _text(
    config: Experiment, federation: Federation, graph: SimilarityGraph, seeds: Sequence[int], files: Sequence[Path]
) -> RenderableType:
    train, test = federation.train, federation.test
    facts = Table.grid(padding=(0, 2))
    facts.add_row("samples", f"{len(train.y):,} training, {len(test.y):,} testing, {federation.features:,} features")
    facts.add_row("clients", f"{len(train)} training, {len(test)} testing")
    facts.add_row("sizes", f"{_spread(train.sizes)}   {sparkline(np.sort(train.sizes)[::-1])}")
    facts.add_row(*_target(federation))
    degrees = graph.degrees * len(graph)
    facts.add_row("graph", f"{config.graph.kind}; degree pᵢ·C from {degrees.min():.3f} to {degrees.max():.3f}")
    spectrum, pairs = _spectrum(graph), _pairs(config, graph)
    if len(spectrum) > 1:
        ends = f"λ₂ = {spectrum[1]:.4g}, λ_max = {spectrum[-1]:.4g}"
        facts.add_row("Laplacian", f"{ends}   {sparkline(spectrum)}")
    if len(seeds) > 1:
        others = ", ".join(map(str, seeds[1:]))
        facts.add_row("seed", f"{seeds[0]}; there is also {others}: --set seed={seeds[1]} shows that")
    parts: list[RenderableType] = [Text(_title(config, federation), style="bold"), facts]
    if train.names:
        parts.append(_named(config, federation, graph))
    if pairs.size:
        low, middle, high = np.percentile(pairs, [25, 50, 75])
        parts.append(Text(f"misalignment of pairs: quartiles {low:.3g}, {middle:.3g}, {high:.3g}"))
        parts += [Text(f"  {line}") for line in histogram_text(pairs, log=True)]
    parts += [Text(f"wrote {path}") for path in files]
    return Group(*parts)


def _named(config: Experiment, federation: Federation, graph: SimilarityGraph) -> Table:
    """The clients by name, the largest first: samples, and the most similar client. Of many, both ends of the list."""
    train = federation.train
    near = strongest(graph, 1)[:, 0] if config.graph.kind == "similarity" else np.full(len(train), -1)
    order = np.argsort(-train.sizes, kind="stable").tolist()
    table = Table("client", "samples", *(["most similar"] if (near >= 0).any() else []), box=SIMPLE_HEAD)
    for place, client in enumerate(order):
        if LISTED // 2 <= place < len(order) - LISTED // 2 and len(order) > LISTED:
            if place == LISTED // 2:
                table.add_row(Text(f"… {len(order) - 2 * (LISTED // 2)} more"))
            continue
        other = train.names[near[client]] if near[client] >= 0 else ""
        table.add_row(Text(train.names[client]), f"{train.sizes[client]:,}", Text(other))
    return table


def _spread(values: Any) -> str:
    return f"{values.min()} to {values.max()}, median {np.median(values):g}"
