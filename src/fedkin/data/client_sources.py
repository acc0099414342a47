"""Clients with samples of their own, from files, data frames and arrays; and the federation they form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedkin.data.agreement import (
    USUAL_CLIENTS,
    USUAL_TARGETS,
    agreed_kinds,
    by_client,
    column_called,
    finite_numbers,
    target_values,
    without_dropped,
)
from fedkin.data.dataset import Array, unusable
from fedkin.data.federation import Federation
from fedkin.data.own_clients import ClientSamples, OwnClients
from fedkin.data.sources import SOURCES, expanded, read_npz
from fedkin.data.tables import TABLES, Sheet, files_of_clients, read_table, sheet_of_frame
from fedkin.data.target import Target, column, target_of
from fedkin.errors import BadInput

Pair = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class TableOptions:
    """How tables are understood.

    target      the column to be predicted; None: the only one called target, label, y, outcome or class
    client      the column that names the client of a row, in one table of all clients; None: the one called client
    drop        columns that are left out
    categories  columns whose values are names, even if they look like numbers or identifiers
    indicators  whether missing values get a feature that says so
    task        `classes`, `binary`, `regression`, or `auto`, which decides by the values of the target
    """

    target: str | None = None
    client: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    indicators: bool = True
    task: str = "auto"


def is_of_clients(source: str | Path) -> bool:
    """Whether a source of data has clients of its own: a folder, or a table."""
    if str(source) in SOURCES or str(source).lower().endswith(".npz"):
        return False
    return Path(source).suffix.lower() in TABLES or expanded(Path(source)).is_dir()


def read_clients(source: str | Path, options: TableOptions | None = None) -> OwnClients:
    """The clients of a folder with a file for each, or of a table with a column that names them."""
    path, options = expanded(Path(source)), options or TableOptions()
    if path.is_dir():
        files = files_of_clients(path)
        kinds = {file.suffix.lower() == ".npz" for file in files.values()}
        if kinds == {True}:
            return _from_npz_files(files, path.name, options)
        if len(kinds) > 1:
            npz = next(file.name for file in files.values() if file.suffix.lower() == ".npz")
            raise BadInput(f"{path} has tables but also {npz}: give all clients the same kind of file")
        sheets = {client: read_table(file, options.drop) for client, file in files.items()}
        return clients_of_sheets(sheets, path.resolve().name, options)
    return clients_of_table(read_table(path, options.drop), path.stem, options, str(path))


def clients_of_table(sheet: Sheet, name: str, options: TableOptions, where: str) -> OwnClients:
    """The clients of one table, by the column that names them."""
    client = column_called(sheet, options.client, USUAL_CLIENTS, "client", where)
    if options.target == client:
        raise BadInput(f"the column '{client}' is both the client and the target: name another one as data.target")
    return clients_of_sheets(by_client(sheet, client, where), name, options)


def clients_of_sheets(
    sheets: Mapping[str, Sheet], name: str, options: TableOptions, test: Mapping[str, Sheet] | None = None
) -> OwnClients:
    """The clients of tables, one each, which agree on their columns; `test` are their testing rows, if apart."""
    if len(sheets) < 2:
        raise BadInput(
            f"{name} has rows of {len(sheets)} client: a federation needs at least two, with different names"
        )
    for client, sheet in sheets.items():
        if not len(sheet):
            raise BadInput(f"client '{client}' has no rows: give it samples, or leave the client out")
    without_dropped(sheets, options.drop)
    first = next(iter(sheets))
    target = column_called(sheets[first], options.target, USUAL_TARGETS, "target", f"client '{first}'")
    every = {**sheets, **{f"{client} (testing)": sheet for client, sheet in (test or {}).items()}}
    for client, sheet in every.items():
        if target not in sheet.columns:
            raise BadInput(
                f"client '{client}' has no column '{target}', the target of client '{first}': add it, or name a column "
                "that all clients have as data.target"
            )
    kinds = agreed_kinds(every, options.categories)
    finite_numbers(every)
    values = target_values(every, target, kinds.pop(target))
    found = target_of(np.concatenate(list(values.values())), options.task, where=f"the target '{target}'", name=target)

    def samples(part: Mapping[str, Sheet], suffix: str = "") -> ClientSamples:
        columns = [{key: sheet.columns[key] for key in kinds} for sheet in part.values()]
        return ClientSamples(tuple(part), tuple(columns), tuple(values[client + suffix] for client in part))

    apart = None if test is None else samples(test, " (testing)")
    return OwnClients(name, samples(sheets), found, apart, kinds, options.categories, options.indicators)


def clients_of_arrays(
    train: ClientSamples, test: ClientSamples | None, name: str, task: str = "auto", target: Target | None = None
) -> OwnClients:
    """The clients of arrays, which must have the same shape and type at all of them."""
    for part, samples in (("training", train), ("testing", test)):
        if samples is not None:
            _check_alike(samples, part)
    labels = np.concatenate([column(y) for samples in (train, test) if samples is not None for y in samples.y])
    return OwnClients(name, train, target or target_of(labels, task, where=f"{name}: y"), test)


def _check_alike(samples: ClientSamples, part: str) -> None:
    if not samples.y:
        raise BadInput(f"there are no {part} clients: give a pair (features, labels) per client")
    for i, (x, y) in enumerate(zip(samples.x, samples.y, strict=True)):
        who, first = f"{part} {samples.who(i)}", samples.x[0]
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise BadInput(
                f"{who} has features of shape {x.shape} and labels of shape {y.shape}: give one label per sample"
            )
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise BadInput(
                f"{who} has {x.dtype} samples of shape {x.shape[1:]} but {samples.who(0)} has {first.dtype} samples of "
                f"shape {first.shape[1:]}: bring them to the same shape and type"
            )
        if place := unusable(x):
            raise BadInput(f"{who} has NaN or infinite values (the first is {place}): clean its data first")
        if y.dtype.kind == "f" and not (good := np.isfinite(y)).all():
            raise BadInput(f"{who} has no label for sample {int(np.argmin(good))}: clean its data first")


def _from_npz_files(files: Mapping[str, Path], name: str, options: TableOptions) -> OwnClients:
    """Clients with an npz file each: `x y` (or `x_train y_train`), and `x_test y_test` at all clients or at none."""
    train: dict[str, Pair] = {}
    test: dict[str, Pair] = {}
    for client, path in files.items():
        arrays = read_npz(path)
        plain = "x" in arrays or "y" in arrays
        for part, found, keys in (
            ("train", train, ("x", "y") if plain else ("x_train", "y_train")),
            ("test", test, ("x_test", "y_test")),
        ):
            present = [key for key in keys if key in arrays]
            if len(present) == 2:
                found[client] = arrays[keys[0]], arrays[keys[1]]
            elif present or part == "train":
                missing = next(key for key in keys if key not in arrays)
                raise BadInput(
                    f"{path} has no array '{missing}': give x and y, and x_test and y_test if they are apart"
                )
    if test and test.keys() != train.keys():
        without = next(client for client in train if client not in test)
        raise BadInput(
            f"client '{without}' has no testing samples (x_test, y_test) but others have: give them to all, or to none"
        )
    return clients_of_arrays(pairs_of(train), pairs_of(test) if test else None, name, options.task)


def pairs_of(clients: Sequence[Pair] | Mapping[str, Pair], part: str = "training") -> ClientSamples:
    """Pairs of arrays as samples of clients."""
    names = tuple(str(name) for name in clients) if isinstance(clients, Mapping) else ()
    pairs = list(clients.values() if isinstance(clients, Mapping) else clients)
    x: list[Array] = []
    y: list[Array] = []
    for i, pair in enumerate(pairs):
        who = f"{part} client '{names[i]}'" if names else f"{part} client {i}"
        try:
            features, labels = pair
        except (TypeError, ValueError):
            raise BadInput(f"{who} is not a pair (features, labels): give both, or a data frame and target") from None
        try:
            x.append(np.asarray(features))
            y.append(np.asarray(labels))
        except ValueError:
            raise BadInput(f"{who} is ragged: all its samples must have the same shape") from None
    return ClientSamples(names, tuple(x), tuple(y))


def is_frame(value: Any) -> bool:
    """Whether a client is given as a table: a data frame, or arrays by name."""
    return isinstance(value, Mapping) or hasattr(value, "columns") or hasattr(value, "__arrow_c_stream__")


def from_clients(
    train: Sequence[Any] | Mapping[str, Any],
    test: Sequence[Any] | Mapping[str, Any] | float = 0.2,
    *,
    target: str | Target | None = None,
    validation: float = 0.0,
    preprocess: str = "auto",
    scale_target: str = "standardise",
    task: str = "auto",
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    indicators: bool = True,
    name: str = "clients",
    seed: int = 0,
) -> Federation:
    """A federation of existing clients: a list of clients, or a dictionary from their names to them.

    A client is a pair (features, labels), as in `from_arrays`, of the same shape and type at all clients; or a data
    frame, of which `target` is the column to be predicted. Columns are aligned by name, and encoded as
    `fedkin.data.encoding` says.

    test        the testing clients, or the share of each client's samples that is kept for testing. If there are as
                many testing as training clients, testing client i belongs to training client i; in dictionaries they
                have the same names.
    validation  share of each client's other samples that is held out for validation
    seed        redraws which samples are for testing and validation

    `drop`, `categories` and `indicators` are about data frames, see `TableOptions`.
    """
    if not isinstance(test, int | float) and isinstance(train, Mapping) != isinstance(test, Mapping):
        raise BadInput("training and testing clients must both be lists, or both dictionaries with the same names")
    apart = None if isinstance(test, int | float) else _in_order_of(train, test)
    clients = list(train.values() if isinstance(train, Mapping) else train)
    if clients and all(map(is_frame, clients)):
        wanted = target.name if isinstance(target, Target) else target
        options = TableOptions(wanted, None, tuple(drop), tuple(categories), indicators, task)
        sheets = _sheets(train, options)
        own = clients_of_sheets(sheets, name, options, None if apart is None else _sheets(apart, options))
    else:
        if isinstance(target, str):
            raise BadInput(f"target = '{target}' names a column, but clients are arrays: give data frames")
        tested = None if apart is None else pairs_of(apart, "testing")
        own = clients_of_arrays(pairs_of(train), tested, name, task, target)
    share = float(test) if isinstance(test, int | float) else 0.0
    return own.federation(
        test=share, validation=validation, preprocess=preprocess, scale_target=scale_target, seed=seed
    )


def _in_order_of(train: Sequence[Any] | Mapping[str, Any], test: Any) -> Any:
    """The testing clients; those of a dictionary in the order of the training clients."""
    if not isinstance(train, Mapping):
        return test
    if train.keys() != test.keys():
        other = sorted(map(str, train.keys() ^ test.keys()))[0]
        raise BadInput(f"client '{other}' is only among the training or the testing clients: give both the same names")
    return {name: test[name] for name in train}


def _sheets(clients: Sequence[Any] | Mapping[str, Any], options: TableOptions) -> dict[str, Sheet]:
    named = clients if isinstance(clients, Mapping) else {str(i): frame for i, frame in enumerate(clients)}
    return {str(name): sheet_of_frame(frame, f"client '{name}'", options.drop) for name, frame in named.items()}


def from_table(
    frame: Any,
    *,
    client: str | None = None,
    target: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    preprocess: str = "auto",
    scale_target: str = "standardise",
    task: str = "auto",
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    indicators: bool = True,
    name: str = "table",
    seed: int = 0,
) -> Federation:
    """A federation from one table, a data frame or the path of a CSV or Parquet file, whose column `client` says whose
    row it is. Other arguments are those of `from_clients`.
    """
    options = TableOptions(target, client, tuple(drop), tuple(categories), indicators, task)
    if isinstance(frame, str | Path):
        own = read_clients(frame, options)
    else:
        own = clients_of_table(sheet_of_frame(frame, "the table", options.drop), name, options, "the table")
    return own.federation(test=test, validation=validation, preprocess=preprocess, scale_target=scale_target, seed=seed)


def from_folder(
    path: str | Path,
    *,
    target: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    preprocess: str = "auto",
    scale_target: str = "standardise",
    task: str = "auto",
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    indicators: bool = True,
    seed: int = 0,
) -> Federation:
    """A federation from a folder with a CSV, Parquet or npz file for each client, which is called like the file.

    Other arguments are those of `from_clients`.
    """
    folder = expanded(Path(path))
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}: give one with a file for each client")
    own = read_clients(folder, TableOptions(target, None, tuple(drop), tuple(categories), indicators, task))
    return own.federation(test=test, validation=validation, preprocess=preprocess, scale_target=scale_target, seed=seed)
