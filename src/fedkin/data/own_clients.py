"""Clients with samples of their own, as arrays or tables, which each divides into training and testing samples."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.assembly import Parts, assembled
from fedkin.data.columns import Column
from fedkin.data.dataset import Array, from_arrays
from fedkin.data.division import divided_within
from fedkin.data.encoding import Encoding, agreed_encoding
from fedkin.data.features import require_preprocessing
from fedkin.data.federation import Federation
from fedkin.data.remarks import remarks_on_columns
from fedkin.data.summaries import ColumnSummary, summary_of
from fedkin.data.target import Target
from fedkin.errors import BadInput
from fedkin.types import Integers


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """The samples of clients: features of each client, as an array or as columns by name, and its target values."""

    names: tuple[str, ...]
    x: tuple[Any, ...]
    y: tuple[Array, ...]

    @property
    def sizes(self) -> Integers:
        """Number of samples of each client, (C,)."""
        return np.array([len(y) for y in self.y])

    def who(self, client: int) -> str:
        """A client as it is named in messages."""
        return f"client '{self.names[client]}'" if self.names else f"client {client}"


@dataclass(frozen=True, eq=False)
class OwnClients:
    """Clients with samples of their own.

    samples     for training, and also for validation and testing unless `test` is given
    test        testing clients, if they are apart
    kinds       of tables: what each column holds, the same at all clients; None for arrays
    categories  columns that are categories even if no value occurs twice
    indicators  whether missing values get a feature that says so
    """

    name: str
    samples: ClientSamples
    target: Target
    test: ClientSamples | None = None
    kinds: Mapping[str, str] | None = None
    categories: tuple[str, ...] = ()
    indicators: bool = True

    @property
    def paired(self) -> bool:
        """Whether testing client i belongs to training client i."""
        return self.test is None or len(self.test.y) == len(self.samples.y)

    def federation(
        self,
        *,
        test: float = 0.2,
        validation: float = 0.0,
        samples: int = 0,
        preprocess: str = "auto",
        scale_target: str = "standardise",
        seed: int = 0,
    ) -> Federation:
        """The federation in which each client has divided its samples; see `divided_within`.

        Tables are encoded as agreed from summaries of the rows for training alone; see `fedkin.data.encoding`.
        """
        own, apart, by_client = self.samples, self.test, preprocess == "by client"
        preprocess = "none" if by_client else preprocess
        if apart is None and not 0 < test < 1:
            raise BadInput(f"the share of testing samples is {test:g}: it must be above 0 and less than 1")
        strata = [self._strata(y) for y in own.y]
        parts = divided_within(
            strata,
            test=0.0 if apart else test,
            validation=validation,
            samples=samples,
            seed=seed,
            names=own.names,
        )
        starts = np.cumsum([0, *own.sizes])[:-1]
        rows = [[start + part[which] for start, part in zip(starts, parts, strict=True)] for which in range(3)]
        every = [own] if apart is None else [own, apart]
        if self.kinds is None:
            encoding, kind = None, preprocess
            x = np.concatenate([x for part in every for x in part.x])
        else:
            encoding, kind = self.encoding([part[0] for part in parts], preprocess), "none"
            x = np.concatenate([encoding.encoded(x, part.who(i)) for part in every for i, x in enumerate(part.x)])
        y = np.concatenate([y for part in every for y in part.y])
        dataset = from_arrays(x, y, x, y, name=self.name, target=self.target)
        tested: Parts = (own.names, rows[2])
        if apart is not None:
            ends = np.cumsum(apart.sizes)[:-1]
            tested = apart.names, np.split(np.arange(int(own.sizes.sum()), len(y)), ends)
        federation = assembled(
            dataset,
            (own.names, rows[0]),
            tested,
            kind,
            scale_target,
            paired=self.paired,
            validation=(own.names, rows[1]) if validation else None,
        )
        federation = replace(federation, encoding=encoding)
        return federation.standardised_by_client() if by_client else federation

    def _strata(self, y: Array) -> Integers:
        """The classes of a client's samples; samples with numbers are all of one class."""
        return np.zeros(len(y), dtype=np.int64) if self.target.is_number else self.target.encoded(y)

    def summaries(self, rows: Sequence[NDArray[Any]] | None = None) -> dict[str, list[ColumnSummary]]:
        """What the clients send: a summary of each column of a table, of all rows or of these ones."""
        assert self.kinds is not None
        return {
            name: [
                summary_of(_column(columns, name, kind, None if rows is None else rows[i]))
                for i, columns in enumerate(self.samples.x)
            ]
            for name, kind in self.kinds.items()
        }

    def encoding(self, rows: Sequence[NDArray[Any]], preprocess: str = "auto") -> Encoding:
        """The encoding of tables that the clients agree on by summaries of these rows, with warnings."""
        assert self.kinds is not None
        require_preprocessing(preprocess)
        if preprocess == "half":
            raise BadInput("preprocess = 'half' is for pixels, not for the columns of tables: use 'auto'")
        summaries = self.summaries(rows)
        found = agreed_encoding(
            self.kinds,
            summaries,
            standardise=preprocess != "none",
            indicators=self.indicators,
            categories=self.categories,
        )
        for sentence in remarks_on_columns(found, summaries, self.samples.names):
            warnings.warn(sentence, stacklevel=2)
        return found


def _column(columns: Mapping[str, Column], name: str, kind: str, rows: NDArray[Any] | None) -> Column:
    column = columns[name].as_text() if kind == "text" and columns[name].kind != "empty" else columns[name]
    return column if rows is None else column.taken(rows)
