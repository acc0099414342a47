"""Runs in comparison: in which settings they differ, which belong together, and in which order they are listed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.algorithms import ALGORITHMS
from fedkin.reports.labels import (
    MISSING,
    PROBLEM,
    comparable,
    differing,
    is_problem,
    is_seed,
    main_hyper,
    number,
    plain,
    problem_part,
    sortable,
)
from fedkin.reports.run import Run


def experiments(runs: Iterable[Run]) -> dict[Path, list[Run]]:
    """Runs by the folder of their experiment."""
    groups: dict[Path, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.folder.parent, []).append(run)
    return groups


def varying(runs: Sequence[Run]) -> list[str]:
    """Settings that are not the same in all runs."""
    return differing([run.settings for run in runs])


def shown_hyper(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """For each algorithm, the hyper-parameters in its label: its main one, and those in which its runs differ."""
    shown = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        tables = [run.hyperparameters for run in runs if run.algorithm == algorithm]
        main = main_hyper(algorithm)
        # Of an algorithm that is not in the registry, every hyper-parameter is shown.
        known = algorithm in ALGORITHMS
        others = differing(tables) if known else list(dict.fromkeys(key for table in tables for key in table))
        shown[algorithm] = tuple(dict.fromkeys(([main[0]] if main else []) + others))
    return shown


def with_differences(peers: Sequence[Run]) -> list[Run]:
    """The runs of an experiment, each with the settings in which it differs from the others."""
    unshared, shown = varying(peers), shown_hyper(peers)
    return [
        replace(
            run,
            shown=shown[run.algorithm],
            differing={key: value for key, value in run.settings.items() if key in unshared},
        )
        for run in peers
    ]


def order_of(run: Run) -> tuple[Any, ...]:
    """A sort key: FedAvg, FedProx by α, FedKin by decreasing β, others of the registry, then others by name.

    Runs of an algorithm are ordered by the distance of its main hyper-parameter from the value that makes it FedAvg.
    """
    names = list(ALGORITHMS)
    rank = names.index(run.algorithm) if run.algorithm in names else len(names)
    main, neutral = main_hyper(run.algorithm) or ("", 0.0)
    distance = abs(number(run.hyperparameters.get(main)) - neutral)
    moving = math.isnan(distance)  # a schedule, after the numbers
    return rank, run.algorithm, moving, 0.0 if moving else distance, sortable(run.hyperparameters.values())


def described(runs: Sequence[Run]) -> str:
    """The learning problem that runs share: `digits, 20 clients, 4 kinds rotated, a = 10, b = 1, softmax`.

    Of a natural partition, which has none of these numbers: `mnist, by writer, softmax`.
    """
    settings, unshared = runs[0].settings, varying(runs)
    natural = "partition.group" in unshared or settings.get("partition.group") is not None
    division = ("partition.group",) if natural else PROBLEM
    keys = [key for key in ("data.source", *division, "model.kind") if key in settings and key not in unshared]
    parts = [problem_part(key, settings[key]) for key in keys]
    if settings.get("partition.kinds") and not {"partition.kinds", "partition.differ"} & set(unshared):
        words = f"{plain(settings['partition.kinds'])} kinds {plain(settings.get('partition.differ', ''))}".strip()
        before = [key for key in ("data.source", division[0]) if key in keys]
        parts.insert(len(before), words)
    return ", ".join(parts)


def key_of(run: Run) -> tuple[object, ...]:
    """Equal for runs that differ only in their seeds."""
    settings = {key: comparable(value) for key, value in run.settings.items() if not is_seed(key)}
    return run.folder.parent, comparable(run.config["algorithm"]), tuple(sorted(settings.items()))


def problem_of(run: Run) -> tuple[object, ...]:
    """Equal for runs on the same learning problem."""
    settings = {k: comparable(v) for k, v in run.settings.items() if is_problem(k) and not is_seed(k)}
    return run.folder.parent, tuple(sorted(settings.items()))


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs that differ only in their seeds, in the order of the table."""
    groups: dict[object, list[Run]] = {}
    times: dict[object, int] = {}
    for run in runs:
        # A second run with the same seed is no second seed: it has a separate group.
        seeds = tuple(sorted((key, comparable(value)) for key, value in run.settings.items() if is_seed(key)))
        same = (key_of(run), seeds)
        times[same] = times.get(same, 0) + 1
        groups.setdefault((key_of(run), times[same]), []).append(run)
    unshared = [key for key in varying(runs) if not is_seed(key)]

    def order(group: list[Run]) -> tuple[Any, ...]:
        settings = group[0].settings
        problem = sortable(settings.get(key, MISSING) for key in unshared if is_problem(key))
        rest = sortable(settings.get(key, MISSING) for key in unshared if not is_problem(key))
        return group[0].folder.parent, problem, order_of(group[0]), rest

    return sorted(groups.values(), key=order)


def speed_up(base: float, reached: float) -> float:
    """FedAvg's rounds to the threshold over another's; NaN if either is missing or 0."""
    return base / reached if base > 0 and reached > 0 else math.nan
