"""The data of the charts of one federation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.reports.answer.contenders import Contender, Field, clients_of
from fedkin.reports.answer.ranking import Ranking
from fedkin.reports.answer.scores import Score
from fedkin.reports.labels import is_seed, plain
from fedkin.reports.page.columns import TableColumns, thinned
from fedkin.reports.run import Run
from fedkin.reports.selection import ALONE
from fedkin.types import Floats

MOST_LINES = 60
ALL_ROUNDS = 240  # rounds of a line that are drawn, at most


@dataclass(frozen=True)
class Line:
    """Runs that are drawn as one line: their mean, and a band from the lowest to the highest."""

    label: str
    runs: tuple[Run, ...]


def lines_of(field: Field, ranking: Ranking | None) -> list[Line]:
    """A line for each contender, in order, then one for each method of which no run has finished yet."""
    found = [Line(one.label, one.runs) for one in (*ranking.order, *ranking.references)] if ranking else []
    going: dict[str, list[Run]] = {}
    for run in field.runs:
        if run.status != "finished" and len(run.series("round")):
            going.setdefault(f"{run.label} ({run.status})", []).append(run)
    rest = [Line(label, tuple(runs)) for label, runs in going.items()]
    return [*found, *rest][:MOST_LINES]


OF_SCORE = ("used", "common", "worst", "tuned")  # quantities that are in units of the score


def quantities(score: Score) -> dict[str, str]:
    """Quantities over the rounds in words, the most important first."""
    return {
        "used": f"{score.name} of the clients' models",
        "common": f"{score.name} of the global model",
        "worst": f"{score.name} of the worst tenth of clients",
        "tuned": f"{score.name} of the clients' models after fine-tuning",
        "validation_loss": "loss on validation samples",
        "test_loss": "loss of the global model on test samples",
        "train_loss": "loss of the global model on training samples",
    }


def curve_columns(lines: Sequence[Line], score: Score, points: int) -> dict[str, list[float | str]]:
    """Quantities over the rounds: mean, lowest and highest over seeds; megabytes and seconds so far, of one client.

    points  number of rows of the whole table, at most
    """
    names = ("method", "quantity", "round", "megabytes", "seconds", "value", "low", "high")
    columns: dict[str, list[float | str]] = {name: [] for name in names}
    shown = [key for key in quantities(score) if any(_known(run, key, score) for line in lines for run in line.runs)]
    most = min(ALL_ROUNDS, max(8, points // max(1, len(lines) * len(shown))))
    for line in lines:
        rounds = min(len(run.series("round")) for run in line.runs)
        spent = _mean([np.nancumsum(run.series("seconds")[:rounds]) for run in line.runs])
        sent = _mean([_megabytes(run)[:rounds] for run in line.runs])
        for key in shown:
            stacked = np.stack([_quantity(run, key, score)[:rounds] for run in line.runs])
            usable = np.flatnonzero(np.isfinite(stacked).all(axis=0))
            for place in usable[thinned(len(usable), most)]:
                values = stacked[:, place]
                row = (line.label, key, float(line.runs[0].series("round")[place]) + 1, sent[place], spent[place])
                for name, value in zip(names, (*row, values.mean(), values.min(), values.max()), strict=True):
                    columns[name].append(value if isinstance(value, str) else float(value))
    return columns


def _known(run: Run, key: str, score: Score) -> bool:
    return bool(np.isfinite(_quantity(run, key, score)).any())


def _quantity(run: Run, key: str, score: Score) -> Floats:
    own = f"own_test_{score.key}" in run.rounds
    if key == "common" and not own:
        return np.full(len(run.series("round")), np.nan)  # it is the model that clients use
    names = {
        "used": f"{'own_' * own}test_{score.key}",
        "common": f"test_{score.key}",
        "worst": f"{'own_' * own}worst_decile",
        "tuned": f"tuned_test_{score.key}",
    }
    return run.series(names.get(key, key))


def _megabytes(run: Run) -> Floats:
    """Megabytes that a client has received and sent so far, if it was sampled in every round; NaN if not recorded."""
    return np.asarray(np.cumsum(run.series("bytes_down") + run.series("bytes_up")) / 1e6)


def _mean(series: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean(np.stack(series), axis=0))


# -- clients -----------------------------------------------------------------------------------------------------------


def client_columns(ranking: Ranking, points: int) -> tuple[TableColumns, TableColumns, int]:
    """The clients of each contender: points, boxes, and how many clients were left out of the points.

    Of many clients those at evenly spread places in the order of their values are drawn; boxes are of all.
    """
    found = [one for one in (*ranking.order, *ranking.references) if one.clients]
    most = max(20, points // max(1, len(found)))
    dots: dict[str, list[object]] = {
        name: [] for name in ("method", "client", "seed", "value", "samples", "gain", "rank", "alone", "place")
    }
    boxes: dict[str, list[object]] = {name: [] for name in ("method", "low", "q1", "median", "q3", "high", "mean")}
    left_out = 0
    for one in found:
        rows = _client_rows(one, ranking)
        values = np.array([row[2] for row in rows])
        quantiles = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0])
        for name, value in zip(boxes, (one.label, *quantiles.tolist(), one.mean), strict=True):
            boxes[name].append(value)
        rows = [rows[place] for place in np.argsort(values, kind="stable")]
        rows = [rows[place] for place in thinned(len(rows), most)]
        left_out += len(values) - len(rows)
        ranks = np.argsort(np.argsort([row[4] for row in rows], kind="stable"), kind="stable")
        spread = _spread([row[2] for row in rows])
        for (client, seed, value, samples, gain), rank, place in zip(rows, ranks.tolist(), spread, strict=True):
            row = (one.label, client, seed, value, samples, gain, rank, value - ranking.score.sign * gain, place)
            for name, entry in zip(dots, row, strict=True):
                dots[name].append(entry)
    return dots, boxes, left_out


def _client_rows(one: Contender, ranking: Ranking) -> list[tuple[str, str, float, float, float]]:
    """Name, seed, value, testing samples and gain over alone of every client in every seed."""
    alone = ranking.first_of(ALONE)
    rows = []
    for run, (seed, clients) in zip((r for r in one.runs if clients_of(r)[0]), one.clients.items(), strict=True):
        words = ", ".join(plain(value) for key, value in run.settings.items() if is_seed(key))
        others = alone.clients.get(seed, {}) if alone is not None and one is not alone else {}
        sizes = one.samples.get(seed, {})
        for name, value in clients.items():
            gain = ranking.score.sign * (value - others[name]) if name in others else math.nan
            rows.append((name, words, value, sizes.get(name, math.nan), gain))
    return rows


def _spread(values: Sequence[float]) -> list[float]:
    """Places across the line of a method, −1 to 1, so that clients with equal values lie beside each other."""
    seen: dict[float, int] = {}
    places = []
    for value in values:
        key = round(value, 3)
        number = seen[key] = seen.get(key, -1) + 1
        places.append((number + 1) // 2 * (1 if number % 2 else -1))
    most = max(map(abs, places), default=0) or 1
    return [place / max(most, 4) for place in places]
