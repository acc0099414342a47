"""The command `fedkin theory`: algorithms at the theorems' step sizes, with tables and a figure of gap and bounds.

`softmax_report` does it for softmax regression on a federation from a configuration, whose constants are estimated;
`quadratic_report` for quadratics, whose constants are exact and whose contraction can be measured.
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

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx
from fedkin.errors import BadInput
from fedkin.experiments.config import Experiment
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Listener, Silent
from fedkin.paper.bounds import at_convex_step, at_nonconvex_step
from fedkin.paper.problem import Notify, Problem
from fedkin.paper.quadratic import PAIRS, two_pairs
from fedkin.paper.softmax_problem import softmax_problem
from fedkin.paper.theory_figures import bounds_figure
from fedkin.paper.theory_tables import convex_table, nonconvex_table, quadratic_table
from fedkin.paper.trajectories import Trajectory, fixed_value, trajectory_of
from fedkin.reports.figures import save
from fedkin.reports.pages import write_pages
from fedkin.reports.tables import Table

NOTIFY_SECONDS = 3.0
QUADRATIC_BETAS = (0.9, 0.7, 0.5, 0.3, 0.1)


@dataclass(frozen=True)
class TheoryReport:
    """The results for one federation: text, tables, and the files written."""

    title: str
    facts: str
    tables: tuple[Table, ...]
    files: tuple[Path, ...] = ()


# -- softmax regression ------------------------------------------------------------------------------------------------


def softmax_report(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
) -> list[TheoryReport]:
    """Check the bounds on every federation that a TOML file (or a dictionary, or the embedded default) describes.

    Step size, order of batches and averaging weights are those of the theorems, not the defaults: γ of the theorem,
    random batches, the degrees of the graph; a file that sets other weights is an error. E is
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
    notify = _throttled(listener)
    reports = []
    for number, configs in enumerate(groups.values()):
        config = configs[0]
        if config.threads:
            torch.set_num_threads(config.threads)
        problem = softmax_problem(preparation.federation(config), preparation.graph(config), config.local.l2, notify)
        algorithms = [c.algorithm.build(c.local.step_size) for c in configs]
        folder = Path(out) / config.name / (f"theory-{number + 1}" if len(groups) > 1 else "")
        split = config.partition
        how = f"by {split.group}" if split.group else f"a = {split.class_imbalance:g}, b = {split.size_imbalance:g}"
        title = f"softmax regression on {config.data.source}, {len(problem.graph)} clients, {how}"
        E = config.local.steps or config.local.epochs
        whole = not config.local.steps and config.local.batch_size == "all"
        reports.append(_bounds_report(problem, algorithms, E, config.rounds, whole, config.seed, title, folder, notify))
    return reports


def _check(config: Experiment) -> None:
    """Raise unless the theorems cover what the configuration describes."""
    name, knobs = config.algorithm.name, config.algorithm.model_extra or {}
    if config.model.kind != "linear":
        raise BadInput(
            f"model.kind = '{config.model.kind}' has constants that cannot be computed: set model.kind = 'linear'"
        )
    if name not in ("fedavg", "fedprox", "fedkin"):
        raise BadInput(f"the theorems do not cover {name}: choose fedavg, fedprox or fedkin")
    if any(isinstance(value, Mapping) for value in knobs.values()):
        raise BadInput(f"the theorems assume a constant {' and '.join(knobs)}: give {name} a number, not a schedule")
    if config.device != "cpu":
        raise BadInput(f"constants are computed in float64, not on device = '{config.device}': set device = 'cpu'")
    if config.take_part != "all":
        raise BadInput("the theorems assume that all clients take part in every round: set take_part = 'all'")
    if "weights" in config.graph.model_fields_set and config.graph.weights != "adjacency":
        raise BadInput("the theorems assume averages by the degrees of the graph: set graph.weights = 'adjacency'")
    if np.isfinite(config.local.clip):
        raise BadInput("clipped gradients are biased, which the theorems exclude: set local.clip = inf")
    if config.local.optimizer != "sgd" or config.local.weight_decay:
        raise BadInput("the theorems are about plain steps: set local.optimizer = 'sgd' and local.weight_decay = 0")


def _throttled(listener: Listener) -> Notify:
    """Pass messages on to the listener, at most one every few seconds."""
    last = 0.0

    def notify(words: str) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTIFY_SECONDS:
            last = time.monotonic()
            listener.doing(words)

    return notify


def _bounds_report(
    problem: Problem,
    algorithms: Sequence[Algorithm],
    E: int,
    rounds: int,
    whole: bool,
    seed: int,
    title: str,
    folder: Path,
    notify: Notify,
) -> TheoryReport:
    """Run the algorithms at the step sizes of the theorems, and write tables and figure to the folder."""

    def run(algorithm: Algorithm, slopes: bool) -> Trajectory:
        name = f"{type(algorithm).__name__} at γ = {fixed_value(algorithm, 'step_size'):.2g}"

        def after(t: int) -> None:
            notify(f"{name}: round {t} of {rounds}")

        return trajectory_of(problem, algorithm, E, rounds, whole=whole, slopes=slopes, seed=seed, after=after)

    convex = [run(at_convex_step(problem, a, E), False) for a in algorithms]
    nonconvex = [run(at_nonconvex_step(problem, a, E, rounds), True) for a in algorithms]
    tables = (convex_table(convex), nonconvex_table(nonconvex))
    facts = _facts(problem, convex[0])
    written = save(bounds_figure(convex, title), folder / "bounds")
    parts = [f"# Bounds and measurements: {title}", facts]
    for table in tables:
        parts += [f"## {table.title}", table.markdown().rstrip("\n")]
    parts.append("![Measured gap under its bounds](bounds.png)")
    pages = {"theory.md": "\n\n".join(parts) + "\n", "convex.csv": tables[0].csv(), "nonconvex.csv": tables[1].csv()}
    return TheoryReport(title, facts, tables, (*written, *write_pages(folder, pages)))


def _facts(problem: Problem, run: Trajectory) -> str:
    c = run.constants
    batches = "all samples in every step" if not run.variance.any() else "random batches"
    return (
        f"L = {c.L:.4g}, μ = {c.mu:.4g}, Γ = {c.Gamma:.4g}, Δ = {c.Delta:.4g}, S = {c.S:.4g}, "
        f"F* = {problem.minimum:.6g}; E = {run.steps} local steps, {batches}, {len(run.largest)} rounds"
    )


# -- quadratics --------------------------------------------------------------------------------------------------------


def quadratic_report(
    out: Path | str = "results", E: int = 5, rounds: int = 80, listener: Listener | None = None
) -> TheoryReport:
    """Four clients with exact constants and four graphs: bounds, contraction and floor as β decreases."""
    notify = _throttled(listener or Silent())
    runs: list[tuple[str, Trajectory]] = []
    for name in PAIRS:
        problem = two_pairs(name)
        algorithms: list[Algorithm] = [FedKin(beta=beta) for beta in QUADRATIC_BETAS]
        if not runs:  # FedAvg and FedProx depend on the graph only by its degrees, which are the same in all four
            algorithms = [FedAvg(), FedProx(alpha=0.5), *algorithms]
        for algorithm in algorithms:
            notify(f"run {len(runs) + 1} of {2 + len(PAIRS) * len(QUADRATIC_BETAS)}")
            at_step = at_convex_step(problem, algorithm, E)
            runs.append((name, trajectory_of(problem, at_step, E, rounds, whole=True)))
    drawn = [run for name, run in runs if name == "kin" and run.beta in (1.0, 0.9, 0.5, 0.1)]
    table = quadratic_table(runs)
    title = "quadratics: a flat and a steep pair of clients"
    folder = Path(out) / "quadratic"
    facts = _facts(drawn[0].problem, drawn[0])
    written = save(bounds_figure(drawn, f"{title}, kin with kin"), folder / "bounds")
    page = f"# Quadratics with exact constants\n\n{facts}\n\n{table.markdown()}\n![Gap under bounds](bounds.png)\n"
    pages = {"theory.md": page, "quadratic.csv": table.csv()}
    return TheoryReport(title, facts, (table,), (*written, *write_pages(folder, pages)))
