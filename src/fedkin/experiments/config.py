"""The configuration of an experiment: one short TOML file, validated, unknown keys rejected.

A list anywhere a value may stand makes a grid: `beta = [0.9, 0.5]` is two runs, and so is a list of tables.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedkin.algorithms import ALGORITHMS, Algorithm, algorithm_named
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput, nearest

Settings = dict[str, Any]

# Settings that change how a run is executed but not its result.
IMMATERIAL = {"threads", "checkpoint_every"}


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


class Data(Section):
    """Which samples.

    source      digits, mnist, fashion_mnist, femnist, cifar10, cifar100, or the path of an npz file
    preprocess  half: (x − 0.5)/0.5; standardise: per-pixel mean and deviation; none
    """

    source: str = "digits"
    preprocess: Literal["half", "standardise", "none"] = "half"


class Partition(Section):
    """Who has which samples.

    clients          C training and C testing clients
    class_imbalance  a ≥ 0 (Dirichlet); 0 is balanced
    size_imbalance   b ≥ 0 (log-normal); 0 is balanced
    scheme           how samples are dealt, `paper`: as its text says; `published`: as its published code does
    mixes            how class mixes are drawn, `paper` or `published` (none given: as the scheme)
    clusters         so many clusters of clients, each with classes that no other has (0: none)
    group            instead: a natural split by a group key of the data, such as writer
    """

    clients: int = Field(default=100, ge=2)
    class_imbalance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    size_imbalance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    scheme: Literal["paper", "published"] = "published"
    mixes: Literal["paper", "published"] | None = None
    clusters: int = Field(default=0, ge=0)
    group: str | None = None


class Graph(Section):
    """Who is kin to whom.

    kind     similarity, or for comparison uniform, shuffled, global
    weights  by which the server averages: adjacency (the degrees), uniform, samples
    neighbours  so many nearest count, which makes the graph sparse (0: all)
    search   for the nearest: exact, or approximate for very many clients
    temperature  below 1 makes strong edges count more, above 1 evens them out (1: the paper's)
    pixels   messages from the raw features or the preprocessed ones
    floor    the smallest misalignment that counts (0: identical clients are an error)
    """

    kind: Literal["similarity", "uniform", "shuffled", "global"] = "similarity"
    weights: Literal["adjacency", "uniform", "samples"] = "adjacency"
    neighbours: int = Field(default=0, ge=0)
    search: Literal["exact", "approximate"] = "exact"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    pixels: Literal["raw", "preprocessed"] = "raw"
    floor: float = Field(default=0.0, ge=0, lt=1)


class ModelSection(Section):
    """What is trained.

    kind    softmax, mlp, or the import path of a torch.nn.Module: package.module:Name
    hidden  units of the mlp
    args    what the imported one is called with
    """

    kind: str = "softmax"
    hidden: int = Field(default=128, ge=1)
    args: dict[str, Any] = Field(default_factory=dict)


class Scheduled(Section):
    """A hyper-parameter that moves: { from = 0.5, to = 1.0, over = 50, shape = "cosine" }."""

    start: float = Field(alias="from")
    end: float = Field(alias="to")
    over: int
    shape: str = "linear"

    def schedule(self) -> Schedule:
        """As the algorithms use it."""
        return Schedule(self.start, self.end, self.over, self.shape)


class LocalSection(Section):
    """What each client does in a round.

    step_size   γ, a number or a schedule
    epochs      E passes in batches of batch_size (a number or "all"),
    steps       or instead E steps on a partition into E batches (0: by epochs)
    order       of the batches: fixed or shuffled
    l2          λ
    clip        G, the largest gradient norm (inf: any)
    """

    step_size: float | Scheduled = 1e-3
    epochs: int = Field(default=10, ge=1)
    batch_size: int | Literal["all"] = 256
    steps: int = Field(default=0, ge=0)
    order: Literal["fixed", "shuffled"] = "fixed"
    l2: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    clip: float = Field(default=float("inf"), gt=0)

    def work(self) -> Local:
        """As the engine uses it."""
        return Local(
            epochs=self.epochs,
            batch_size=None if self.batch_size == "all" else self.batch_size,
            steps=self.steps or None,
            order=self.order,
            l2=self.l2,
            clip=None if self.clip == float("inf") else self.clip,
        )


class AlgorithmSection(Section):
    """Which algorithm, and its own hyper-parameters: whatever fields its class has."""

    model_config = ConfigDict(extra="allow", frozen=True)

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
        """The algorithm object; it checks its own ranges."""
        values: Settings = {"step_size": step_size, **(self.model_extra or {})}
        for key, value in values.items():
            if isinstance(value, Mapping):
                values[key] = validated(Scheduled, dict(value), f"algorithm.{key}").schedule()
            elif isinstance(value, Scheduled):
                values[key] = value.schedule()
            elif isinstance(value, bool) or (key != "absent" and not isinstance(value, int | float)):
                raise BadInput(f"algorithm.{key} = {value!r} is not a number or a schedule")
        try:
            return algorithm_named(self.name)(**values)
        except BadInput as error:
            raise BadInput(f"algorithm {self.name}: {error}") from None


def knobs(algorithm: str) -> list[str]:
    """The hyper-parameters of an algorithm besides the step size, which all have."""
    return [f.name for f in fields(algorithm_named(algorithm)) if f.name != "step_size"]


class Reading(Section):
    """Which algorithm: the one the paper states, or what its published code does. See `fedkin.experiments.readings`.

    anchors    published: every round the u's are dealt to clients at random
    averaging  published: and so are the weights by which models are averaged
    penalty    published: FedKin goes without the L2 penalty, the baselines have it
    proximal   published: FedProx goes without its proximal term
    sign       published: a message has whatever sign the singular value decomposition gives it

    `reading = "published"` is all of them.
    """

    anchors: Literal["paper", "published"] = "paper"
    averaging: Literal["paper", "published"] = "paper"
    penalty: Literal["paper", "published"] = "paper"
    proximal: Literal["paper", "published"] = "paper"
    sign: Literal["paper", "published"] = "paper"


class Experiment(Section):
    """One run, fully described.

    rounds     T
    threshold  the accuracy to which rounds are counted
    take_part  M, clients in a round, or "all"
    threads    of the processor (0: all); device: cpu, cuda, …
    checkpoint_every  so many rounds, or half a minute if that is sooner
    """

    name: str = "experiment"
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=200, ge=1)
    threshold: float = Field(default=0.75, gt=0, le=1)
    take_part: int | Literal["all"] = "all"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=10, ge=1)
    data: Data = Data()
    partition: Partition = Partition()
    graph: Graph = Graph()
    model: ModelSection = ModelSection()
    local: LocalSection = LocalSection()
    reading: Reading = Reading()
    algorithm: AlgorithmSection = AlgorithmSection()

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not name or name != Path(name).name or name.startswith("."):
            raise BadInput(f"name = '{name}' must be usable as the name of a folder")
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


@dataclass(frozen=True)
class Plan:
    """One run of a grid: the name of its folder, and its configuration."""

    name: str
    config: Experiment


SECTIONS = {name: info.annotation for name, info in Experiment.model_fields.items()}


def plans(source: Path | str | Mapping[str, Any] | None = None, overrides: Sequence[str] = ()) -> list[Plan]:
    """All runs that a TOML file (or a dictionary, or the embedded default) describes, after `key=value` overrides."""
    settings = read(source)
    for override in overrides:
        _override(settings, override)
    # The algorithm varies fastest, so that runs which share a federation follow each other.
    settings = {
        **{k: v for k, v in settings.items() if k != "algorithm"},
        "algorithm": settings.get("algorithm", {}),
    }
    found: dict[str, Plan] = {}
    configs: list[Settings] = []
    for choice, run in _expand(settings):
        config = validated(Experiment, run)
        name = _name(config, choice)
        resolved = config.model_dump(mode="json")
        if resolved in configs:
            continue  # the same run described twice
        if name in found:
            name = f"{name}-{len(found)}"
        configs.append(resolved)
        found[name] = Plan(name, config)
    if not found:
        raise BadInput("the experiment describes no run: an empty list stands where a value should")
    return list(found.values())


def read(source: Path | str | Mapping[str, Any] | None) -> Settings:
    """The raw settings of a file, a dictionary or, for None, the embedded default."""
    if isinstance(source, Mapping):
        return {key: _copied(value) for key, value in source.items()}
    try:
        text = default_text() if source is None else Path(source).read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except FileNotFoundError:
        raise BadInput(f"there is no file {source}: give the path of a TOML file, or none for the default") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{source} cannot be read ({error}): give the path of a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}") from None
    if source is not None:
        settings.setdefault("name", Path(source).stem)
    return settings


def default_text() -> str:
    """The embedded default experiment, as TOML."""
    return (files("fedkin") / "demo.toml").read_text(encoding="utf-8")


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list | tuple) else value


def _override(settings: Settings, override: str) -> None:
    """Apply `key=value`, where the key may be dotted or, if only one section has it, the bare last word."""
    key, equals, text = override.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, such as --set rounds=20, not '{override}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    section, _, leaf = _full_key(key.strip()).rpartition(".")
    if not section:
        settings[leaf] = value
        return
    table = settings.setdefault(section, {})
    if section != "algorithm":
        if not isinstance(table, dict):
            raise BadInput(f"--set {key}: the file gives several {section} tables; set it in the file")
        table[leaf] = value
        return
    entries = table if isinstance(table, list) else [table]
    entries = [{"name": e} if isinstance(e, str) else e for e in entries]
    names = {n for e in entries for n in _as_list(e.get("name", "fedavg"))}
    fitting = [e for e in entries if all(leaf in ["name", *knobs(n)] for n in _as_list(e.get("name", "fedavg")))]
    if not fitting:
        valid = sorted({k for n in names for k in knobs(n)})
        raise BadInput(f"none of the algorithms ({', '.join(sorted(names))}) has a key '{leaf}'; they have: {valid}")
    for entry in fitting:
        entry[leaf] = value
    settings["algorithm"] = entries


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _section_keys() -> Iterator[str]:
    for name, annotation in SECTIONS.items():
        yield name
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from (f"{name}.{field}" for field in annotation.model_fields)
    yield from {f"algorithm.{knob}": None for name in ALGORITHMS for knob in knobs(name)}


def _full_key(key: str) -> str:
    known = list(_section_keys())
    if key in known or key.startswith(("algorithm.", "model.args.")):
        return key
    ends = [k for k in known if k.endswith(f".{key}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise BadInput(f"'{key}' could be any of {', '.join(ends)}: write one of them out")
    leaves = {k.rpartition(".")[2] for k in known}
    raise BadInput(f"unknown key '{key}'{nearest(key, leaves if '.' not in key else known)}")


def _expand(value: Any, path: str = "") -> Iterator[tuple[dict[str, Any], Any]]:
    """All values that a value with lists in it stands for, each with the choices made."""
    if isinstance(value, list):
        for entry in value:
            for choice, one in _expand(entry, path):
                # A table in a list is named by what is in it, a plain value by itself.
                yield (choice if isinstance(one, dict) else {path: one, **choice}), one
    elif isinstance(value, dict):
        parts = [list(_expand(v, f"{path}.{k}" if path else k)) for k, v in value.items()]
        for combination in product(*parts):
            choice = {k: v for chosen, _ in combination for k, v in chosen.items()}
            yield choice, dict(zip(value, (one for _, one in combination), strict=True))
    else:
        yield {}, value


def _name(config: Experiment, choice: Mapping[str, Any]) -> str:
    """The algorithm with all its hyper-parameters, then whatever else the grid varies."""
    words = [config.algorithm.name]
    words += [f"{key}={_short(value)}" for key, value in (config.algorithm.model_extra or {}).items()]
    for path, value in choice.items():
        section, _, leaf = path.rpartition(".")
        if section != "algorithm" and path != "algorithm":
            words.append(f"{section if leaf == 'kind' else leaf}={_short(value)}")
    return "-".join(words)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{_short(value.get('from'))}to{_short(value.get('to'))}over{value.get('over')}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isalnum() or c in ".+_" else "_" for c in Path(text).stem if c) if "/" in text else text


def validated(section: type[S], settings: Settings, at: str = "") -> S:
    """A section from raw settings, or one clear sentence about the first thing that is wrong."""
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (*filter(None, [at]), *first["loc"]) if str(part) not in _TAGS)
        raise BadInput(_sentence(section, where, first)) from None


_TAGS = {"int", "float", "Scheduled", "literal['all']"}  # what pydantic adds to the place for unions


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
