"""Who is kin, as a chart: dots are clients, lines connect kin."""

from typing import Any

import altair as alt
import numpy as np

from fedkin.reports.kin_figure import colours_of
from fedkin.reports.kin_layout import positions
from fedkin.reports.kin_runs import KinRun
from fedkin.reports.page.charts import Chart, made

MOST_EDGES = 4000


def kin_chart(kin: KinRun, edges: int = MOST_EDGES) -> tuple[Chart, str]:
    """The graph of kin of a run, and what it shows in words; at most so many lines, drawn at random."""
    colours, x = colours_of(kin), positions(kin.pairs)
    pairs = kin.edges
    if len(pairs) > edges:
        pairs = pairs[np.sort(np.random.default_rng(0).choice(len(pairs), edges, replace=False))]
    names = kin.names
    count = np.asarray(kin.pairs.sum(axis=1)).reshape(-1)
    about = {word: kin.known(key) for word, key in (("kind", "kind"), ("angle", "angle"), ("samples", "samples"))}
    nodes: dict[str, Any] = {
        "client": names,
        "x": x[:, 0].tolist(),
        "y": x[:, 1].tolist(),
        "colour": colours.each,
        "kin": count.tolist(),
        **{word: values.tolist() for word, values in about.items() if values is not None},
    }
    lines: dict[str, Any] = {
        "a": [names[i] for i, _ in pairs],
        "b": [names[j] for _, j in pairs],
        "x": x[pairs[:, 0], 0].tolist(),
        "y": x[pairs[:, 0], 1].tolist(),
        "x2": x[pairs[:, 1], 0].tolist(),
        "y2": x[pairs[:, 1], 1].tolist(),
    }
    scale, bare = alt.Scale(domain=[-1.1, 1.1], nice=False, zero=False), None
    chosen = alt.selection_point(name="chosen", on="pointerover", fields=["client"], empty=False, clear="pointerout")
    dots = (
        alt.Chart(alt.NamedData("nodes"))
        .mark_circle(opacity=1, size=90 if len(names) <= 100 else 30)
        .encode(
            x=alt.X("x:Q", scale=scale, axis=bare),
            y=alt.Y("y:Q", scale=scale, axis=bare),
            color=alt.Color("colour:N", scale=None),
            tooltip=[alt.Tooltip(f"{key}:N") for key in nodes if key not in ("x", "y", "colour")],
        )
        .add_params(chosen)
    )
    touched = "chosen.client && (datum.a == chosen.client[0] || datum.b == chosen.client[0])"
    links = (
        alt.Chart(alt.NamedData("edges"))
        .mark_rule(strokeWidth=1)
        .encode(
            x=alt.X("x:Q", scale=scale, axis=bare),
            y=alt.Y("y:Q", scale=scale, axis=bare),
            x2="x2:Q",
            y2="y2:Q",
            opacity=alt.condition(touched, alt.value(0.95), alt.value(0.35 if len(pairs) <= 1000 else 0.12)),
        )
    )
    layers = [links, dots] if len(pairs) else [dots]
    chart = alt.layer(*layers).properties(width="container", height=380)
    data = {"nodes": nodes, **({"edges": lines} if len(pairs) else {})}
    return made(chart, "Clients, with lines between those that are kin.", **data), _words(
        kin, len(pairs), colours.title
    )


def _words(kin: KinRun, drawn: int, colours: str) -> str:
    start = kin.choices()[-1][1]
    if kin.weights is None:
        return f"All clients start at {start.removesuffix(', then own model')}: nobody has kin."
    words = [f"A dot is a client, a line connects kin ({start}). Clients with many common kin lie close to each other."]
    if colours:
        words.append(f"Colours are the true {colours}, which the method was not told.")
    if (purity := kin.purity()) is not None:
        words.append(
            f"{100 * purity[0]:.0f} % of the pairs are of one true kind; by chance it would be {100 * purity[1]:.0f} %."
        )
    if drawn < len(kin.edges):
        words.append(f"{drawn:,} of {len(kin.edges):,} lines are drawn.")
    return " ".join(words)
