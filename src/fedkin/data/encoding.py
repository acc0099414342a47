"""The encoding of tables as features: agreed from the clients' summaries, and applied by each client to its rows.

    number    (v − mean) / deviation, with mean and standard deviation of all clients' training rows; missing: 0
    date      the same, of days since 1970-01-01
    boolean   0 or 1; missing: the share of 1
    text      one feature per category, 0 or 1; a category that is not known, and a missing one, has 0 throughout
    missing   where values of a column are missing, a further feature: 1 if missing, else 0

Without standardisation numbers stay in their units, and a missing one becomes the mean.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.columns import Column, column_of
from fedkin.data.summaries import MOST_CATEGORIES, ColumnSummary, combined_summary
from fedkin.errors import BadInput

Columns = Mapping[str, Column]
# A deviation that is so small in relation to the mean is rounding error: the column is constant.
CONSTANT = 1e-12
SHOWN = 6  # categories that are listed in a description


@dataclass(frozen=True)
class Step:
    """What becomes of one column.

    kind          of the column: number, boolean, date or text
    shift, scale  a value v becomes (v − shift) / scale
    fill          what a missing value is replaced by
    categories    of text, in alphabetical order, one feature each
    indicator     whether there is a further feature that is 1 where the value is missing
    """

    column: str
    kind: str
    shift: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] = ()
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        names = [f"{self.column} = {word}" for word in self.categories] if self.kind == "text" else [self.column]
        return (*names, *([f"{self.column} is missing"] if self.indicator else []))

    def write(self, column: Column, out: NDArray[np.float32]) -> None:
        """Write the features of a column, (n, number of features)."""
        missing, width = column.missing, len(self.categories) if self.kind == "text" else 1
        if self.kind == "text":
            place_of = {word: place for place, word in enumerate(self.categories)}
            # The last entry is that of −1: a missing value, like an unknown one, is in no category.
            places = np.array([place_of.get(word, -1) for word in column.words] + [-1])[column.values.astype(np.int64)]
            rows = np.flatnonzero(places >= 0)
            out[rows, places[rows]] = 1
        else:
            out[:, 0] = (np.where(missing, self.fill, column.values) - self.shift) / self.scale
        if self.indicator:
            out[:, width] = missing

    def described(self) -> str:
        """The step in words."""
        if self.kind == "text":
            listed = ", ".join(self.categories[:SHOWN]) + (", …" if len(self.categories) > SHOWN else "")
            said = f"a feature for each of {len(self.categories)} categories: {listed}"
        elif self.kind == "boolean":
            said = "0 or 1"
        elif (self.shift, self.scale) != (0.0, 1.0):
            unit = "days, " if self.kind == "date" else ""
            said = f"{unit}standardised: mean {_shown(self, self.shift)}, deviation {self.scale:.4g}"
        else:
            said = "days since 1970-01-01" if self.kind == "date" else "as it is"
        return said + ("; a feature says where it is missing" if self.indicator else "")


def _shown(step: Step, value: float) -> str:
    return str(np.datetime64(round(value), "D")) if step.kind == "date" else f"{value:.4g}"


@dataclass(frozen=True)
class Encoding:
    """The steps by which the rows of any client become features, in alphabetical order of the columns.

    left_out  columns that become no features, with the reason
    """

    steps: tuple[Step, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all features, in their order."""
        return tuple(name for step in self.steps for name in step.features)

    def transform(self, table: Any, where: str = "the table") -> NDArray[np.float32]:
        """The features of the rows of a table, (n, D): a data frame, or arrays or lists by column name.

        The columns may be in any order, and others are ignored. `where` names the table in errors.
        """
        return self.encoded(self._read(table, where), where)

    def _read(self, table: Any, where: str) -> dict[str, Column]:
        if not isinstance(table, Mapping):
            from fedkin.data.tables import sheet_of_frame  # it needs an optional library

            return sheet_of_frame(table, where).columns
        wanted = {step.column for step in self.steps}
        return {name: column_of(table[name], f"column '{name}' of {where}") for name in table if name in wanted}

    def encoded(self, columns: Columns, where: str) -> NDArray[np.float32]:
        """The features of columns."""
        for step in self.steps:
            if step.column not in columns:
                raise BadInput(f"{where} has no column '{step.column}': add it, empty where its values are unknown")
        lengths = {len(columns[step.column]) for step in self.steps}
        if len(lengths) > 1:
            raise BadInput(f"{where} has columns of different lengths ({sorted(lengths)}): give one value per row")
        out = np.zeros((lengths.pop() if lengths else 0, len(self.features)), dtype=np.float32)
        start = 0
        for step in self.steps:
            column = columns[step.column]
            if step.kind == "date":
                column = column.as_dates()  # as data frames hold them that were read from a CSV file
            if step.kind == "text" and column.kind != "empty":
                column = column.as_text()
            elif column.kind not in (step.kind, "empty") and {step.kind, column.kind} != {"number", "boolean"}:
                raise BadInput(
                    f"column '{step.column}' of {where} holds {NOUN[column.kind]} where {NOUN[step.kind]} are "
                    "expected: give it in the type that the model was trained on"
                )
            if column.kind not in ("text", "empty") and np.isinf(column.values).any():
                raise BadInput(
                    f"column '{step.column}' of {where} has infinite values: replace them or leave them empty"
                )
            if column.kind == "empty" and step.kind == "text":
                column = Column("text", np.full(len(column), -1))
            step.write(column, out[:, start : start + len(step.features)])
            start += len(step.features)
        return out

    def to_dict(self) -> dict[str, Any]:
        """The encoding as a dictionary of plain values, from which `from_dict` makes it again."""
        usual = asdict(Step("", ""))
        steps = [{key: value for key, value in asdict(s).items() if value != usual[key]} for s in self.steps]
        for step in steps:
            if "categories" in step:
                step["categories"] = list(step["categories"])
        return {"steps": steps, "left_out": dict(self.left_out)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Encoding":
        """The encoding that `to_dict` has written."""
        try:
            steps = tuple(Step(**{**step, "categories": tuple(step.get("categories", ()))}) for step in values["steps"])
            numbers = [value for step in steps for value in (step.shift, step.scale, step.fill)]
            sound = all(step.kind in NOUN for step in steps) and all(map(math.isfinite, numbers))
            left_out = dict(values.get("left_out", {}))
        except (TypeError, KeyError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise BadInput("this is not an encoding, or a damaged one: write it again with Encoding.to_dict")
        return cls(steps, left_out)

    def to_json(self) -> str:
        """The encoding as text, from which `from_json` makes it again."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """The encoding that `to_json` has written."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        return cls.from_dict(values if isinstance(values, dict) else {})


NOUN = {"number": "numbers", "boolean": "booleans", "date": "dates", "text": "text"}


def agreed_encoding(
    kinds: Mapping[str, str],
    summaries: Mapping[str, Sequence[ColumnSummary]],
    *,
    standardise: bool = True,
    indicators: bool = True,
    categories: Sequence[str] = (),
) -> Encoding:
    """What the server makes of the clients' summaries of each column.

    kinds        of the columns, as agreed by all clients
    standardise  whether numbers get mean 0 and deviation 1
    indicators   whether missing values have a feature that says so
    categories   columns of text that stay categories even if no value occurs twice
    """
    steps, left_out = [], {}
    for name in sorted(kinds):
        kind, whole = kinds[name], combined_summary(summaries[name])
        indicator = indicators and whole.missing > 0
        if not whole.count:
            left_out[name] = "no value at any client"
        elif kind == "text":
            if whole.identifies and name not in categories:
                left_out[name] = "an identifier, no value occurs twice at a client"
            elif len(whole.words) == 1 and not indicator:
                left_out[name] = f"constant, always '{next(iter(whole.words))}'"
            else:
                often = sorted(whole.words, key=lambda word: (-whole.words[word], word))[:MOST_CATEGORIES]
                steps.append(Step(name, "text", categories=tuple(sorted(often)), indicator=indicator))
        elif whole.deviation <= CONSTANT * abs(whole.mean) and not indicator:
            left_out[name] = f"constant, always {_shown(Step(name, kind), whole.mean)}"
        else:
            scaled = standardise and kind != "boolean"
            shift = whole.mean if scaled else 0.0
            constant = whole.deviation <= CONSTANT * abs(whole.mean)
            scale = whole.deviation if scaled and not constant else 1.0
            steps.append(Step(name, kind, shift, scale, fill=whole.mean, indicator=indicator))
    if not steps:
        raise BadInput("no column is left to learn from: give columns whose values differ, besides the target")
    return Encoding(tuple(steps), left_out)
