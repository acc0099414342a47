"""Reproduce the paper: every table and figure by name, from real data, with the paper's values for comparison.

A reproduction is one TOML file in `fedkin/paper/reproductions`: which experiments to run, how to present them, the
paper's values, and what to change for a quick trial on the embedded data. What the paper does otherwise than the
defaults is in `fedkin/paper/choices.toml`, for all of them. Runs are written to `OUT/<experiment>/<run>` and kept, so
that an interrupted reproduction continues, and reproductions share runs.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedkin.errors import BadInput, nearest
from fedkin.experiments import run as experiment
from fedkin.experiments.data_sections import Settings
from fedkin.experiments.places import Place, place_named
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.paper.divisions import write_division
from fedkin.reports.figures import save
from fedkin.reports.pages import machine, with_section, write_pages, written_section
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from fedkin.reports.tables import Table

FOLDER = files("fedkin.paper") / "reproductions"
SUBSTITUTED = ("CIFAR-10", "CIFAR-100")  # first words of labels that are not true of a quick trial
QUICK_NOTE = "A quick trial on the embedded digits: it shows the layout, its numbers are no results."


@dataclass(frozen=True, eq=False)
class Part:
    """One experiment of a reproduction: the name of its folder, its label in tables, and its settings.

    data      the data set in words, as in the label
    division  the published division of its clients, if it has one of `fedkin.paper.divisions`
    """

    name: str
    label: str
    data: str
    settings: Settings = field(repr=False)
    division: str = ""


@dataclass(frozen=True)
class Reproduction:
    """The content of a file.

    paper      the place in the paper
    show       the name of the presentation: which tables and figures are made of the runs
    parts      the experiments
    printed    the paper's values, as nested tables
    across     in a sweep: the setting that varies over the panels
    reference  in controls: the method that others are compared with
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
class Output:
    """The output of a reproduction: tables, one table for a spreadsheet, figures by name, notes, and the files."""

    tables: tuple[Table, ...] = ()
    spreadsheet: Table | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a presentation needs: the reproduction, the folder of its runs, and how to prepare federations."""

    reproduction: Reproduction
    out: Path
    preparation: Preparation
    quick: bool = False

    def runs(self, part: Part) -> list[Run]:
        """The runs of a part so far, in the order of the tables."""
        folder = self.out / part.name
        return collect(folder) if any(folder.glob("*/config.json")) else []


def reproduction_names() -> list[str]:
    """The names of all reproductions."""
    return sorted(Path(file.name).stem for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def read_reproduction(name: str, quick: bool = False) -> Reproduction:
    """A reproduction by its name; with `quick` its small version."""
    if name not in reproduction_names():
        raise BadInput(f"there is no reproduction '{name}'{nearest(name, reproduction_names())}")
    content = _toml(FOLDER / f"{name}.toml")
    # another reproduction's runs
    source = _toml(FOLDER / f"{content['runs']}.toml") if "runs" in content else content
    choices = _toml(files("fedkin.paper") / "choices.toml")
    parts = []
    change = dict(source["quick"]) if quick else {}
    few, without = change.pop("only", None), change.pop("without", [])
    for own in source["experiment"]:
        if few is not None and own["name"] not in few:
            continue
        settings = merged(source.get("settings", {}), own)
        settings = merged(settings, merged(choices, settings))  # in the order of the file, which names the runs
        label, division = settings.pop("label", settings["name"]), settings.pop("division", "")
        data = label.split()[0]
        for key in without:
            _drop(settings, key)
        if data in SUBSTITUTED and "source" in change.get("data", {}):
            data = f"{change['data']['source']} for {data}"
            label = " ".join([data, *label.split()[1:]])
        settings = merged(settings, change)
        parts.append(Part(settings["name"], label, data, settings, division))
    return Reproduction(
        name,
        content["title"],
        content["paper"],
        content["show"],
        tuple(parts),
        content.get("printed", {}),
        content.get("across", ""),
        content.get("reference", ""),
    )


def _toml(file: Traversable) -> Settings:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def merged(settings: Mapping[str, Any], updates: Mapping[str, Any]) -> Settings:
    """Settings updated with others, table by table."""
    result = dict(settings)
    for key, value in updates.items():
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
    overrides: Sequence[str] = (),
    run: bool = True,
    fresh: bool = False,
    page: Path | str | None = None,
    listener: Listener | None = None,
    on: str | Place | None = None,
) -> Output:
    """Carry out a reproduction, or what is missing of it, and write NAME.md, .csv, .png and .pdf.

    only       names of the parts to run; existing runs of other parts are included in the output
    overrides  settings as `key=value`, for a part of a grid: `model.kind=["softmax"]`
    run        False: present existing runs only
    fresh      repeat runs that are finished
    page       a Markdown page whose section between `<!-- reproduce NAME -->` and `<!-- end NAME -->` is replaced;
               its figures are written to the folder docs/results next to it. Cells of the main table that were not
               run stay as the section has them
    on         where runs are carried out, as in `fedkin.run`
    """
    what = read_reproduction(name, quick)
    known = [part.name for part in what.parts]
    for wanted in only:
        if wanted not in known:
            raise BadInput(f"{name} has no part '{wanted}'{nearest(wanted, known)}")
    folder = Path(out) / "quick" if quick else Path(out)
    preparation = Preparation(Path(data) if data else None, listener or Silent())
    show, trains = _presentations()[what.show]
    chosen = [part for part in what.parts if not only or part.name in only]
    if trains and run:
        with place_named(on) as place:
            for part in chosen:
                how: dict[str, Any] = {"data": data, "listener": listener, "fresh": fresh, "on": place}
                experiment.run(_divided(part, folder, data), overrides=overrides, out=folder, **how)
    elif not trains:  # no runs are needed, only the presentation
        what = replace(what, parts=tuple(chosen))
    context = Context(what, folder, preparation, quick)
    if trains and not any(context.runs(part) for part in what.parts):
        raise BadInput(f"there are no runs of {name} in {folder} to show: leave out --show, or give another --out")
    output = show(context)
    if quick:
        output = replace(output, notes=(*output.notes, QUICK_NOTE))
    command = f"fedkin reproduce {name}" + (" --quick" if quick else "")
    pages = {f"{name}.md": f"# {what.title}\n\n{_body(what, output, command)}\n"}
    if output.spreadsheet:
        pages[f"{name}.csv"] = output.spreadsheet.csv()
    written = [*_save_figures(what, output, folder), *write_pages(folder, pages)]
    if page is not None:
        page, pictures = Path(page), Path("docs/results")
        written += _save_figures(what, output, page.parent / pictures)
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if what.show == "main_table":
            from fedkin.paper.earlier import with_earlier_cells

            output = with_earlier_cells(output, written_section(text, name, "reproduce"))
        section = _body(what, output, command, f"{pictures.as_posix()}/")
        written += write_pages(page.parent, {page.name: with_section(text, name, section, "reproduce")})
    return replace(output, files=tuple(written))


def _divided(part: Part, out: Path, data: Path | str | None) -> Settings:
    """The settings of a part; if its clients are those of a published division, with the file that has them."""
    if not part.division:
        return part.settings
    path = write_division(part.division, part.settings["data"]["source"], Path(data) if data else None, out)
    return merged(part.settings, {"data": {"source": str(path)}})


Presentation = Callable[[Context], Output]


def _presentations() -> dict[str, tuple[Presentation, bool]]:
    """The presentations by name, and whether each needs runs."""
    from fedkin.paper import client_losses, controls, figures, milestones, momentum, personal, privacy_table, tables

    return {
        "main_table": (tables.main_table, True),
        "times": (tables.times_table, True),
        "variants": (tables.variants_table, True),
        "client_losses": (client_losses.client_losses, True),
        "milestones": (milestones.milestone_table, True),
        "momentum": (momentum.momentum_tables, True),
        "controls": (controls.control_tables, True),
        "privacy": (privacy_table.privacy_tables, True),
        "personal": (personal.personal_tables, True),
        "curves": (figures.curve_figures, True),
        "sweep": (figures.sweep_figures, True),
        "misalignment": (figures.misalignment_figure, False),
        "spectrum": (figures.spectrum_figure, False),
        "classes": (figures.classes_figure, False),
        "samples": (figures.sample_figures, False),
    }


def _stems(what: Reproduction, output: Output) -> dict[str, Figure]:
    """The figures by the names of their files."""
    return {f"{what.name}-{suffix}" if suffix else what.name: figure for suffix, figure in output.figures.items()}


def _save_figures(what: Reproduction, output: Output, folder: Path) -> list[Path]:
    return [path for stem, figure in _stems(what, output).items() for path in save(figure, folder / stem)]


def _body(what: Reproduction, output: Output, command: str, pictures: str = "") -> str:
    """Tables, notes and figures as Markdown."""
    tables = [
        f"**{table.title}**\n\n{table.markdown().rstrip()}" if len(output.tables) > 1 else table.markdown().rstrip()
        for table in output.tables
    ]
    paragraphs = [
        f"In the paper: {what.paper}.",
        *tables,
        "\n".join(f"- {note}" for note in output.notes),
        *(f"![{what.title}]({pictures}{stem}.png)" for stem in _stems(what, output)),
        f"Written on {date.today().isoformat()} by `{command}` on {machine()}.",
    ]
    return "\n\n".join(filter(None, paragraphs))
