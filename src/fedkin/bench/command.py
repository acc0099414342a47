"""The command `fedkin bench`: choose measurements and workloads, measure, print and write."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from rich.console import Console

from fedkin.bench.busy import busy_seconds, measure_busy
from fedkin.bench.evaluation import evaluation_seconds, measure_evaluation
from fedkin.bench.growth import growth_seconds, measure_growth
from fedkin.bench.kin_growth import kin_growth_seconds, measure_kin_growth
from fedkin.bench.matrix import matrix_seconds, measure_matrix
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult, result_page
from fedkin.bench.settings import WORDS
from fedkin.bench.speed import measure_speed, measure_threads, total_seconds
from fedkin.bench.timing import Options, Product, seconds_of
from fedkin.bench.workloads import WORKLOADS, Workload
from fedkin.errors import BadInput, nearest
from fedkin.files import as_json, write_atomically
from fedkin.reports.figures import save
from fedkin.reports.pages import machine, with_section
from fedkin.threads import torch_threads
from fedkin.types import Record

# The rate, in operations per second, for which workloads state their duration.
REFERENCE_RATE = 150e9


@dataclass(frozen=True)
class Measurement:
    """A measurement that can be chosen, and an estimate of its duration."""

    run: Callable[[Sequence[Workload], Options, Meter], BenchResult]
    seconds: Callable[[Sequence[Workload], Options], float]


MEASUREMENTS: dict[str, Measurement] = {
    "speed": Measurement(measure_speed, total_seconds),
    "threads": Measurement(measure_threads, total_seconds),
    "growth": Measurement(measure_growth, growth_seconds),
    "evaluation": Measurement(measure_evaluation, evaluation_seconds),
    "kin": Measurement(measure_kin_growth, kin_growth_seconds),
    "matrix": Measurement(measure_matrix, matrix_seconds),
    "busy": Measurement(measure_busy, busy_seconds),
}
DRAWN = {"growth", "matrix"}  # those with a figure


def chosen(names: Sequence[str], quick: bool) -> tuple[list[str], list[Workload]]:
    """The measurements and workloads among the names: by default speed, and all workloads."""
    known = [*MEASUREMENTS, *WORKLOADS, *(WORDS if "matrix" in names else ())]
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"there is no measurement or workload '{unknown[0]}'{nearest(unknown[0], known)}")
    measurements = [name for name in MEASUREMENTS if name in names] or ["speed"]
    workloads = [workload for name, workload in WORKLOADS.items() if name in names] or list(WORKLOADS.values())
    return measurements, [workload.quick() if quick else workload for workload in workloads]


def run_benchmarks(
    names: Sequence[str],
    options: Options,
    console: Console,
    *,
    json: Path | None = None,
    markdown: Path | None = None,
    figure: Path | None = None,
) -> list[BenchResult]:
    """Measure, print the tables, and write the requested files."""
    measurements, workloads = chosen(names, options.quick)
    options = replace(options, only=tuple(name for name in names if name in WORDS))
    if figure and not set(measurements) & DRAWN:
        raise BadInput(
            "the figure shows growth or the matrix, which are not measured: use fedkin bench growth --figure …"
        )
    for path in filter(None, (json, markdown, figure)):
        path.parent.mkdir(parents=True, exist_ok=True)  # fails before the measurements, not after
    facts = conditions()
    if facts["load"] > 0.5:
        console.print(f"The machine is busy (load {facts['load']:.1f}): numbers will be noisy.", highlight=False)
    with torch_threads(options.threads):
        product = Product()
        seconds_of(product.round, 3)
    seconds = sum(MEASUREMENTS[name].seconds(workloads, options) for name in measurements)
    meter = Meter(console, seconds, seconds * REFERENCE_RATE / product.rate)
    with meter:
        results = [MEASUREMENTS[name].run(workloads, options, meter) for name in measurements]
    for result in results:
        for table in result.tables:
            console.print(table)
        for note in result.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{facts['date']}, {facts['machine']}", highlight=False)
    command = f"fedkin bench {' '.join(names)}{' ' if names else ''}{options.words}"
    if json:
        content = {**facts, "command": command} | {result.name: result.records for result in results}
        write_atomically(json, as_json(content, indent=1).encode())
    if markdown:
        text = markdown.read_text() if markdown.exists() else ""
        for result in results:
            text = with_section(text, result.name, result_page(result, facts, command))
        write_atomically(markdown, text.encode())
    drawn = {result.name: result.figure for result in results if result.figure}
    for name, picture in drawn.items():
        if figure:
            save(picture, figure if len(drawn) == 1 else figure.with_name(f"{figure.name}-{name}"))
    return results


def conditions() -> Record:
    """Date, machine, and its load before the measurements."""
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }
