"""The settings of a run: validated tables of a TOML file. Unknown keys are errors."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from fedkin.algorithms import Algorithm, Tuning, algorithm_named
from fedkin.algorithms.base import is_hyper
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.data.measure import ACCURACY, Measure
from fedkin.errors import BadInput, in_short, nearest
from fedkin.experiments.data_sections import MOST, DataSection, Partition, Section, Settings
from fedkin.experiments.server_sections import Aggregation, PrivacySection

# Settings that change how a run is executed but not its result.
IMMATERIAL = {"threads", "checkpoint_every", "keep"}


S = TypeVar("S", bound=Section)


# Settings whose default has changed: a recorded configuration without the key means the former default.
FORMER_DEFAULTS: Settings = {
    "rounds": 200,
    "data": {"preprocess": "half"},
    "partition": {"scheme": "published"},
    "graph": {"weights": "adjacency", "pixels": "raw"},
    "local": {"step_size": 1e-3, "batch_size": 256, "order": "fixed"},
}


def former_settings() -> Settings:
    """What a recorded configuration means where it has no value: the defaults, or former ones; no name or algorithm."""
    former = Experiment.model_validate(FORMER_DEFAULTS)
    return former.model_dump(mode="json", by_alias=True, exclude={"name", "algorithm"})


# Values that have a new name, by section and key: recorded configurations may have the former one.
FORMER_NAMES = {"model": {"kind": {"softmax": "linear"}}}


class Graph(Section):
    """Similarity graph of the clients.

    kind         similarity, or for comparison uniform, shuffled, global
    weights      averaging weights of the server: samples, uniform, adjacency (the degrees, as in the paper)
    neighbours   number of nearest neighbours, which makes the graph sparse (0: all)
    search       nearest-neighbour search: exact, or approximate for very many clients
    temperature  below 1 strengthens strong edges, above 1 evens edges out (1: the paper's)
    pixels       messages from raw or preprocessed features; auto: raw pixels, other features preprocessed
    floor        lower bound of misalignments (0: identical clients are an error)
    """

    kind: Literal["similarity", "uniform", "shuffled", "global", "kinds"] = "similarity"
    weights: Literal["adjacency", "uniform", "samples"] = "samples"
    neighbours: int = Field(default=0, ge=0, le=MOST)
    search: Literal["exact", "approximate"] = "exact"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    pixels: Literal["auto", "raw", "preprocessed"] = "auto"
    floor: float = Field(default=0.0, ge=0, lt=1)


class ModelSection(Section):
    """Model.

    kind    linear (softmax, logistic or linear regression, by what is predicted; also called softmax), mlp, or the
            import path of a torch.nn.Module: package.module:Name
    start   of the linear model: random, or zero
    hidden  hidden units of the mlp
    args    keyword arguments of an imported model
    shape   of one sample as an imported model expects it, in one string, such as "28, 28" (default: that of the data)
    """

    kind: str = "linear"
    start: Literal["random", "zero"] = "random"
    hidden: int = Field(default=128, ge=1, le=MOST)
    args: dict[str, Any] = Field(default_factory=dict)
    shape: str = ""

    @field_validator("shape", mode="before")
    @classmethod
    def _sizes(cls, text: Any) -> Any:
        try:
            sizes = _sizes_in(text)
        except (AttributeError, ValueError):
            sizes = (0,)
        if any(not 1 <= size <= MOST for size in sizes):
            raise BadInput(
                f"model.shape = {text!r} is not valid: write all sizes in one string, such as '28, 28', because a list "
                "makes a grid"
            )
        return text

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """`shape` as numbers; None if it is not given."""
        return _sizes_in(self.shape) or None

    @field_validator("kind")
    @classmethod
    def _current_name(cls, kind: str) -> str:
        return FORMER_NAMES["model"]["kind"].get(kind, kind)

    @model_validator(mode="after")
    def _learns(self) -> "ModelSection":
        if self.start == "zero" and self.kind != "linear":
            raise BadInput("model.start = 'zero' is for the linear model: leave it out, as units would stay alike")
        return self

    @property
    def settings(self) -> Settings:
        """The settings that the kind of model has."""
        if self.kind == "linear":
            return {"zero": self.start == "zero"}
        return {"hidden": self.hidden} if self.kind == "mlp" else self.args


def _sizes_in(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",")) if text.strip() else ()


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

    step_size     γ, a number or a schedule
    epochs        E, passes over the client's samples
    batch_size    B, a number or "all"
    steps         number of steps, on a partition into as many batches, instead of epochs (0: epochs)
    most_steps    a client stops after so many steps, even in the middle of an epoch (0: it does not)
    order         order of the samples: shuffled in each epoch, or fixed
    l2            λ, coefficient of the L2 penalty
    clip          G, maximum gradient norm (inf: no clipping)
    optimizer     sgd, momentum or adam
    momentum      μ of the optimizer momentum
    weight_decay  δ, decoupled from the gradient
    """

    step_size: float | Scheduled = 1e-2
    epochs: int = Field(default=10, ge=1, le=MOST)
    batch_size: Annotated[int, Field(le=MOST)] | Literal["all"] = 32
    steps: int = Field(default=0, ge=0, le=MOST)
    most_steps: int = Field(default=0, ge=0, le=MOST)
    order: Literal["fixed", "shuffled"] = "shuffled"
    l2: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    clip: float = Field(default=float("inf"), gt=0)
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def work(self) -> Local:
        """The settings as an object for the engine."""
        return Local(
            epochs=self.epochs,
            batch_size=None if self.batch_size == "all" else self.batch_size,
            steps=self.steps or None,
            most_steps=self.most_steps or None,
            order=self.order,
            l2=self.l2,
            clip=None if self.clip == float("inf") else self.clip,
            optimizer=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
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
    threshold         accuracy for which the number of rounds is reported; of a regression, mean squared error
    take_part         M, number of clients sampled per round, or "all"
    device            PyTorch device: cpu, cuda, …
    threads           processor threads (0: PyTorch's default)
    checkpoint_every  maximum number of rounds between checkpoints, which are at most about 30 seconds apart
    evaluate_every    rounds between measurements; the last round is always measured
    evaluate          clients at which the global model is measured: all, or test ones only
    fine_tune         epochs of fine-tuning after which the model of each client is measured, too (0: it is not)
    fine_tune_step    its step size in units of local.step_size
    keep              what stays after the last round: the global model alone (`model`), with the last checkpoint and
                      the clients' own models (`all`), or these if they are not too large (`auto`); with the last
                      checkpoint but no scores of single clients (`state`), for trials that may go on
    """

    name: str = "experiment"
    seed: int = Field(default=0, ge=0, lt=2**32)
    rounds: int = Field(default=100, ge=1, le=MOST)
    threshold: float = Field(default=0.75, gt=0, allow_inf_nan=False)
    take_part: Annotated[int, Field(ge=1, le=MOST)] | Literal["all"] = "all"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0, le=1024)
    checkpoint_every: int = Field(default=10, ge=1, le=MOST)
    evaluate_every: int = Field(default=1, ge=1, le=MOST)
    evaluate: Literal["all", "test"] = "all"
    fine_tune: int = Field(default=0, ge=0, le=MOST)
    fine_tune_step: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    keep: Literal["auto", "all", "model", "state"] = "auto"
    data: DataSection = DataSection()
    partition: Partition = Partition()
    graph: Graph = Graph()
    model: ModelSection = ModelSection()
    local: LocalSection = LocalSection()
    aggregation: Aggregation = Aggregation()
    privacy: PrivacySection = PrivacySection()
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

    @field_validator("aggregation", mode="before")
    @classmethod
    def _by_rule(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("reading", mode="before")
    @classmethod
    def _all_alike(cls, value: Any) -> Any:
        return dict.fromkeys(Reading.model_fields, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        natural = self.partition.group is not None or self.data.has_clients
        if self.take_part != "all" and not natural and self.take_part > self.partition.clients:
            raise BadInput(
                f"take_part = {self.take_part} is more than the {self.partition.clients} clients there are: lower it"
            )
        if self.threshold > 1 and self.data.task != "regression":
            words = "an accuracy is at most 1; for a mean squared error, set data.task = 'regression'"
            raise BadInput(f"threshold = {self.threshold:g} is out of range: {words}")
        self.algorithm.build(self.local.step_size)
        self.local.work()
        return self

    @property
    def tuning(self) -> Tuning | None:
        """The fine-tuning after which the clients' models are measured, too."""
        return Tuning(self.fine_tune, self.fine_tune_step) if self.fine_tune else None

    def goal(self, measure: Measure) -> float | None:
        """The threshold for the main measure: a mean squared error has none but what the user sets."""
        return self.threshold if measure is ACCURACY or "threshold" in self.model_fields_set else measure.usual


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
