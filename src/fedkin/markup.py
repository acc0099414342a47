"""HTML: escaped text, tables, and data within scripts; for the page of a report and for notebooks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


class Markup(str):
    """Text that is HTML already. All other text is escaped."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: str | bool | None) -> Markup:
    """An element: `tag("p", "a < b", class_="note")`. Content is escaped unless it is `Markup`."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{given}>{''.join(map(_safe, content))}</{name}>")


def concatenated(parts: Iterable[str]) -> Markup:
    """Parts after each other, each escaped unless it is `Markup`."""
    return Markup("".join(map(_safe, parts)))


def _safe(text: str) -> str:
    return text if isinstance(text, Markup) else escape(str(text))


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def html_table(
    head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], numeric: Sequence[bool], caption: str = ""
) -> Markup:
    """A table that can be scrolled sideways. `head` has titles with explanations; numeric columns are on the right."""

    def kind(column: int) -> str | None:
        return "number" if numeric[column] else None

    titles = [
        tag("th", title, scope="col", class_=kind(column), title=meaning or None)
        for column, (title, meaning) in enumerate(head)
    ]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=kind(column)) for column, cell in enumerate(row) if column),
        )
        for row in rows
    ]
    inside = [tag("caption", caption)] if caption else []
    table = tag("table", *inside, tag("thead", tag("tr", *titles)), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def script_data(content: Any, name: str) -> Markup:
    """Data for scripts, in an element of this name. Nothing in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """A short table of names and values, as a notebook shows an object."""
    rows = [tag("tr", tag("th", name, style="text-align:left"), tag("td", value)) for name, value in facts.items()]
    return tag("table", tag("caption", title, style="text-align:left;font-weight:600"), tag("tbody", *rows))
