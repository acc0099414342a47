"""Reproduce the paper: every table and figure by name, from real data, with the printed values beside ours.

A reproduction is one TOML file in `fedkin/reproductions`: which experiments to carry out, how to show them, what the
paper prints, and what to change for a quick trial on the embedded data. Runs go to `OUT/<experiment>/<run>` and are
kept, so that an interrupted reproduction continues, and those that show the same runs share them.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedkin.errors import BadInput, nearest
from fedkin.experiments import run as experiment
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.reports.figures import replacing, save
from fedkin.reports.pages import machine, with_section
from fedkin.reports.runs import Run, collect
from fedkin.reports.tables import Table

Settings = dict[str, Any]
FOLDER = files("fedkin.paper") / "reproductions"


@dataclass(frozen=True, eq=False)
class Part:
    """One experiment of a reproduction: the name of its folder, how it is called, and its settings."""

    name: str
    label: str
    settings: Settings = field(repr=False)


@dataclass(frozen=True)
class Reproduction:
    """What a file says.

    paper      where the paper shows it
    show       the function that makes tables and figures of the runs
    parts      the experiments
    printed    the paper's values, as nested tables
    across     the setting that goes from panel to panel, in a sweep
    reference  the method others are compared with, in controls
    """

    name: str
    title: str
    paper: str
    show: str
    parts: tuple[Part, ...]
    printed: Settings
    across: str = ""
    reference: str = ""


@dataclass(frozen=True)
class Shown:
    """What comes out: tables for reading, one for a spreadsheet, figures by name, and remarks."""

    tables: tuple[Table, ...] = ()
    spreadsheet: Table | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Work:
    """A reproduction in hand: where its runs are, and with what to make federations."""

    what: Reproduction
    out: Path
    preparation: Preparation
    quick: bool = False

    def runs(self, part: Part) -> list[Run]:
        """What has been carried out of a part so far, in the order in which it is shown."""
        folder = self.out / part.name
        return collect(folder) if any(folder.glob("*/config.json")) else []


def names() -> list[str]:
    """All reproductions."""
    return sorted(Path(file.name).stem for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def load(name: str, quick: bool = False) -> Reproduction:
    """A reproduction by its name; with `quick` the small version of it."""
    if name not in names():
        raise BadInput(f"there is no reproduction '{name}'{nearest(name, names())}")
    told = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    source = tomllib.loads((FOLDER / f"{told['runs']}.toml").read_text(encoding="utf-8")) if "runs" in told else told
    parts = []
    for own in source["experiment"]:
        settings = merged(source.get("settings", {}), own)
        label = settings.pop("label", settings["name"])
        if quick:
            change = dict(source["quick"])
            for key in change.pop("without", []):
                _drop(settings, key)
            settings = merged(settings, change)
        parts.append(Part(settings["name"], label, settings))
    return Reproduction(
        name,
        told["title"],
        told["paper"],
        told["show"],
        tuple(parts),
        told.get("printed", {}),
        told.get("across", ""),
        told.get("reference", ""),
    )


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Settings:
    """Settings with others laid over them, table by table."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def _drop(settings: Settings, key: str) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        settings[section] = dict(settings.get(section, {}))
        settings = settings[section]
    settings.pop(leaf, None)


def reproduce(
    name: str,
    *,
    out: Path | str = "results/reproduce",
    data: Path | str | None = None,
    quick: bool = False,
    only: Sequence[str] = (),
    run: bool = True,
    fresh: bool = False,
    page: Path | str | None = None,
    listener: Listener | None = None,
) -> Shown:
    """Carry out a reproduction, or what is missing of it, and write what it shows to NAME.md, .csv, .png and .pdf.

    only   parts of it to carry out, by name; what is there of the others is shown too
    run    False shows what is there and carries out nothing
    fresh  do runs again that are already there
    page   a Markdown page whose section between `<!-- reproduce NAME -->` and `<!-- end NAME -->` is rewritten;
           its figures are put into the folder docs/results beside it
    """
    what = load(name, quick)
    known = [part.name for part in what.parts]
    for wanted in only:
        if wanted not in known:
            raise BadInput(f"{name} has no part '{wanted}'{nearest(wanted, known)}")
    folder = Path(out) / "quick" if quick else Path(out)
    preparation = Preparation(Path(data) if data else None, listener or Silent())
    show, trains = _shows()[what.show]
    chosen = [part for part in what.parts if not only or part.name in only]
    if trains and run:
        for part in chosen:
            experiment.run(part.settings, out=folder, data=data, listener=listener, fresh=fresh)
    elif not trains:  # there is nothing to carry out but the showing
        what = replace(what, parts=tuple(chosen))
    work = Work(what, folder, preparation, quick)
    if trains and not any(work.runs(part) for part in what.parts):
        raise BadInput(f"there are no runs of {name} in {folder} to show: leave out --show, or give another --out")
    shown = show(work)
    notes = (*shown.notes, *(["A quick trial on the embedded digits: the layout counts, not the numbers."] * quick))
    shown = replace(shown, notes=notes)
    command = f"fedkin reproduce {name}" + (" --quick" if quick else "")
    written = _save_figures(what, shown, folder)
    texts = {f"{name}.md": f"# {what.title}\n\n{_body(what, shown, command)}\n"}
    if shown.spreadsheet:
        texts[f"{name}.csv"] = shown.spreadsheet.csv()
    for file, text in texts.items():
        with replacing(folder / file) as draft:
            draft.write_text(text, encoding="utf-8")
        written.append(folder / file)
    if page is not None:
        pictures = Path("docs/results")
        written += _save_figures(what, shown, Path(page).parent / pictures)
        text = Path(page).read_text(encoding="utf-8") if Path(page).exists() else ""
        section = _body(what, shown, command, f"{pictures.as_posix()}/")
        with replacing(Path(page)) as draft:
            draft.write_text(with_section(text, name, section, "reproduce"), encoding="utf-8")
        written.append(Path(page))
    return replace(shown, files=tuple(written))


Show = Callable[[Work], Shown]


def _shows() -> dict[str, tuple[Show, bool]]:
    """How things are shown, and whether runs are needed for it."""
    from fedkin.paper import figures, tables

    return {
        "main_table": (tables.main_table, True),
        "times": (tables.times, True),
        "variants": (tables.variants, True),
        "controls": (tables.controls, True),
        "curves": (figures.curves, True),
        "sweep": (figures.sweep, True),
        "misalignment": (figures.misalignment, False),
        "spectrum": (figures.spectrum, False),
        "classes": (figures.classes, False),
        "samples": (figures.samples, False),
    }


def _stems(what: Reproduction, shown: Shown) -> dict[str, Figure]:
    """The figures by the names of their files."""
    return {f"{what.name}-{suffix}" if suffix else what.name: figure for suffix, figure in shown.figures.items()}


def _save_figures(what: Reproduction, shown: Shown, folder: Path) -> list[Path]:
    return [path for stem, figure in _stems(what, shown).items() for path in save(figure, folder / stem)]


def _body(what: Reproduction, shown: Shown, command: str, pictures: str = "") -> str:
    """What there is to read, as Markdown."""
    tables = [
        f"**{table.title}**\n\n{table.markdown().rstrip()}" if len(shown.tables) > 1 else table.markdown().rstrip()
        for table in shown.tables
    ]
    paragraphs = [
        f"In the paper: {what.paper}.",
        *tables,
        "\n".join(f"- {note}" for note in shown.notes),
        *(f"![{what.title}]({pictures}{stem}.png)" for stem in _stems(what, shown)),
        f"Written on {date.today().isoformat()} by `{command}` on {machine()}.",
    ]
    return "\n\n".join(filter(None, paragraphs))
