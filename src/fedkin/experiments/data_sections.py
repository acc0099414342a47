"""Sections of the settings that are about data: where they come from, and how they are divided among clients."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedkin.data.client_sources import TableOptions, is_of_clients
from fedkin.errors import BadInput

Settings = dict[str, Any]
MOST = 10**9  # maximum of integer settings


class Section(BaseModel):
    """A table of a TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(Section):
    """Data set and preprocessing.

    source        digits, mnist, fashion_mnist, femnist, cifar10, cifar100, the path of an npz file, of a table (.csv,
                  .parquet), or of a folder with a file for each client
    preprocess    half: (x − 0.5)/0.5; standardise: mean and deviation of each feature; by client: those of each client;
                  none; auto: half for pixels, standardise for other numbers, none for whole numbers
    target        of tables: the column to be predicted (default: the one called target, label, y, outcome or class)
    client        of one table: the column that names the client (default: client)
    drop          of tables: columns that are left out, in one string such as "id, name"
    categories    of tables: columns whose values are names although they look like numbers, in one string
    indicators    of tables: whether missing values get a feature that says so
    task          what is predicted: classes, binary (two classes, one score), regression; auto: by the values
    scale_target  scaling of a number that is predicted: standardise, minmax, none
    """

    source: str = "digits"
    preprocess: Literal["auto", "half", "standardise", "by client", "none"] = "auto"
    target: str | None = None
    client: str | None = None
    drop: str = ""
    categories: str = ""
    indicators: bool = True
    task: Literal["auto", "classes", "binary", "regression"] = "auto"
    scale_target: Literal["standardise", "minmax", "none"] = "standardise"

    @property
    def has_clients(self) -> bool:
        """Whether the source has clients of its own: a folder, or a table."""
        return is_of_clients(self.source)

    def table_options(self) -> TableOptions:
        """How tables are understood."""
        columns = {"drop": words_in(self.drop), "categories": words_in(self.categories)}
        return TableOptions(self.target, self.client, **columns, indicators=self.indicators, task=self.task)


class Partition(Section):
    """Partition of the samples into clients.

    clients          C training and C testing clients
    class_imbalance  a ≥ 0 (Dirichlet); 0 is balanced
    size_imbalance   b ≥ 0 (log-normal); 0 is balanced
    scheme           `paired`: testing client i has the class mix and share of training client i; `paper` (the paper's
                     text) and `published` (its published code) divide both parts independently
    mixes            how class mixes are sampled, `paper` or `published` (default: as the scheme)
    clusters         number of clusters of clients, each with classes that no other cluster has (0: none)
    labels_each      number of classes of each client, the same for all (0: by class_imbalance)
    group            natural partition by a group key of the data, such as writer, instead of the above
    groups           with a group: only so many of its values, the first ones in their order (0: all)
    own_test         with a group: every client keeps a share of its own samples for testing, and the testing part of
                     the source is not used
    kinds            number of groups of clients that differ from each other (0: none)
    kind_shares      relative sizes of these groups in one string, such as "0.5, 0.3, 0.2" (default: equal)
    differ           how groups differ: images `rotated`, labels `permuted`, or `classes` of their own; `angles`: no
                     groups, but images of each client rotated by an angle of its own
    samples          at most so many training and validation samples of each client (0: all)
    test             share of the samples for testing, if the source has no testing part; of each client, if the source
                     has clients of its own or with a group
    validation       share of each client's training samples that is held out; `auto`: 0.2 if the algorithm uses
                     validation samples, else 0
    newcomers        share of the clients that are never sampled for training
    pooled           all training samples in one place, to compare with; testing clients stay. The graph is uniform
                     and `take_part` has no effect
    """

    clients: int = Field(default=100, ge=2, le=MOST)
    class_imbalance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    size_imbalance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    scheme: Literal["paired", "paper", "published"] = "paired"
    mixes: Literal["paper", "published"] | None = None
    clusters: int = Field(default=0, ge=0, le=MOST)
    labels_each: int = Field(default=0, ge=0, le=MOST)
    group: str | None = None
    groups: int = Field(default=0, ge=0, le=MOST)
    own_test: bool = False
    kinds: int = Field(default=0, ge=0, le=MOST)
    kind_shares: str = ""
    differ: Literal["rotated", "permuted", "classes", "angles"] = "rotated"
    samples: int = Field(default=0, ge=0, le=MOST)
    test: float = Field(default=0.2, gt=0, lt=1)
    validation: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    newcomers: float = Field(default=0.0, ge=0, lt=1)
    pooled: bool = False

    @field_validator("kind_shares", mode="before")
    @classmethod
    def _numbers(cls, text: Any) -> Any:
        try:
            _numbers_in(text)
        except (AttributeError, ValueError):
            raise BadInput(
                f"partition.kind_shares = {text!r} is not valid: write all shares in one string, such as "
                "'0.5, 0.3, 0.2', because a list makes a grid"
            ) from None
        return text

    @model_validator(mode="after")
    def _of_groups(self) -> "Partition":
        if self.group is None and (self.groups or self.own_test):
            wrong = "groups" if self.groups else "own_test"
            raise BadInput(f"partition.{wrong} is about clients by a group of the data: set partition.group, too")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """`kind_shares` as numbers."""
        return _numbers_in(self.kind_shares)


def words_in(text: str) -> tuple[str, ...]:
    """The names in a string, which commas separate.

    >>> words_in("id, name of the ward,")
    ('id', 'name of the ward')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers_in(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(",")) if text.strip() else ()
