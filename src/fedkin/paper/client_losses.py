"""A table of the loss at every client: methods with settings chosen on validation samples, next to printed values."""

import json
from collections.abc import Sequence

import numpy as np

from fedkin.algorithms.registry import label_of
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.groups import groups_of
from fedkin.reports.labels import plain, short
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell
from fedkin.types import Floats


def client_losses(context: Context) -> Output:
    """A row per method: the loss of the models that clients use on their testing samples, without a penalty.

    Every client counts the same, however many samples it has. A method's setting is the one with the lowest validation
    loss, averaged over the repetitions; the standard deviation is over the clients, averaged over the repetitions.
    """
    rows = []
    for part in context.reproduction.parts:
        found: dict[str, list[Run]] = {}
        for group in groups_of(context.runs(part)):
            if not all(np.isfinite(run.validation_loss) for run in group):
                continue
            method = group[0].algorithm
            if method not in found or _validation(group) < _validation(found[method]):
                found[method] = group
        rows += [_row(context, label_of(method), group) for method, group in found.items()]
    columns = (
        *("method", "settings", "repetitions", "loss", "± over clients"),
        *("benchmark", "± over clients, benchmark", "difference"),
    )
    notes = (
        "The loss is half the mean squared error, with marks scaled to 0–1: its mean over the schools, each with the "
        "same weight, and over the repetitions.",
        "Settings are those with the lowest loss on the schools' validation samples, of those that were tried.",
    )
    table = Table("", columns, tuple(rows))
    return Output(tables=(table,), spreadsheet=table, notes=notes)


def _validation(group: Sequence[Run]) -> float:
    return float(np.mean([run.validation_loss for run in group]))


def losses_of_clients(run: Run) -> Floats:
    """The loss of each client's model on its testing samples, (C,)."""
    lines = (run.folder / "clients.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["own_loss"] for line in lines])


def _row(context: Context, method: str, group: Sequence[Run]) -> tuple[Cell, ...]:
    each = [losses_of_clients(run) for run in group]
    mean, spread = float(np.mean([of.mean() for of in each])), float(np.mean([of.std() for of in each]))
    printed, printed_spread = context.reproduction.printed.get(method, (None, None))
    settings = {"local.step_size": group[0].settings["local.step_size"], **group[0].hyperparameters}
    form = "{:.4f}"
    return (
        text_cell(method),
        text_cell(", ".join(f"{short(key)}={plain(value)}" for key, value in settings.items())),
        number_cell("{:g}", len(group)),
        number_cell(form, mean),
        number_cell(form, spread),
        number_cell(form, printed),
        number_cell(form, printed_spread),
        Cell(NEVER) if context.quick or printed is None else number_cell("{:+.4f}", mean - printed),
    )
