"""What methods cost, in all and until clients are served as well as by FedAvg; and how evenly clients are served."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.reports.answer.contenders import clients_of
from fedkin.reports.answer.ranking import FEDAVG, Ranking
from fedkin.reports.run import Run
from fedkin.reports.selection import seed_of
from fedkin.reports.tables import NEVER, Cell, Table, text_cell

MEGABYTE = 1e6
TITLE = "Global model, fairness and costs"


@dataclass(frozen=True)
class CostColumn:
    """A column of the table: the value of a run, its text, and what it means."""

    title: str
    meaning: str
    of: Callable[[Run], float]
    text: Callable[[float], str]

    def cell(self, runs: Sequence[Run]) -> Cell:
        """The mean over the runs of a method, with the number of those that have a value if not all do."""
        values = [value for run in runs if math.isfinite(value := self.of(run))]
        if not values:
            return Cell(NEVER)
        mean, missing = sum(values) / len(values), len(values) < len(runs)
        part = f" ({len(values)} of {len(runs)})" if missing else ""
        return Cell(self.text(mean) + part, mean, None, len(values) if missing else None)


def cost_columns(ranking: Ranking) -> list[CostColumn]:
    """The columns of `cost_table`, without that of the method."""
    score, base = ranking.score, ranking.first_of(FEDAVG)
    pooled = {run.folder for one in ranking.references for run in one.runs}  # nothing is sent there

    def megabytes(run: Run, rounds: float, *ways: str) -> float:
        return math.nan if run.folder in pooled else sum(total(run, way, rounds) for way in ways) / MEGABYTE

    def needed(run: Run) -> float:
        return math.nan if base is None else rounds_to(run, base.values.get(seed_of(run), math.nan))

    down, up, every = "bytes_down", "bytes_up", math.inf
    reached = f"until clients have the {score.name} that FedAvg's have at the end, with the same seed; {NEVER}: never"
    of_client = "of a client that is sampled in every round"
    to_fedavg = [
        CostColumn(f"rounds to FedAvg's {score.name}", f"number of rounds {reached}", needed, "{:.3g}".format),
        CostColumn("MB to it", f"megabytes, both directions, {of_client}, {reached}",
                   lambda run: megabytes(run, needed(run), down, up), "{:.3g}".format),
        CostColumn("seconds to it", f"of computation, {reached}", lambda run: total(run, "seconds", needed(run)),
                   "{:.1f}".format),
    ]  # fmt: skip
    return [
        CostColumn("global model", f"{score.name} of the one global model on everybody's test samples", score.common,
                   score.text),
        CostColumn("spread", f"standard deviation over clients of the {score.name} of the models they use",
                   spread_over_clients, score.text),
        *(to_fedavg if base is not None else []),
        CostColumn("rounds", "rounds of communication", lambda run: float(len(run.series("round"))), "{:.4g}".format),
        CostColumn("MB down", f"megabytes from the server {of_client}", lambda run: megabytes(run, every, down),
                   "{:.3g}".format),
        CostColumn("MB up", f"megabytes to the server {of_client}", lambda run: megabytes(run, every, up),
                   "{:.3g}".format),
        CostColumn("seconds", "of computation, on the machine of the runs", lambda run: run.seconds, "{:.1f}".format),
    ]  # fmt: skip


def cost_table(ranking: Ranking) -> Table:
    """One row for each method: its global model, fairness, and costs, as means over seeds."""
    columns = cost_columns(ranking)
    rows = [
        (text_cell(one.label), *(column.cell(one.runs) for column in columns))
        for one in (*ranking.order, *ranking.references)
    ]
    return Table(TITLE, ("method", *(column.title for column in columns)), tuple(rows))


def cost_notes(ranking: Ranking) -> str:
    """What the table shows, as a paragraph."""
    name = ranking.score.name
    sentences = [
        f"Means over seeds. The global model is tested on everybody's samples; spread is the standard deviation over "
        f"clients of the {name} of the models they use."
    ]
    if ranking.first_of(FEDAVG) is not None:
        sentences.append(
            f"FedAvg's {name} is that which its clients have at the end, with the same seed: {NEVER} is a method that "
            "never reaches it, (4 of 5) the number of seeds in which it is reached."
        )
    return " ".join([*sentences, "MB are of a client that is sampled in every round."])


def spread_over_clients(run: Run) -> float:
    """The standard deviation over clients of the main measure of their models on their own testing samples."""
    values = list(clients_of(run)[0].values())
    return float(np.std(values)) if values else math.nan


def rounds_to(run: Run, goal: float) -> float:
    """The number of rounds after which the models that clients use have this score; NaN if they never do."""
    last = run.measure.rounds_to(goal, run.series(run.measure.name))
    return math.nan if last is None else float(last + 1)


def total(run: Run, quantity: str, rounds: float) -> float:
    """The sum of a quantity over the first rounds; NaN for NaN rounds."""
    if math.isnan(rounds):
        return math.nan
    return float(run.series(quantity)[: None if math.isinf(rounds) else int(rounds)].sum())
