"""Grids of runs: from a TOML file to the settings of every run it describes.

A list in place of a value makes a grid: `beta = [0.9, 0.5]` describes two runs, and so does a list of two tables.
The table of an algorithm may have settings of other sections, which replace the general ones in its runs.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from fedkin.algorithms import ALGORITHMS
from fedkin.data.client_sources import is_of_clients
from fedkin.data.sources import SOURCES
from fedkin.errors import BadInput, nearest
from fedkin.experiments.config import SECTIONS, Experiment, knobs, validated
from fedkin.experiments.data_sections import Section, Settings
from fedkin.imports import imported_object, modules_beside


@dataclass(frozen=True)
class Plan:
    """One run of a grid: the name of its folder and its configuration.

    beside  the folder of the TOML file, in which modules of the user's own are looked for first
    """

    name: str
    config: Experiment
    beside: Path | None = None


def plans(
    source: Path | str | Mapping[str, Any] | None = None, overrides: Sequence[str] = (), *, beside: Path | None = None
) -> list[Plan]:
    """All runs that a TOML file (or a dictionary, or the embedded default) describes, after `key=value` overrides.

    beside  where modules of the user's own are looked for first (default: the folder of the file)
    """
    try:
        settings, of_file = settings_with(source, overrides)
        beside = beside or of_file
        with modules_beside(beside):
            found = [replace(plan, beside=beside) for plan in _plans(settings)]
            # Once imported, a module is known by its name; its errors are better said before anything is loaded.
            for kind in dict.fromkeys(plan.config.model.kind for plan in found if beside is not None):
                if ":" in kind:
                    imported_object(kind, "model")
        return found
    except RecursionError:
        raise BadInput("the settings are nested too deeply: use lists of values or of tables") from None


def experiment_of(
    source: Path | str | None, about_data: Mapping[str, Any] | None = None
) -> Path | str | dict[str, Any] | None:
    """The experiment that a command is about: a TOML file, or the default settings on data of one's own.

    source      a TOML file (None: the embedded one), a folder with a file for each client, a table, or the name of a
                data set
    about_data  settings of the section `data`, such as `target`
    """
    if source is not None and (is_data(source) or (about_data and not str(source).lower().endswith(".toml"))):
        return experiment_on(source, about_data)
    if about_data:
        raise BadInput(
            f"{' and '.join(about_data)} are about data: give a folder with a file for each client, or a table; an "
            "experiment file says how its data are read: change it there, or with --set"
        )
    return source


def is_data(source: Path | str) -> bool:
    """Whether this is a source of data, and not an experiment as TOML."""
    return is_of_clients(source) or Path(source).suffix.lower() == ".npz" or str(source) in SOURCES


def experiment_on(source: Path | str, about_data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The default settings on a source of data, whose name is that of the experiment."""
    place = Path(source).absolute()
    name = place.name if place.is_dir() else place.stem
    return {"name": name.lstrip(".") or "experiment", "data": {"source": str(source), **(about_data or {})}}


def settings_with(
    source: Path | str | Mapping[str, Any] | None, overrides: Sequence[str]
) -> tuple[Settings, Path | None]:
    """The raw settings of a file, a dictionary or the default after `key=value` overrides, and the file's folder."""
    beside = None if source is None or isinstance(source, Mapping) else Path(source).absolute().parent
    settings = settings_from(source)
    with modules_beside(beside):
        for override in overrides:
            _override(settings, override)
    _check_text(settings)
    return settings, beside


def _plans(settings: Settings) -> list[Plan]:
    # The algorithm varies fastest, so that runs with the same federation are consecutive.
    settings = {
        **{k: v for k, v in settings.items() if k != "algorithm"},
        "algorithm": settings.get("algorithm", {}),
    }
    runs: dict[str, tuple[str, Experiment]] = {}
    for choice, run in map(_with_own_settings, _expand(settings)):
        config = validated(Experiment, run)
        runs.setdefault(config.model_dump_json(), (_name(config, choice), config))  # duplicates are one run
    if not runs:
        raise BadInput("the experiment describes no run: give at least one value in every list")
    found: dict[str, Plan] = {}
    given = {name for name, _ in runs.values()}
    for name, config in runs.values():
        unique, n = name, 2
        while unique in found or (unique != name and unique in given):
            unique, n = f"{name}-{n}", n + 1
        found[unique] = Plan(unique, config)
    return list(found.values())


def settings_from(source: Path | str | Mapping[str, Any] | None) -> Settings:
    """The raw settings of a file, a dictionary or, for None, the embedded default."""
    if isinstance(source, Mapping):
        return {key: _copied(value) for key, value in source.items()}
    try:
        text = default_text() if source is None else Path(source).read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except FileNotFoundError:
        raise BadInput(f"there is no file {source}: give the path of a TOML file, or none for the default") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}") from None
    except (OSError, ValueError) as error:  # also NUL in the path, invalid UTF-8, a number of 5,000 digits
        raise BadInput(f"{source} cannot be read ({error}): give the path of a TOML file") from None
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
    """Apply `key=value`, where the key is `section.name`, or just `name` if only one section has it."""
    key, equals, text = override.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, such as --set rounds=20, not '{override}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a string without quotes
    except (RecursionError, ValueError):  # too deep, or a number of 5,000 digits
        raise BadInput(f"--set {key}: the value cannot be read: give a number, a string or a short list") from None
    *sections, leaf = _full_key(key.strip()).split(".")
    if sections[:1] != ["algorithm"]:
        table = settings
        for depth, section in enumerate(sections, start=1):
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise BadInput(f"--set {key}: the file gives several {'.'.join(sections[:depth])} tables; set it there")
        table[leaf] = value
        for entry in _as_list(settings.get("algorithm")):  # --set has the last word
            if isinstance(entry, dict) and isinstance(own := entry.get(".".join(sections)), dict):
                own.pop(leaf, None)
        return
    table = settings.setdefault("algorithm", {})
    entries = table if isinstance(table, list) else [table]
    entries = [{"name": e} if isinstance(e, str) else e for e in entries]
    if strange := next((e for e in entries if not isinstance(e, dict)), None):
        raise BadInput(f"algorithm = {strange!r} is not valid: give a name, a table, or a list of these")
    names = {n for e in entries for n in _as_list(e.get("name", "fedavg"))}
    fitting = [e for e in entries if all(leaf in ["name", *knobs(n)] for n in _as_list(e.get("name", "fedavg")))]
    if not fitting:
        valid = sorted({k for n in names for k in knobs(n)})
        raise BadInput(f"none of the algorithms ({', '.join(sorted(names))}) has a key '{leaf}'; they have: {valid}")
    for entry in fitting:
        entry[leaf] = value
    settings["algorithm"] = entries


def _check_text(value: Any, key: str = "") -> None:
    """Refuse text that cannot be written to files: NUL, and bytes of the command line that are not UTF-8."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            _check_text(str(name), "a key")
            _check_text(below, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for entry in value:
            _check_text(entry, key)
    elif isinstance(value, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise BadInput(f"{key} = {value!r} holds characters that cannot be written to a file: use others")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _section_keys() -> Iterator[str]:
    for name in SECTIONS:
        yield name
        yield from (f"{name}.{field}" for field in _fields_of(name))
    yield from {f"algorithm.{knob}": None for name in ALGORITHMS for knob in knobs(name)}


def _fields_of(section: str) -> list[str]:
    """The keys of a section; none if it is not a section."""
    annotation = SECTIONS.get(section)
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, Section) else []


def _full_key(key: str) -> str:
    known = list(_section_keys())
    if key in known or key.startswith(("algorithm.", "model.args.")):
        return key
    ends = [k for k in known if k.endswith(f".{key}")]
    # Keys of [privacy] have names of others, such as clip: these are meant.
    ends = [k for k in ends if not k.startswith("privacy.")] or ends
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise BadInput(f"'{key}' could be any of {', '.join(ends)}: write one of them out")
    hint = nearest(key, known if "." in key else {k.rpartition(".")[2] for k in known})
    if "did you mean" not in hint:  # all keys there are would be a page
        hint = f": give one of {', '.join(SECTIONS)}, or SECTION.KEY"
    raise BadInput(f"unknown key '{key}'{hint}")


def _expand(value: Any, path: str = "") -> Iterator[tuple[dict[str, Any], Any]]:
    """All values that a value with lists expands to, each with the choices made."""
    if isinstance(value, list):
        if path in ("data.drop", "data.categories"):
            raise BadInput(f"{path} = {value} is a list, which makes a grid: write all columns in one string, 'a, b'")
        for entry in value:
            for choice, one in _expand(entry, path):
                # A run is named by the choices within a table, or by a plain value itself.
                yield (choice if isinstance(one, dict) else {path: one, **choice}), one
    elif isinstance(value, dict):
        parts = [list(_expand(v, f"{path}.{k}" if path else k)) for k, v in value.items()]
        for combination in product(*parts):
            choice = {k: v for chosen, _ in combination for k, v in chosen.items()}
            yield choice, dict(zip(value, (one for _, one in combination), strict=True))
    else:
        yield {}, value


def _with_own_settings(run: tuple[dict[str, Any], Any]) -> tuple[dict[str, Any], Any]:
    """A run whose algorithm has settings of other sections: they take their places there, also in the run's name."""
    choice, settings = run
    algorithm = settings["algorithm"]
    if not isinstance(algorithm, dict):
        return run
    tables = [key for key, value in algorithm.items() if isinstance(value, dict) and key != "algorithm"]
    # A hyper-parameter may have the name of a section, and a schedule is a table.
    own = [key for key in tables if _fields_of(key) and key not in knobs(str(algorithm.get("name", "fedavg")))]
    if not own:
        return run
    choice = {
        path: value for path, value in choice.items() if not path.startswith(tuple(f"algorithm.{s}." for s in own))
    }
    settings = {**settings, "algorithm": {key: value for key, value in algorithm.items() if key not in own}}
    for section in own:
        table, general = algorithm[section], settings.get(section, {})
        settings[section] = {**(general if isinstance(general, dict) else {}), **table}
        choice |= {f"{section}.{key}": value for key, value in table.items()}
    return choice, settings


def _name(config: Experiment, choice: Mapping[str, Any]) -> str:
    """The name of a run: the algorithm, its hyper-parameters, then the other settings that the grid varies."""
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
