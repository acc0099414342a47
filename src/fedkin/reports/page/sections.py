"""The part of the page about one federation: conclusion, table, charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedkin.markup import Markup, concatenated, html_table, tag
from fedkin.reports.answer.contenders import Contender, Field
from fedkin.reports.answer.costs import TITLE as COSTS
from fedkin.reports.answer.costs import cost_columns, cost_table
from fedkin.reports.answer.intervals import Difference
from fedkin.reports.answer.ranking import Ranking
from fedkin.reports.answer.sentences import Answer
from fedkin.reports.kin_runs import kin_run_of
from fedkin.reports.page.chart_data import client_columns, curve_columns, lines_of, quantities
from fedkin.reports.page.charts import Chart, client_chart, curve_chart, difference_chart, gain_chart, looks
from fedkin.reports.page.kin_chart import kin_chart
from fedkin.reports.privacy import epsilon_text
from fedkin.reports.run import Run
from fedkin.reports.selection import how_chosen
from fedkin.reports.tables import NEVER


@dataclass
class PageSection:
    """The HTML of a section, and its charts by the id of the element they are drawn in."""

    html: Markup
    charts: dict[str, Chart] = field(default_factory=dict)


def section_of(about: Field, answer: Answer, name: str, title: str, points: int) -> PageSection:
    """The section of a federation.

    name    prefix of the ids of its elements
    title   what distinguishes the federation from others; empty if there is only one
    points  number of rows of data in a chart, at most
    """
    ranking = answer.ranking
    parts: list[str] = [tag("h2", title)] if title else []
    parts.append(conclusion(answer))
    charts: dict[str, Chart] = {}
    if ranking is not None:
        parts.append(tag("h3", "Every method at its best setting" if about.validated else "Every setting"))
        parts.append(ranking_table(ranking))
        parts.append(_note(ranking, about))
        parts += [tag("h3", COSTS), costs_table(ranking)]
    lines = [line for line in lines_of(about, ranking) if line.runs]
    labels = [line.label for line in lines]
    if points and lines:
        parts.append(_boxes(labels, name))
        if ranking is not None and ranking.behind:
            charts[f"{name}-differences"] = difference_chart(ranking)
            parts.append(
                _figure(
                    f"{name}-differences",
                    f"Difference from {ranking.best.label}",
                    "A dot is the mean difference, a line its 95 % interval. An interval that contains 0 means that no "
                    "difference was measured. " + ranking.score.better.capitalize() + " values are better.",
                )
            )
        parts += _curves(charts, name, labels, about, ranking, points)
        if ranking is not None and any(one.clients for one in ranking.order):
            parts += _clients(charts, name, ranking, points)
        parts += _kin(charts, name, ranking, points)
    return PageSection(tag("section", *parts, id=name), charts)


def conclusion(answer: Answer) -> Markup:
    """The conclusion and what could change it."""
    parts = [tag("p", answer.headline, class_="headline")]
    parts += [tag("p", sentence) for sentence in answer.details]
    if answer.cautions:
        parts.append(tag("h3", "What could change this answer"))
        parts.append(tag("ul", *(tag("li", sentence) for sentence in answer.cautions)))
    return tag("div", *parts, class_="answer")


# -- the table ---------------------------------------------------------------------------------------------------------


def ranking_table(ranking: Ranking) -> Markup:
    """One row for each method."""
    score, rows = ranking.score, []
    everyone = (*ranking.order, *ranking.references)
    columns = [
        ("method", "the algorithm"),
        ("setting", "the values chosen on validation samples"),
        (f"{score.name} of clients' models", "those that clients use, on their own test samples; mean over seeds"),
        ("difference", "from the best method, with its paired 95 % interval"),
        ("verdict", "tied: the interval contains 0, no measurable difference; reference: no federation has it"),
        ("worst tenth", f"mean {score.name} of the tenth of the clients for which it is worst"),
        ("better off alone", "share of clients whose model trained alone is better"),
    ]
    spent = {one.label: next(filter(None, map(epsilon_text, one.runs)), "") for one in everyone}
    columns += [("ε", "of one run, by differential privacy of whole clients")] if any(spent.values()) else []
    for one in everyone:
        gap = ranking.behind.get(one.label)
        alone = ranking.better_alone(one)
        rows.append(
            [
                one.label,
                one.setting or NEVER,
                score.text(one.mean),
                _difference_cell(gap, ranking),
                verdict(gap, one),
                score.text(_mean(one, [score.worst(run) for run in one.runs])),
                NEVER if alone is None else f"{100 * alone.share:.0f} %",
                *([spent[one.label] or NEVER] if any(spent.values()) else []),
            ]
        )
    numeric = [title not in ("method", "setting", "verdict") for title, _ in columns]
    return html_table(columns, rows, numeric, "Methods, the best first")


def costs_table(ranking: Ranking) -> Markup:
    """One row for each method: its global model, fairness, and what it costs."""
    columns, shown = cost_columns(ranking), cost_table(ranking)
    head = [("method", ""), *((column.title, column.meaning) for column in columns)]
    return html_table(head, shown.rows, [False] + [True] * len(columns), "Means over seeds")


def verdict(gap: Difference | None, one: Contender) -> str:
    """The comparison with the best in a word."""
    if gap is None:
        return "best"
    if one.reference:
        return "reference"
    return "tied" if gap.is_tie else "behind" if gap.is_better else "ahead" if gap.is_worse else "not known"


def _difference_cell(gap: Difference | None, ranking: Ranking) -> str:
    if gap is None:
        return NEVER
    mean, low, high = (
        ranking.score.number(value, signed=True) for value in gap.seen_from_the_other(ranking.score.sign)
    )
    return f"{mean} ({low} to {high})" if gap.has_interval else mean


def _mean(one: Contender, values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _note(ranking: Ranking, about: Field) -> Markup:
    gaps = [gap for gap in ranking.behind.values() if gap.has_interval]
    words = []
    if about.validated:
        words.append(f"{how_chosen(about.runs)}; the test samples were not used for it.")
    if gaps and gaps[0].over == "seeds":
        words.append("Differences are taken seed by seed; intervals are t intervals over seeds.")
    elif gaps:
        words.append(
            "Differences are taken client by client in the one seed there is, weighted by test samples; intervals are "
            "t intervals over clients."
        )
    if len(ranking.behind) > 5:
        words.append("Each interval holds by itself with 95 %; among many, one may miss by chance.")
    words.append("Explanations of columns are shown on their heads.")
    return tag("p", " ".join(words), class_="note")


# -- charts ------------------------------------------------------------------------------------------------------------


def _figure(name: str, title: str, words: str, *controls: str) -> Markup:
    return tag(
        "figure",
        tag("h3", title),
        *([tag("div", *controls, class_="controls")] if controls else []),
        tag("div", id=name, class_="chart"),
        tag("figcaption", words),
    )


def _boxes(labels: Sequence[str], name: str) -> Markup:
    """The legend, with a box for each method that shows or hides it in all charts of the section."""
    boxes = []
    for label, (colour, dashes) in looks(labels).items():
        stroke = "" if dashes == [1, 0] else " ".join(map(str, dashes))
        swatch = Markup(
            f'<svg width="26" height="10" aria-hidden="true"><line x1="1" y1="5" x2="25" y2="5" stroke="{colour}" '
            f'stroke-width="3" stroke-dasharray="{stroke}"/></svg>'
        )
        box = Markup(str(tag("input", type="checkbox", checked=True, value=label)).removesuffix("</input>"))
        boxes.append(tag("label", box, swatch, label))
    all_or_none = [tag("button", word, type="button", data_show=word) for word in ("all", "none")]
    return tag(
        "fieldset", tag("legend", "Methods in the charts"), *boxes, *all_or_none, class_="legend", data_section=name
    )


def _select(words: str, name: str, signal: str, options: Sequence[tuple[str, str]]) -> Markup:
    entries = [tag("option", text, value=value) for value, text in options]
    return tag("label", f"{words} ", tag("select", *entries, data_chart=name, data_signal=signal))


def _curves(
    charts: dict[str, Chart], name: str, labels: Sequence[str], about: Field, ranking: Ranking | None, points: int
) -> list[Markup]:
    columns = curve_columns(lines_of(about, ranking), about.score, points)
    words = {key: text for key, text in quantities(about.score).items() if key in columns["quantity"]}
    if not words:
        return []
    place = f"{name}-curves"
    charts[place] = curve_chart(columns, labels, list(words), about.score)
    has_bytes = any(isinstance(value, float) and math.isfinite(value) for value in columns["megabytes"])
    axes = [("round", "rounds"), *([("megabytes", "megabytes of a client")] * has_bytes), ("seconds", "seconds")]
    controls = [
        _select("Show", place, "quantity", list(words.items())),
        _select("over", place, "axis", axes),
    ]
    caption = (
        "A line is the mean over seeds, a band reaches from the lowest to the highest. Point at a line for numbers."
    )
    return [_figure(place, "Over the rounds", caption, *controls)]


def _clients(charts: dict[str, Chart], name: str, ranking: Ranking, points: int) -> list[Markup]:
    dots, boxes, left_out = client_columns(ranking, points)
    with_clients = list(dict.fromkeys(boxes["method"]))
    charts[f"{name}-clients"] = client_chart(dots, boxes, with_clients, ranking.score)
    words = (
        "A dot is a client, a box the middle half of the clients, a bar the mean. Point at a dot for the client's name."
    )
    if left_out:
        words += f" {left_out:,} dots are left out, evenly over the range; boxes and bars are of all clients."
    found = [_figure(f"{name}-clients", "Every client", words)]
    gained = dict.fromkeys(m for m, gain in zip(dots["method"], dots["gain"], strict=True) if math.isfinite(gain))
    if gained:
        first = next(iter(gained))
        charts[f"{name}-gains"] = gain_chart(dots, list(gained), first, ranking.score)
        choice = _select("With", f"{name}-gains", "gainof", [(label, label) for label in gained])
        words = "Bars below 0 are clients that would be better off alone. With few test samples that can be chance."
        found.append(_figure(f"{name}-gains", "What each client gains over training alone", words, choice))
    return found


def _kin(charts: dict[str, Chart], name: str, ranking: Ranking | None, points: int) -> list[Markup]:
    """Who is kin in the best method that has kin."""
    for one in ranking.order if ranking is not None else ():
        kin = kin_run_of(one.runs[0])
        if kin is not None:
            chart, words = kin_chart(kin, max(500, points // 3))
            charts[f"{name}-kin"] = chart
            return [_figure(f"{name}-kin", f"Who is kin: {one.label}", words)]
    return []


def runs_list(runs: Sequence[Run]) -> Markup:
    """All runs of a section with their states, in one table."""
    rows = [[run.label, run.name, run.state] for run in runs]
    return html_table([("run", ""), ("folder", ""), ("state", "")], rows, [False] * 3, "All runs")


def all_parts(sections: Sequence[PageSection]) -> tuple[Markup, dict[str, Chart]]:
    """The sections after each other, and all their charts."""
    return concatenated(one.html for one in sections), {k: v for one in sections for k, v in one.charts.items()}
