"""The charts of the page as Vega-Lite specifications.

Every chart has the parameter `shown`, a list of methods, which the boxes of the page set. Colours are chosen to be
distinguished by people with any colour vision, and to be seen on light and dark ground; lines differ in dashes, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fedkin.reports.answer.ranking import Ranking
from fedkin.reports.answer.scores import Score
from fedkin.reports.page.chart_data import OF_SCORE
from fedkin.reports.page.columns import TableColumns, encoded, rows_of

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b55d94", "#a67c00", "#7d7d7d", "#5e8fd0", "#9a6324")
DASHES = ([1, 0], [7, 2], [2, 2], [8, 2, 2, 2], [4, 4])
GOOD, BAD = "#0072b2", "#d55e00"


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    spec  Vega-Lite specification without data
    data  encoded columns of its named data sets
    """

    spec: dict[str, Any]
    data: dict[str, dict[str, Any]]

    def whole(self) -> dict[str, Any]:
        """The specification with its data, as the browser completes it."""
        return {**self.spec, "datasets": {name: rows_of(columns) for name, columns in self.data.items()}}


def looks(labels: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Colour and dashes of each method, by its place among all."""
    return {
        label: (PALETTE[place % len(PALETTE)], DASHES[place // len(PALETTE) % len(DASHES)])
        for place, label in enumerate(labels)
    }


def made(chart: Any, description: str, **data: TableColumns) -> Chart:
    """A chart of Altair as one of the page."""
    chart = chart.properties(description=description)
    spec = chart.to_dict(context={"pre_transform": False})
    spec.pop("config", None)
    return Chart(spec, {name: encoded(columns) for name, columns in data.items()})


def shown_methods(labels: Sequence[str]) -> Any:
    """The parameter with the methods that are shown."""
    return alt.param(name="shown", value=list(labels))


IS_SHOWN = "indexof(shown, datum.method) >= 0"


def colour_of(labels: Sequence[str]) -> Any:
    """The colour of a method, without a legend: the boxes of the page are the legend."""
    of = looks(labels)
    scale = alt.Scale(domain=list(of), range=[colour for colour, _ in of.values()])
    return alt.Color("method:N", scale=scale, legend=None)


def curve_chart(columns: TableColumns, labels: Sequence[str], quantities: Sequence[str], score: Score) -> Chart:
    """Lines over the rounds, megabytes or seconds, with a band from the lowest to the highest seed."""
    of = looks(labels)
    dashes = alt.Scale(domain=list(of), range=[dash for _, dash in of.values()])
    quantity = alt.param(name="quantity", value=quantities[0])
    axis = alt.param(name="axis", value="round")
    percent = f"indexof({list(OF_SCORE) if score.in_percent else []}, quantity) >= 0"
    number = f"{percent} ? format(datum.value, '.1~%') : datum.label"
    base = (
        alt.Chart(alt.NamedData("curves"))
        .transform_filter(IS_SHOWN)
        .transform_filter("datum.quantity == quantity")
        .transform_calculate(
            x="axis == 'round' ? datum.round : axis == 'megabytes' ? datum.megabytes : datum.seconds",
            text=f"{percent} ? format(datum.value, '.1%') : format(datum.value, '.4~g')",
            range=f"datum.low == datum.high ? '–' : {percent}"
            " ? format(datum.low, '.1%') + ' to ' + format(datum.high, '.1%')"
            " : format(datum.low, '.4~g') + ' to ' + format(datum.high, '.4~g')",
        )
        .transform_filter("isValid(datum.x)")
        .encode(
            x=alt.X("x:Q", title=None, axis=alt.Axis(tickMinStep=1, grid=False), scale=alt.Scale(nice=False)),
            color=colour_of(labels),
        )
    )
    height = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=number, tickCount=6))
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=None), y2="high:Q", detail="method:N")
    line = base.mark_line(strokeWidth=2).encode(
        y=height, strokeDash=alt.StrokeDash("method:N", scale=dashes, legend=None)
    )
    near = alt.selection_point(name="near", nearest=True, on="pointermove", clear="pointerout", empty=False)
    dots = (
        base.mark_point(filled=True, size=70, aria=False)
        .encode(
            y=height,
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=[
                alt.Tooltip("method:N"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("text:N", title="value"),
                alt.Tooltip("range:N", title="over seeds"),
                alt.Tooltip("megabytes:Q", format=",.3~r", title="MB of a client"),
                alt.Tooltip("seconds:Q", format=",.2~f"),
            ],
        )
        .add_params(near)
    )
    chart = alt.layer(band, line, dots).add_params(shown_methods(labels), quantity, axis)
    chart = chart.properties(width="container", height=300)
    return made(chart, "Quantities over the rounds, a line for each method.", curves=columns)


def difference_chart(ranking: Ranking) -> Chart:
    """Differences of all methods from the best, with their intervals."""
    score, labels = ranking.score, [one.label for one in (*ranking.order, *ranking.references)]
    columns: dict[str, list[Any]] = {name: [] for name in ("method", "value", "low", "high", "verdict", "over")}
    for label, gap in ranking.behind.items():
        verdict = "behind" if gap.is_better else "ahead" if gap.is_worse else "tied" if gap.is_tie else "not known"
        over = f"{gap.pairs} {gap.over}" if gap.has_interval else "none"
        numbers = (score.factor * value for value in gap.seen_from_the_other(score.sign))
        for name, value in zip(columns, (label, *numbers, verdict, over), strict=True):
            columns[name].append(value)
    base = alt.Chart(alt.NamedData("differences")).transform_filter(IS_SHOWN)
    place = method_axis(labels[1:])
    unit = f"difference from {ranking.best.label}{f', {score.points.strip()}' if score.points.strip() else ''}"
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("value:Q", format="+.2f", title="difference"),
        alt.Tooltip("low:Q", format="+.2f"),
        alt.Tooltip("high:Q", format="+.2f"),
        alt.Tooltip("over:N", title="paired over"),
        alt.Tooltip("verdict:N"),
    ]
    whisker = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title=unit, axis=alt.Axis(tickCount=8)),
        x2="high:Q",
        y=place,
        color=colour_of(labels),
        tooltip=tooltip,
    )
    dot = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=alt.X("value:Q"), y=place, color=colour_of(labels), tooltip=tooltip
    )
    zero = base.mark_rule(strokeDash=[4, 3], opacity=0.6).encode(x=alt.datum(0))
    chart = alt.layer(zero, whisker, dot).add_params(shown_methods(labels))
    chart = chart.properties(width="container", height=28 * (len(labels) - 1))
    return made(chart, "Difference of each method from the best, with its interval.", differences=columns)


def method_axis(labels: Sequence[str], **options: Any) -> Any:
    """Methods from top to bottom, in order."""
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, grid=False, **options)
    return alt.Y("method:N", sort=list(labels), title=None, axis=axis)


def client_chart(dots: TableColumns, boxes: TableColumns, labels: Sequence[str], score: Score) -> Chart:
    """The clients of each method: a dot each, a box for the middle half, a bar at the mean."""
    percent = score.in_percent
    form = ".1%" if percent else ".4~g"
    x_axis = alt.Axis(format=".0%" if percent else "~g", tickCount=6)
    x = alt.X(
        "value:Q", title=f"{score.name} on the client's own test samples", axis=x_axis, scale=alt.Scale(zero=False)
    )
    place = method_axis(labels)
    box = alt.Chart(alt.NamedData("boxes")).transform_filter(IS_SHOWN)
    middle = box.mark_bar(size=34, opacity=0.16).encode(
        x=alt.X("q1:Q", title=None), x2="q3:Q", y=place, color=colour_of(labels)
    )
    mean = box.mark_tick(thickness=3, size=36, opacity=1).encode(
        x=alt.X("mean:Q", title=None),
        y=place,
        color=colour_of(labels),
        tooltip=[
            alt.Tooltip("method:N"),
            alt.Tooltip("mean:Q", format=form),
            alt.Tooltip("median:Q", format=form, title="median client"),
            alt.Tooltip("low:Q", format=form, title="worst client"),
            alt.Tooltip("high:Q", format=form, title="best client"),
        ],
    )
    points = (
        alt.Chart(alt.NamedData("clients"))
        .transform_filter(IS_SHOWN)
        .mark_circle(size=30 if len(dots["method"]) < 2000 else 12, opacity=0.6)
        .encode(
            x=x,
            y=place,
            yOffset=alt.YOffset("place:Q", scale=alt.Scale(domain=[-1.15, 1.15])),
            color=colour_of(labels),
            tooltip=[
                alt.Tooltip("client:N"),
                alt.Tooltip("method:N"),
                alt.Tooltip("value:Q", format=form, title=score.name),
                alt.Tooltip("samples:Q", title="test samples"),
                alt.Tooltip("seed:N"),
            ],
        )
    )
    chart = alt.layer(middle, points, mean).add_params(shown_methods(labels))
    chart = chart.properties(width="container", height=44 * len(labels))
    return made(chart, "Results of every client, a line for each method.", clients=dots, boxes=boxes)


def gain_chart(dots: TableColumns, labels: Sequence[str], best: str, score: Score) -> Chart:
    """What each client gains over training alone with one method, the lowest gain first."""
    form = ".1%" if score.in_percent else ".4~g"
    gain_of = alt.param(name="gainof", value=best)
    base = (
        alt.Chart(alt.NamedData("clients"))
        .transform_filter("datum.method == gainof && isValid(datum.gain)")
        .transform_calculate(points=f"{score.factor} * datum.gain", better="datum.gain < 0 ? 'alone' : 'together'")
    )
    # A client that neither gains nor loses is a bar without height: the dot shows that it is there.
    encodings: dict[str, Any] = {
        "x": alt.X("rank:O", title="clients, by gain", axis=alt.Axis(labels=False, ticks=False, grid=False)),
        "color": alt.Color("better:N", scale=alt.Scale(domain=["together", "alone"], range=[GOOD, BAD]), legend=None),
        "tooltip": [
            alt.Tooltip("client:N"),
            alt.Tooltip("seed:N"),
            alt.Tooltip("points:Q", format="+.2f", title="gain"),
            alt.Tooltip("value:Q", format=form, title="with the method"),
            alt.Tooltip("alone:Q", format=form, title="alone"),
            alt.Tooltip("samples:Q", title="test samples"),
        ],
    }
    unit = f"gain{f', {score.points.strip()}' if score.points.strip() else ''}"
    bars = base.mark_bar().encode(y=alt.Y("points:Q", title=unit), **encodings)
    ends = base.mark_circle(size=24, opacity=1).encode(y=alt.Y("points:Q"), **encodings)
    chart = alt.layer(bars, ends).add_params(gain_of, shown_methods(labels))
    chart = chart.properties(width="container", height=240)
    return made(chart, "Gain of each client over training alone.", clients=dots)
