"""The whole page: one file without references to others."""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedkin.errors import BadInput
from fedkin.markup import Markup, concatenated, html_table, script_data, tag
from fedkin.reports.answer.contenders import Field, federation_title, fields_of
from fedkin.reports.answer.sentences import answer_of
from fedkin.reports.groups import described, experiments
from fedkin.reports.labels import plain, short
from fedkin.reports.page.glossary import glossary
from fedkin.reports.pages import machine
from fedkin.reports.run import Run
from fedkin.types import Record

if TYPE_CHECKING:
    from fedkin.reports.page.sections import PageSection

HOW = "the page needs Altair and vl-convert: pip install 'fedkin[page]'"
ALL_POINTS = 24_000  # rows of data of one kind of chart on the whole page
MOST_SECTIONS = 12  # sections with charts
MOST_RUNS = 400  # runs with their settings
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def can_make_page() -> bool:
    """Whether the packages of the page are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


@dataclass(frozen=True)
class Live:
    """A page that asks its server for news.

    version  of what the page shows; when the server has another one, the page is loaded again
    state    of the runs, in words
    """

    version: str
    state: str

    def element(self) -> Markup:
        """The state at the top of the page."""
        return tag("p", self.state, class_="live", id="live", role="status")


def page_of(runs: Sequence[Run], live: Live | None = None) -> str:
    """The page of runs, which may belong to several experiments: a section for each federation."""
    if not runs:
        raise BadInput("there are no runs to show: collect some first")
    if not can_make_page():
        raise BadInput(HOW)
    sections = _sections(runs)
    names = list(dict.fromkeys(run.experiment for run in runs))
    title = ", ".join(names)
    charts = {name: {"spec": c.spec, "data": c.data} for one in sections for name, c in one.charts.items()}
    body = concatenated(
        [
            tag(
                "header",
                tag("h1", title),
                tag("p", described(runs), class_="note"),
                *([live.element()] if live else []),
            ),
            tag("main", *(one.html for one in sections), glossary(runs), _settings(runs)),
            tag("footer", tag("p", _colophon(runs))),
            script_data({"charts": charts, "live": live is not None}, "page-data"),
        ]
    )
    policy = POLICY + ("; connect-src 'self'" if live else "")
    head = concatenated(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            tag("title", f"{title}: which method serves the clients best"),
            tag("style", Markup(_resource("page.css"))),
        ]
    )
    script = Markup(f'<script type="module">{_script()}</script>')
    version = f' data-version="{live.version}"' if live else ""
    return f'<!DOCTYPE html>\n<html lang="en"{version}><head>{head}</head>\n<body>{body}{script}</body></html>\n'


def _sections(runs: Sequence[Run]) -> "list[PageSection]":
    from fedkin.reports.page.sections import section_of  # imports Altair, which is optional

    found: list[tuple[str, Field]] = []
    groups = experiments(runs)
    for members in groups.values():
        parts = fields_of(members)
        for part in parts:
            words = [members[0].experiment] if len(groups) > 1 else []
            if len(parts) > 1:
                words.append(federation_title(part.runs[0], members))
            found.append((": ".join(words), part))
    points = ALL_POINTS // min(len(found), MOST_SECTIONS)
    return [
        section_of(part, answer_of(part), f"part-{place}", title, points if place < MOST_SECTIONS else 0)
        for place, (title, part) in enumerate(found)
    ]


# -- settings ----------------------------------------------------------------------------------------------------------


def _settings(runs: Sequence[Run]) -> Markup:
    """The whole configuration: what all runs share, then what distinguishes each, and its state."""
    tables = [{**run.settings, **_algorithm(run)} for run in runs]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    shared = {key: tables[0][key] for key in keys if all(key in t and t[key] == tables[0][key] for t in tables)}
    rest = [key for key in keys if key not in shared]
    text = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in shared.items())
    heads = [
        ("run", ""),
        ("state", ""),
        *((short(key) if key != "algorithm.name" else "algorithm", key) for key in rest),
    ]
    rows = [
        [run.name, run.state, *(plain(table[key]) if key in table else "" for key in rest)]
        for run, table in zip(runs[:MOST_RUNS], tables[:MOST_RUNS], strict=True)
    ]
    left = f"{len(runs) - MOST_RUNS:,} further runs are not listed." if len(runs) > MOST_RUNS else ""
    return tag(
        "section",
        tag("h2", "Settings"),
        tag("details", tag("summary", f"The whole configuration, and all {len(runs):,} runs"),
            tag("h3", "The same in all runs"), tag("pre", text),
            tag("h3", "Runs"), html_table(heads, rows, [False] * len(heads), "Runs and their settings"),
            tag("p", left)),
    )  # fmt: skip


def _algorithm(run: Run) -> Record:
    return {f"algorithm.{key}": value for key, value in run.config["algorithm"].items()}


def _colophon(runs: Sequence[Run]) -> str:
    now = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    return f"Made {now} on {platform.node() or 'a machine'} ({machine()}) from {len(runs)} runs."


# -- scripts -----------------------------------------------------------------------------------------------------------


def _resource(name: str) -> str:
    return files("fedkin.reports.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """The script of the page with Vega, Vega-Lite and Vega-Embed in it."""
    import vl_convert

    bundle = vl_convert.javascript_bundle(_resource("page.js"))
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")
