"""The command `fedkin theory`: algorithms at the theorems' step sizes, measured beside their bounds: table, figure.

`softmax` does it for softmax regression on a federation from a configuration, whose constants are estimated;
`quadratic` for quadratics, whose constants are exact and whose contraction can be measured.
"""

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx
from fedkin.errors import BadInput
from fedkin.experiments.config import Experiment, plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.graph.similarity import SimilarityGraph
from fedkin.paper import theory
from fedkin.paper.bounds import (
    Followed,
    Problem,
    Told,
    at_convex_step,
    at_nonconvex_step,
    floor,
    follow,
    kappa,
    nonconvex_theorem,
    softmax_problem,
    theorem,
    tightened,
)
from fedkin.paper.quadratic import quadratic_problem
from fedkin.reports.figures import ACCENT, INK, MUTED, WIDTH, replacing, save, style
from fedkin.reports.tables import Cell, Table

COLUMNS = 3
WARM = "#c1440e"
TALK_SECONDS = 3.0
BETAS = (0.9, 0.7, 0.5, 0.3, 0.1)


@dataclass(frozen=True)
class Checked:
    """What came out for one federation: text, tables, and the files written."""

    title: str
    facts: str
    tables: tuple[Table, ...]
    files: tuple[Path, ...] = ()


# -- softmax regression ------------------------------------------------------------------------------------------------


def softmax(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
) -> list[Checked]:
    """Check the bounds on every federation that a TOML file (or a dictionary, or the embedded default) describes.

    The file's step sizes and order of batches give way to the theorems': γ of the theorem, random batches. E is
    `local.steps` or, if that is 0, `local.epochs`; then with `batch_size = "all"` each step takes all samples.
    """
    listener = listener or Silent()
    if source is None:
        source = tomllib.loads((files("fedkin.paper") / "theory.toml").read_text(encoding="utf-8"))
    groups: dict[Any, list[Experiment]] = {}
    for plan in plans(source, overrides):
        _check(plan.config)
        settings = plan.config.model_dump(mode="json", exclude={"algorithm"})
        groups.setdefault(repr(settings), []).append(plan.config)
    preparation = Preparation(Path(data) if data else None, listener)
    tell = _now_and_then(listener)
    checked = []
    for number, configs in enumerate(groups.values()):
        config = configs[0]
        if config.threads:
            torch.set_num_threads(config.threads)
        problem = softmax_problem(preparation.federation(config), preparation.graph(config), config.local.l2, tell)
        algorithms = [c.algorithm.build(c.local.step_size) for c in configs]
        folder = Path(out) / config.name / (f"theory-{number + 1}" if len(groups) > 1 else "")
        split = config.partition
        how = f"by {split.group}" if split.group else f"a = {split.class_imbalance:g}, b = {split.size_imbalance:g}"
        title = f"softmax regression on {config.data.source}, {len(problem.graph)} clients, {how}"
        E = config.local.steps or config.local.epochs
        whole = not config.local.steps and config.local.batch_size == "all"
        checked.append(_beside(problem, algorithms, E, config.rounds, whole, config.seed, title, folder, tell))
    return checked


def _check(config: Experiment) -> None:
    """Raise unless the theorems speak about what the configuration describes."""
    name, knobs = config.algorithm.name, config.algorithm.model_extra or {}
    if config.model.kind != "softmax":
        raise BadInput(
            f"model.kind = '{config.model.kind}' has constants that cannot be computed: set model.kind = 'softmax'"
        )
    if name not in ("fedavg", "fedprox", "fedkin"):
        raise BadInput(f"the theorems do not speak of {name}: choose fedavg, fedprox or fedkin")
    if any(isinstance(value, Mapping) for value in knobs.values()):
        raise BadInput(f"the theorems ask for a fixed {' and '.join(knobs)}: give {name} a number, not a schedule")
    if config.device != "cpu":
        raise BadInput(f"device = '{config.device}' is not of use here, where all is float64: set device = 'cpu'")
    if config.take_part != "all":
        raise BadInput("the theorems ask that all clients take part in every round: set take_part = 'all'")
    if config.graph.weights != "adjacency":
        raise BadInput("the theorems average by the degrees of the graph: set graph.weights = 'adjacency'")
    if np.isfinite(config.local.clip):
        raise BadInput("clipped gradients are biased, which the theorems exclude: set local.clip = inf")


def _now_and_then(listener: Listener) -> Told:
    """Pass on what is being done, but not every word of it."""
    last = 0.0

    def tell(words: str) -> None:
        nonlocal last
        if time.monotonic() - last >= TALK_SECONDS:
            last = time.monotonic()
            listener.doing(words)

    return tell


def _beside(
    problem: Problem,
    algorithms: Sequence[Algorithm],
    E: int,
    rounds: int,
    whole: bool,
    seed: int,
    title: str,
    folder: Path,
    tell: Told,
) -> Checked:
    """Run, compare, draw and write."""

    def run(algorithm: Algorithm, slopes: bool) -> Followed:
        name = f"{type(algorithm).__name__} at γ = {algorithm.step_size:.2g}"

        def after(t: int) -> None:
            tell(f"{name}: round {t} of {rounds}")

        return follow(problem, algorithm, E, rounds, whole=whole, slopes=slopes, seed=seed, after=after)

    convex = [run(at_convex_step(problem, a, E), False) for a in algorithms]
    nonconvex = [run(at_nonconvex_step(problem, a, E, rounds), True) for a in algorithms]
    tables = (convex_table(convex), nonconvex_table(nonconvex))
    facts = _facts(problem, convex[0])
    written = save(bounds_figure(convex, title), folder / "bounds")
    parts = [f"# The bounds beside what was measured: {title}", facts]
    for table in tables:
        parts += [f"## {table.title}", table.markdown().rstrip("\n")]
    parts.append("![Measured gap under its bounds](bounds.png)")
    pages = {"theory.md": "\n\n".join(parts) + "\n", "convex.csv": tables[0].csv(), "nonconvex.csv": tables[1].csv()}
    return Checked(title, facts, tables, (*written, *_write(folder, pages)))


def _write(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    for name, text in pages.items():
        with replacing(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def _facts(problem: Problem, run: Followed) -> str:
    c = run.constants
    batches = "all samples in every step" if not run.variance.any() else "random batches"
    return (
        f"L = {c.L:.4g}, μ = {c.mu:.4g}, Γ = {c.Gamma:.4g}, Δ = {c.Delta:.4g}, S = {c.S:.4g}, "
        f"F* = {problem.minimum:.6g}; E = {run.steps} local steps, {batches}, {len(run.largest)} rounds"
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def convex_table(runs: Sequence[Followed]) -> Table:
    """Each run beside the strongly convex theorem and the tightened bound."""
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
        bound, tight = theorem(run), tightened(run)
        below = [name for name, b in (("theorem", bound), ("tightened", tight)) if (run.gap <= b).all()]
        verdict = "both" if len(below) == 2 else below[0] if below else "neither"
        rows.append(
            (
                _word(run.name),
                _number(run.algorithm.step_size),
                _number(run.constants.sigma2),
                _number(run.constants.G2),
                _number(_factor(run), 6),
                _number(kappa(run), 6),
                _number(run.gap[-1]),
                _number(bound[-1]),
                _number(floor(run) / run.constants.Delta),
                _number(tight[-1]),
                _word(verdict),
            )
        )
    return Table("Strongly convex theorems: F(w̄) − F*", columns, tuple(rows))


def _factor(run: Followed) -> float:
    if isinstance(run.algorithm, FedKin):
        return theory.fedkin_contraction(run.problem.L, run.problem.mu, run.beta)
    return theory.fedprox_contraction(run.problem.L, run.problem.mu, run.alpha)


def nonconvex_table(runs: Sequence[Followed]) -> Table:
    """Each run beside the nonconvex theorem, which holds for convex losses too."""
    columns = ("algorithm", "γ", "σ²", "G²", "mean ‖∇F‖²", "theorem", "with (3−β)²/4", "below")
    rows = []
    for run in runs:
        bound, measured = nonconvex_theorem(run), float(run.slope.mean())
        sharper = nonconvex_theorem(run, theory.sharper_perturbation(run.beta))
        rows.append(
            (
                _word(run.name),
                _number(run.algorithm.step_size),
                _number(run.constants.sigma2),
                _number(run.constants.G2),
                _number(measured),
                _number(bound),
                _number(sharper),
                _word("yes" if measured <= min(bound, sharper) else "no"),
            )
        )
    return Table("Nonconvex theorems: ‖∇F‖² on average over all rounds and steps", columns, tuple(rows))


def _number(value: float, digits: int = 3) -> Cell:
    return Cell(f"{value:.{digits}g}", float(value))


def _word(text: str) -> Cell:
    return Cell(text, text)


# -- figures -----------------------------------------------------------------------------------------------------------


def bounds_figure(runs: Sequence[Followed], title: str = "") -> Figure:
    """A panel for each run: the measured gap, the theorem's bound and the tightened one; then all runs side by side."""
    rows = -(-(len(runs) + 1) // COLUMNS)
    with style():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, hspace=0.04)
        figure = Figure(figsize=(WIDTH, 2.6 * rows + 0.8), layout=layout)
        panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True)
        for panel, run in zip(panels.flat, runs, strict=False):
            _draw(panel, run)
        low = min(float(run.gap[run.gap > 0].min()) for run in runs) / 2
        high = max(float(theorem(run).max()) for run in runs) * 3
        for panel in panels.flat[: len(runs)]:
            panel.set_ylim(low, high)  # one scale: the panels are there to be compared
        _draw_together(panels.flat[len(runs)], runs)
        for panel in panels.flat[len(runs) + 1 :]:
            panel.set_visible(False)
        for panel in panels[:, 0]:
            panel.set_ylabel("F(w̄) − F*")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        figure.suptitle(title)
        lines = panels.flat[0].get_lines()
        figure.legend(handles=lines[:3], loc="outside lower center", ncols=3, handlelength=2.6)
    return figure


def _draw(axes: Axes, run: Followed) -> None:
    t = np.arange(len(run.gap))
    axes.plot(t, np.where(run.gap > 0, run.gap, np.nan), color=ACCENT, label="measured")
    axes.plot(t, theorem(run), color=WARM, linestyle="--", label="the theorem's bound")
    axes.plot(t, tightened(run), color=INK, linestyle=":", label="the same proof, tightened")
    axes.axhline(run.gap[0], color=MUTED, linewidth=0.7)  # a bound above this line says nothing
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(run.name, loc="left")


def _draw_together(axes: Axes, runs: Sequence[Followed]) -> None:
    for run in runs:
        if isinstance(run.algorithm, FedKin):
            light = 0.65 * (1 - run.beta)  # the further from FedAvg, the lighter
            color: Any = tuple(part + light * (1 - part) for part in to_rgb(ACCENT))
        else:
            color = WARM if run.alpha else INK
        axes.plot(np.where(run.gap > 0, run.gap, np.nan), color=color, linewidth=1.2, label=run.name)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high < 100 * low:  # powers of ten alone would leave one label or none
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title("all, measured", loc="left")
    axes.legend(fontsize=7, handlelength=1.2, labelspacing=0.2, borderaxespad=0.1)


# -- quadratics --------------------------------------------------------------------------------------------------------

# Two pairs of clients: a flat pair and a steep one, with centres apart. Who is kin to whom decides what β does.
CURVATURES = np.array([0.1, 0.1, 1.0, 1.0])[:, None, None]
CENTRES = np.array([[-1.0], [-1.2], [1.0], [1.3]])
BEGIN = np.array([3.0])
PAIRS = {
    "kin": [(0, 1), (2, 3)],  # flat with flat, steep with steep
    "strangers": [(0, 2), (1, 3)],  # flat with steep
    "uniform": [(i, n) for i in range(4) for n in range(i)],
    "global": [],  # u = w̄
}


def pairs_graph(edges: Sequence[tuple[int, int]], clients: int = 4) -> SimilarityGraph:
    """A graph with the given edges, all of weight 1."""
    adjacency = np.zeros((clients, clients))
    for i, n in edges:
        adjacency[i, n] = adjacency[n, i] = 1.0
    return SimilarityGraph(adjacency)


def measured_factor(run: Followed, first: int = 15, last: int = 25) -> float:
    """By how much the distance to where the run ends shrinks in a round: from the lengths of its moves w̄_{t+1} − w̄_t.

    Early rounds still hold faster parts of the error; late ones have moves near the rounding of float32.
    """
    moves = np.linalg.norm(np.diff(run.models, axis=0), axis=1)
    return float((moves[last] / moves[first]) ** (1 / (last - first)))


def quadratic(out: Path | str = "results", E: int = 5, rounds: int = 80, listener: Listener | None = None) -> Checked:
    """Four clients with exact constants, under four graphs: bounds, contraction and floor as β falls."""
    tell = _now_and_then(listener or Silent())
    rows: list[tuple[Cell, ...]] = []
    drawn: list[Followed] = []
    for name, edges in PAIRS.items():
        problem = quadratic_problem(CENTRES, CURVATURES, pairs_graph(edges), BEGIN)
        algorithms: list[Algorithm] = [FedKin(beta=b) for b in BETAS]
        if not rows:  # FedAvg and FedProx see nothing of the graph but its degrees, and those are all alike here
            algorithms = [FedAvg(), FedProx(alpha=0.5), *algorithms]
        for algorithm in algorithms:
            tell(f"run {len(rows) + 1} of {2 + len(PAIRS) * len(BETAS)}")
            run = follow(problem, at_convex_step(problem, algorithm, E), E, rounds, whole=True)
            if name == "kin" and run.beta in (1.0, 0.9, 0.5, 0.1):
                drawn.append(run)
            rows.append(
                (
                    _word(name if isinstance(algorithm, FedKin) else "–"),
                    _word(run.name),
                    _number(_factor(run) ** 0.5, 4),
                    _number(kappa(run) ** 0.5, 4),
                    _number(measured_factor(run), 4),
                    _number(floor(run)),
                    _number(tightened(run)[-1]),
                    _number(run.gap[-1]),
                    _word("yes" if (run.gap <= np.minimum(theorem(run), tightened(run))).all() else "no"),
                )
            )
    columns = (
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
    table = Table("Quadratics: distance to the limit, a round, and what remains of F(w̄) − F*", columns, tuple(rows))
    title = "quadratics: a flat and a steep pair of clients"
    folder = Path(out) / "quadratic"
    facts = _facts(drawn[0].problem, drawn[0])
    written = save(bounds_figure(drawn, f"{title}, kin with kin"), folder / "bounds")
    page = (
        f"# Quadratics with constants known exactly\n\n{facts}\n\n{table.markdown()}\n![Gap under bounds](bounds.png)\n"
    )
    return Checked(
        title, facts, (table,), (*written, *_write(folder, {"theory.md": page, "quadratic.csv": table.csv()}))
    )
