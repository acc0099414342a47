"""Tables of the theory report: measured quantities and their bounds."""

from collections.abc import Sequence

import numpy as np

from fedkin.algorithms import FedKin
from fedkin.paper import theory
from fedkin.paper.bounds import convex_bound, kappa, nonconvex_bound, theorem_factor, theorem_floor, tightened_bound
from fedkin.paper.trajectories import Trajectory
from fedkin.reports.tables import Cell, Table, text_cell


def convex_table(runs: Sequence[Trajectory]) -> Table:
    """Each run with the bound of the strongly convex theorem and the tightened bound."""
    columns = (
        "algorithm",
        "γ",
        "σ²",
        "G²",
        "factor, theorem",
        "κ, lemma",
        "gap, measured",
        "theorem",
        "its floor/Δ",
        "tightened",
        "below",
    )
    rows = []
    for run in runs:
        bound, tight = convex_bound(run), tightened_bound(run)
        below = [name for name, b in (("theorem", bound), ("tightened", tight)) if (run.gap <= b).all()]
        verdict = "both" if len(below) == 2 else below[0] if below else "neither"
        rows.append(
            (
                text_cell(run.name),
                significant(run.gamma),
                significant(run.constants.sigma2),
                significant(run.constants.G2),
                significant(theorem_factor(run), 6),
                significant(kappa(run), 6),
                significant(run.gap[-1]),
                significant(bound[-1]),
                significant(theorem_floor(run) / run.constants.Delta),
                significant(tight[-1]),
                text_cell(verdict),
            )
        )
    return Table("Strongly convex theorems: F(w̄) − F*", columns, tuple(rows))


def nonconvex_table(runs: Sequence[Trajectory]) -> Table:
    """Each run with the bound of the nonconvex theorem, which holds for convex losses too."""
    columns = ("algorithm", "γ", "σ²", "G²", "mean ‖∇F‖²", "theorem", "with (3−β)²/4", "below")
    rows = []
    for run in runs:
        bound, measured = nonconvex_bound(run), float(run.slope.mean())
        sharper = nonconvex_bound(run, theory.sharper_perturbation(run.beta))
        rows.append(
            (
                text_cell(run.name),
                significant(run.gamma),
                significant(run.constants.sigma2),
                significant(run.constants.G2),
                significant(measured),
                significant(bound),
                significant(sharper),
                text_cell("yes" if measured <= min(bound, sharper) else "no"),
            )
        )
    return Table("Nonconvex theorems: ‖∇F‖² on average over all rounds and steps", columns, tuple(rows))


QUADRATIC_COLUMNS = (
    "graph",
    "algorithm",
    "√ factor, theorem",
    "√κ, lemma",
    "factor, measured",
    "floor, theorem",
    "tightened, at the end",
    "gap, at the end",
    "below",
)


def quadratic_table(runs: Sequence[tuple[str, Trajectory]]) -> Table:
    """Runs on quadratics, each with the name of its graph: contraction and floor, bounded and measured."""
    rows = []
    for graph, run in runs:
        below = (run.gap <= np.minimum(convex_bound(run), tightened_bound(run))).all()
        rows.append(
            (
                text_cell(graph if isinstance(run.algorithm, FedKin) else "–"),
                text_cell(run.name),
                significant(theorem_factor(run) ** 0.5, 4),
                significant(kappa(run) ** 0.5, 4),
                significant(run.contraction(), 4),
                significant(theorem_floor(run)),
                significant(tightened_bound(run)[-1]),
                significant(run.gap[-1]),
                text_cell("yes" if below else "no"),
            )
        )
    title = "Quadratics: contraction of the distance to the limit per round, and the remaining F(w̄) − F*"
    return Table(title, QUADRATIC_COLUMNS, tuple(rows))


def significant(value: float, digits: int = 3) -> Cell:
    """A number rounded to so many significant digits."""
    return Cell(f"{value:.{digits}g}", float(value))
