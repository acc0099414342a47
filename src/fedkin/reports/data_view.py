"""Data before anything is trained: which clients there are, what each column was understood as, what becomes of it."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedkin.data.dataset import Dataset
from fedkin.data.features import chosen_preprocessing
from fedkin.data.federation import Federation
from fedkin.data.own_clients import OwnClients
from fedkin.data.remarks import remarks_on_classes
from fedkin.data.target import Target
from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import experiment_of, experiment_on, plans
from fedkin.experiments.preparation import Preparation
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell

MOST_CLIENTS = 30  # of clients that are shown one by one
MOST_SHOWN = 6  # classes or clients that have a column each
# What `auto` has chosen, in words.
SCALED = {
    "half": "pixels: (x − 0.5) / 0.5",
    "standardise": "standardised: mean 0 and deviation 1",
    "none": "left as they are",
    "by client": "standardised at each client",
}


def data_views(
    source: Path | str | None,
    settings: Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    data: Path | None = None,
) -> list[RenderableType]:
    """What was understood of a source of data, or of that of an experiment (a TOML file; None: the embedded one).

    settings  of the section `data` of an experiment, such as `target`
    """
    if source is None or str(source).lower().endswith(".toml"):
        todo = plans(experiment_of(source, settings), overrides)
    else:  # also what is not there: it is missed as data
        todo = plans(experiment_on(source, settings), overrides)
    shown: list[RenderableType] = []
    seen: list[Any] = []
    preparation = Preparation(data)
    for plan in todo:
        if (key := plan.config.data) not in seen:  # of several seeds, the first
            seen.append(key)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = preparation.dataset(plan.config)
                if isinstance(found, OwnClients):
                    shown += _of_clients(plan.config, found, preparation.federation(plan.config))
                else:
                    shown += _of_dataset(plan.config, found)
            said = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
            shown += _worth_a_look([*dict.fromkeys(said), *_of_classes(found)])
    return shown


def _worth_a_look(sentences: Sequence[str]) -> list[RenderableType]:
    return [Text("Worth a look", style="bold"), *(Text(f"• {said}") for said in sentences)] if sentences else []


def _of_classes(data: Dataset | OwnClients) -> list[str]:
    if not isinstance(data, OwnClients) or data.target.is_number:
        return []
    counts, names = _class_counts(data), _class_names(data.target, data)
    return remarks_on_classes(counts, names, _client_names(data))


def _class_counts(own: OwnClients) -> Any:
    classes = len(_class_names(own.target, own))
    return np.array([np.bincount(own.target.encoded(y), minlength=classes) for y in own.samples.y])


def _class_names(target: Target, data: Dataset | OwnClients) -> tuple[str, ...]:
    if target.names:
        return target.names
    every = [data.y_train, data.y_test] if isinstance(data, Dataset) else list(data.samples.y)
    return tuple(str(k) for k in range(1 + max(int(target.encoded(y).max()) for y in every if len(y))))


def _client_names(own: OwnClients) -> tuple[str, ...]:
    return own.samples.names or tuple(str(i) for i in range(len(own.samples.y)))


# -- clients with samples of their own ---------------------------------------------------------------------------------


def _of_clients(config: Experiment, own: OwnClients, federation: Federation) -> list[RenderableType]:
    rows = int(own.samples.sizes.sum())
    columns = f" from {len(own.kinds)} columns" if own.kinds is not None else f", {_scaled(config, own)}"
    head = f"{config.data.source}: {len(own.samples.y)} clients, {rows:,} rows, {federation.features} features{columns}"
    parts: list[RenderableType] = [Text(head, style="bold"), Text(_target_text(own)), _client_table(own, federation)]
    if own.kinds is not None:
        parts.append(_column_table(own, federation))
        parts += _missing_tables(own)
    return parts


def _scaled(config: Experiment, own: OwnClients) -> str:
    return SCALED[chosen_preprocessing(config.data.preprocess, *own.samples.x)]


def _target_text(data: Dataset | OwnClients) -> str:
    target = data.target
    name = f"'{target.name}'" if target.name else "y"
    if target.is_number:
        return f"to predict: {name}, a number"
    names = _class_names(target, data)
    listed = ", ".join(names[:MOST_SHOWN]) + (", …" if len(names) > MOST_SHOWN else "")
    return f"to predict: {name}, one of {len(names)} classes: {listed}"


def _client_table(own: OwnClients, federation: Federation) -> Table:
    """Rows of each client, how they are divided, and its target values."""
    names, sizes = _client_names(own), own.samples.sizes
    held = federation.validation.sizes if federation.validation is not None else None
    columns = ["client", "rows", "training", *(["validation"] if held is not None else []), "testing"]
    cells: list[list[Cell]] = []
    for i, name in enumerate(names):
        divided = [federation.train.sizes[i], *([held[i]] if held is not None else [])]
        tested = federation.test.sizes[i] if federation.paired else None
        cells.append([text_cell(name), *(Cell(f"{n:,}", int(n)) for n in (sizes[i], *divided))])
        cells[-1].append(number_cell("{:,.0f}", None if tested is None else float(tested)))
    more, values = _target_columns(own)
    for row, further in zip(cells, values, strict=True):
        row += further
    title = "Clients"
    if len(cells) > MOST_CLIENTS:
        title = f"Clients, the first {MOST_CLIENTS} of {len(cells)}; they have {sizes.min():,} to {sizes.max():,} rows"
    return Table(title, (*columns, *more), tuple(map(tuple, cells[:MOST_CLIENTS])))


def _target_columns(own: OwnClients) -> tuple[list[str], list[list[Cell]]]:
    """Titles and cells about the target: shares of classes, or the range of numbers."""
    if own.target.is_number:
        measures = (np.mean, np.std, np.min, np.max)
        numbers = [[number_cell("{:.4g}", float(of(y))) for of in measures] for y in own.samples.y]
        return ["mean", "deviation", "lowest", "highest"], numbers
    names, counts = _class_names(own.target, own), _class_counts(own)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(names) <= MOST_SHOWN:
        return list(names), [[number_cell("{:.0%}", float(share)) for share in row] for row in shares]
    most = [[Cell(str((row > 0).sum()), int((row > 0).sum())), text_cell(names[int(row.argmax())])] for row in shares]
    return ["classes", "most frequent", "its share"], [
        [*cells, number_cell("{:.0%}", float(row.max()))] for cells, row in zip(most, shares, strict=True)
    ]


def _column_table(own: OwnClients, federation: Federation) -> Table:
    """Each column: what it holds, how much of it is missing, and what becomes of it."""
    assert own.kinds is not None
    assert federation.encoding is not None
    steps = {step.column: step for step in federation.encoding.steps}
    cells = []
    for name in sorted(own.kinds):
        missing = np.concatenate([columns[name].missing for columns in own.samples.x])
        share = float(missing.mean())
        becomes = steps[name].described() if name in steps else f"left out: {federation.encoding.left_out[name]}"
        cells.append((text_cell(name), text_cell(own.kinds[name]), Cell(_percent(share), share), text_cell(becomes)))
    return Table("Columns", ("column", "holds", "missing", "becomes"), tuple(cells))


def _percent(share: float) -> str:
    """A share in percent; one that is not 0 is not shown as 0."""
    return NEVER if share == 0 else "<1%" if share < 0.005 else f"{share:.0%}"


def _missing_tables(own: OwnClients) -> list[Table]:
    """Shares of missing values by client, for columns that have any."""
    assert own.kinds is not None
    names = _client_names(own)
    shares = {
        column: [float(columns[column].missing.mean()) for columns in own.samples.x] for column in sorted(own.kinds)
    }
    shares = {column: values for column, values in shares.items() if any(values)}
    if not shares:
        return []
    if len(names) <= MOST_SHOWN:
        rows = [(text_cell(c), *(Cell(_percent(v), v) for v in values)) for c, values in shares.items()]
        return [Table("Missing values by client", ("column", *names), tuple(rows))]
    rows = [
        (
            text_cell(column),
            Cell(_percent(min(values)), min(values)),
            Cell(_percent(float(np.median(values))), float(np.median(values))),
            Cell(_percent(max(values)), max(values)),
            text_cell(names[int(np.argmax(values))]),
        )
        for column, values in shares.items()
    ]
    return [Table("Missing values by client", ("column", "least", "median", "most", "at"), tuple(rows))]


# -- one data set ------------------------------------------------------------------------------------------------------


def _of_dataset(config: Experiment, dataset: Dataset) -> list[RenderableType]:
    """A data set that is divided among clients by the settings of the partition."""
    shape = " × ".join(map(str, dataset.x_train.shape[1:]))
    kind = "images" if dataset.x_train.ndim > 2 else "features"
    counts = f"{len(dataset.y_train):,} training and {len(dataset.y_test):,} testing samples"
    chosen = SCALED[chosen_preprocessing(config.data.preprocess, dataset.x_train, dataset.x_test)]
    low = min(float(dataset.x_train.min()), float(dataset.x_test.min()))
    high = max(float(dataset.x_train.max()), float(dataset.x_test.max()))
    parts: list[RenderableType] = [
        Text(f"{config.data.source}: {counts}, {shape} {kind}", style="bold"),
        Text(f"values of type {dataset.x_train.dtype} from {low:g} to {high:g}; {chosen}"),
    ]
    for name in sorted(dataset.groups_train):
        number = len(np.unique(dataset.groups_train[name]))
        parts.append(Text(f"group '{name}': {number:,} in the training part (partition.group = '{name}')"))
    return [*parts, Text(_target_text(dataset)), _target_table(dataset)]


def _target_table(dataset: Dataset) -> Table:
    if dataset.target.is_number:
        rows = [
            (text_cell(part), *(number_cell("{:.4g}", float(of(y))) for of in (np.mean, np.std, np.min, np.max)))
            for part, y in (("training", dataset.y_train), ("testing", dataset.y_test))
        ]
        return Table("", ("part", "mean", "deviation", "lowest", "highest"), tuple(rows))
    names = _class_names(dataset.target, dataset)
    counts = [np.bincount(y, minlength=len(names)) for y in (dataset.y_train, dataset.y_test)]
    cells = [
        (text_cell(name), *(Cell(f"{part[k]:,}", int(part[k])) for part in counts))
        for k, name in enumerate(names[:MOST_CLIENTS])
    ]
    more = f"The first {MOST_CLIENTS}" if len(names) > MOST_CLIENTS else ""
    return Table(more, ("class", "training", "testing"), tuple(cells))
