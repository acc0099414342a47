"""The settings of a run: validated tables of a TOML file. Unknown keys are errors."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedkin.algorithms import Algorithm, algorithm_named
from fedkin.algorithms.base import is_hyper
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput, in_short, nearest

Settings = dict[str, Any]
MOST = 10**9  # maximum of integer settings

# Settings that change how a run is executed but not its result.
IMMATERIAL = {"threads", "checkpoint_every"}


class Section(BaseModel):
    """A table of a TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


S = TypeVar("S", bound=Section)


class DataSection(Section):
    """Data set and preprocessing.

    source      digits, mnist, fashion_mnist, femnist, cifar10, cifar100, or the path of an npz file
    preprocess  half: (x − 0.5)/0.5; standardise: per-pixel mean and deviation; none
    """

    source: str = "digits"
    preprocess: Literal["half", "standardise", "none"] = "half"


class Partition(Section):
    """Partition of the samples into clients.

    clients          C training and C testing clients
    class_imbalance  a ≥ 0 (Dirichlet); 0 is balanced
    size_imbalance   b ≥ 0 (log-normal); 0 is balanced
    scheme           `paired`: testing client i has the class mix and share of training client i; `paper` (the paper's
                     text) and `published` (its published code) divide both parts independently
    mixes            how class mixes are sampled, `paper` or `published` (default: as the scheme)
    clusters         number of clusters of clients, each with classes that no other cluster has (0: none)
    group            natural partition by a group key of the data, such as writer, instead of the above
    kinds            number of groups of clients that differ from each other (0: none)
    kind_shares      relative sizes of these groups in one string, such as "0.5, 0.3, 0.2" (default: equal)
    differ           how groups differ: images `rotated`, labels `permuted`, or `classes` of their own; `angles`: no
                     groups, but images of each client rotated by an angle of its own
    samples          at most so many training and validation samples of each client (0: all)
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
    group: str | None = None
    kinds: int = Field(default=0, ge=0, le=MOST)
    kind_shares: str = ""
    differ: Literal["rotated", "permuted", "classes", "angles"] = "rotated"
    samples: int = Field(default=0, ge=0, le=MOST)
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

    @property
    def shares(self) -> tuple[float, ...]:
        """`kind_shares` as numbers."""
        return _numbers_in(self.kind_shares)


def _numbers_in(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(",")) if text.strip() else ()


# Settings whose default has changed: a recorded configuration without the key means the former default.
FORMER_DEFAULTS: Settings = {"partition": {"scheme": "published"}}


class Graph(Section):
    """Similarity graph of the clients.

    kind         similarity, or for comparison uniform, shuffled, global
    weights      averaging weights of the server: adjacency (the degrees), uniform, samples
    neighbours   number of nearest neighbours, which makes the graph sparse (0: all)
    search       nearest-neighbour search: exact, or approximate for very many clients
    temperature  below 1 strengthens strong edges, above 1 evens edges out (1: the paper's)
    pixels       messages from raw or preprocessed features
    floor        lower bound of misalignments (0: identical clients are an error)
    """

    kind: Literal["similarity", "uniform", "shuffled", "global", "kinds"] = "similarity"
    weights: Literal["adjacency", "uniform", "samples"] = "adjacency"
    neighbours: int = Field(default=0, ge=0, le=MOST)
    search: Literal["exact", "approximate"] = "exact"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    pixels: Literal["raw", "preprocessed"] = "raw"
    floor: float = Field(default=0.0, ge=0, lt=1)


class ModelSection(Section):
    """Model.

    kind    softmax, mlp, or the import path of a torch.nn.Module: package.module:Name
    hidden  hidden units of the mlp
    args    keyword arguments of an imported model
    """

    kind: str = "softmax"
    hidden: int = Field(default=128, ge=1, le=MOST)
    args: dict[str, Any] = Field(default_factory=dict)


class Scheduled(Section):
    """A hyper-parameter schedule: { from = 0.5, to = 1.0, over = 50, shape = "cosine" }."""

    start: float = Field(alias="from")
    end: float = Field(alias="to")
    over: int = Field(le=MOST)
    shape: str = "linear"

    def schedule(self) -> Schedule:
        """The schedule as an object for algorithms."""
        return Schedule(self.start, self.end, self.over, self.shape)


class LocalSection(Section):
    """Local training of a client in a round.

    step_size   γ, a number or a schedule
    epochs      E, passes over the client's samples
    batch_size  B, a number or "all"
    steps       number of steps, on a partition into as many batches, instead of epochs (0: epochs)
    order       order of the samples: fixed, or shuffled in each epoch
    l2          λ, coefficient of the L2 penalty
    clip        G, maximum gradient norm (inf: no clipping)
    """

    step_size: float | Scheduled = 1e-3
    epochs: int = Field(default=10, ge=1, le=MOST)
    batch_size: Annotated[int, Field(le=MOST)] | Literal["all"] = 256
    steps: int = Field(default=0, ge=0, le=MOST)
    order: Literal["fixed", "shuffled"] = "fixed"
    l2: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    clip: float = Field(default=float("inf"), gt=0)

    def work(self) -> Local:
        """The settings as an object for the engine."""
        return Local(
            epochs=self.epochs,
            batch_size=None if self.batch_size == "all" else self.batch_size,
            steps=self.steps or None,
            order=self.order,
            l2=self.l2,
            clip=None if self.clip == float("inf") else self.clip,
        )


class AlgorithmSection(Section):
    """Name and hyper-parameters of the algorithm; the keys are the fields of its class."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "fedavg"

    @model_validator(mode="after")
    def _known(self) -> "AlgorithmSection":
        valid = knobs(self.name)
        for key in self.model_extra or {}:
            if key not in valid:
                raise BadInput(
                    f"{self.name} has no key 'algorithm.{key}'"
                    + (nearest(key, valid) if valid else ": it has no hyper-parameters of its own")
                )
        return self

    def build(self, step_size: float | Scheduled) -> Algorithm:
        """The algorithm as an object, which checks the ranges of its fields."""
        kind = algorithm_named(self.name)
        values: Settings = {"step_size": step_size, **(self.model_extra or {})}
        for f in fields(kind):
            if f.name in values:
                values[f.name] = _field_value(kind, f, values[f.name])
        try:
            return kind(**values)
        except BadInput as error:
            raise BadInput(f"algorithm {self.name}: {error}") from None
        except (Exception, SystemExit) as error:  # whatever the user's class raises
            raise BadInput(
                f"the algorithm '{self.name}' cannot be built ({in_short(error)}): change its class or its settings"
            ) from error


def _field_value(kind: type[Algorithm], f: DataclassField[Any], value: Any) -> Any:
    """A setting as a field of an algorithm: a number or a schedule, else a value of the type of the field's default."""
    if isinstance(value, Scheduled):
        return value.schedule()
    if is_hyper(kind, f.name):
        if isinstance(value, Mapping):
            return validated(Scheduled, dict(value), f"algorithm.{f.name}").schedule()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"algorithm.{f.name} = {value!r} is not valid: it must be a number or a schedule")
        try:
            return float(value)
        except OverflowError:  # a whole number of hundreds of digits
            raise BadInput(f"algorithm.{f.name} is out of range: give a smaller number") from None
    elif f.default is not MISSING and f.default is not None and type(value) is not type(f.default):
        raise BadInput(f"algorithm.{f.name} = {value!r} is not valid: it must be {NOUNS[type(f.default)]}")
    return value


NOUNS = defaultdict(
    lambda: "of the type of its default", {int: "a whole number", str: "a string", bool: "true or false"}
)


def knobs(algorithm: str) -> list[str]:
    """The hyper-parameters of an algorithm other than the step size."""
    return [f.name for f in fields(algorithm_named(algorithm)) if f.name != "step_size"]


class Reading(Section):
    """The algorithm as the paper states it, or as its published code behaves. See `fedkin.experiments.readings`.

    anchors    published: in every round the u's are permuted among the clients
    averaging  published: in every round the averaging weights are permuted among the clients
    penalty    published: FedKin has no L2 penalty, the baselines have it
    proximal   published: FedProx has no proximal term
    sign       published: the sign of a message is arbitrary, as given by the singular value decomposition

    `reading = "published"` sets all of them.
    """

    anchors: Literal["paper", "published"] = "paper"
    averaging: Literal["paper", "published"] = "paper"
    penalty: Literal["paper", "published"] = "paper"
    proximal: Literal["paper", "published"] = "paper"
    sign: Literal["paper", "published"] = "paper"


class Experiment(Section):
    """All settings of one run.

    rounds            T, number of rounds
    threshold         accuracy for which the number of rounds is reported
    take_part         M, number of clients sampled per round, or "all"
    device            PyTorch device: cpu, cuda, …
    threads           processor threads (0: PyTorch's default)
    checkpoint_every  maximum number of rounds between checkpoints, which are at most about 30 seconds apart
    """

    name: str = "experiment"
    seed: int = Field(default=0, ge=0, lt=2**32)
    rounds: int = Field(default=200, ge=1, le=MOST)
    threshold: float = Field(default=0.75, gt=0, le=1)
    take_part: Annotated[int, Field(ge=1, le=MOST)] | Literal["all"] = "all"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0, le=1024)
    checkpoint_every: int = Field(default=10, ge=1, le=MOST)
    evaluate_every: int = Field(default=1, ge=1, le=MOST)
    data: DataSection = DataSection()
    partition: Partition = Partition()
    graph: Graph = Graph()
    model: ModelSection = ModelSection()
    local: LocalSection = LocalSection()
    reading: Reading = Reading()
    algorithm: AlgorithmSection = AlgorithmSection()

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not name.isprintable() or name != Path(name).name or name.startswith(".") or not name:
            raise BadInput(f"name = '{name}' is not valid: it must be usable as the name of a folder")
        return name

    @field_validator("algorithm", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("reading", mode="before")
    @classmethod
    def _all_alike(cls, value: Any) -> Any:
        return dict.fromkeys(Reading.model_fields, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if self.take_part != "all" and self.partition.group is None and self.take_part > self.partition.clients:
            raise BadInput(
                f"take_part = {self.take_part} is more than the {self.partition.clients} clients there are: lower it"
            )
        self.algorithm.build(self.local.step_size)
        self.local.work()
        return self


SECTIONS = {name: info.annotation for name, info in Experiment.model_fields.items()}


def validated(section: type[S], settings: Settings, at: str = "") -> S:
    """A section from raw settings. Raises `BadInput` for the first invalid setting."""
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (*filter(None, [at]), *first["loc"]) if str(part) not in _TAGS)
        raise BadInput(_sentence(section, where, first)) from None


_TAGS = {
    "int",
    "constrained-int",
    "float",
    "constrained-float",
    "Scheduled",
    "literal['all']",
    "literal['auto']",
}  # added by pydantic to the location in unions


def _sentence(section: type[Section], where: str, problem: Any) -> str:
    given, context = problem["input"], problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            table, _, leaf = where.rpartition(".")
            owner = SECTIONS.get(table, section) if table else section
            valid = list(owner.model_fields) if isinstance(owner, type) and issubclass(owner, Section) else []
            return f"unknown key '{where}'{nearest(leaf, valid)}"
        case "value_error":
            return str(context["error"])
        case "missing":
            return f"{where} is missing: add it"
        case "literal_error":
            return f"{where} = {given!r} is not valid: choose {context['expected']}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return f"{where} = {given} is out of range: {problem['msg'].replace('Input should', 'it must')}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"[{where}] must be a table of keys, not {given!r}"
    return f"{where} = {given!r} is not valid: {problem['msg'][0].lower()}{problem['msg'][1:]}"
