"""The command `fedkin bench`: measurements of threads and growth, tables, pages and figures."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bench_tools import TINY, Clock
from fedkin.algorithms import FedKin
from fedkin.bench import command, evaluation, growth, speed
from fedkin.bench.command import MEASUREMENTS, chosen, run_benchmarks
from fedkin.bench.evaluation import evaluation_seconds, measure_evaluation
from fedkin.bench.growth import growth_figure, growth_records
from fedkin.bench.growth_process import ROUNDS, GrowthRecord, peak_memory, with_all_models
from fedkin.bench.loops import LOOPS, SWEEP_BETAS
from fedkin.bench.meter import Meter
from fedkin.bench.speed import measure_threads
from fedkin.bench.timing import Options
from fedkin.bench.workloads import WORKLOADS
from fedkin.cli import app
from fedkin.errors import BadInput
from fedkin.reports.pages import with_section
from fedkin.threads import torch_threads


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Tests run side by side: threads that wait for each other on busy cores are slow."""
    with torch_threads(1):
        yield


def silent(total: float = 1.0) -> Meter:
    return Meter(Console(quiet=True), total, total)


# -- growth ------------------------------------------------------------------------------------------------------------


def test_growth_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that this process holds must not count there."""
    held = np.ones(800 << 20, dtype=np.uint8)
    monkeypatch.setattr(growth, "QUICK_COUNTS", (120,))
    monkeypatch.setattr(growth, "ABSENT", ("last",))
    (grown,) = growth_records(quick=True, threads=1, notify=lambda _: None)
    assert peak_memory() > held.nbytes
    assert 0 < grown.before <= grown.peak < held.nbytes
    assert (grown.clients, grown.absent, len(grown.rounds)) == (120, "last", ROUNDS)
    assert min(grown.messages, grown.graph, *grown.rounds) > 0


def test_last_models_of_all_clients_are_there_from_the_start() -> None:
    workload = replace(TINY, clients=7)
    simulation = workload.simulation(workload.federation(), FedKin(absent="last"))
    state = with_all_models(simulation, simulation.start())
    assert state.server["models"].owners.tolist() == list(range(7))
    assert torch.allclose(state.server["models"].values, simulation.start().model.expand(7, -1))
    assert torch.allclose(state.model, simulation.start().model)


def test_the_figure_of_growth_shows_medians_and_peaks() -> None:
    measured = GrowthRecord(100, "global", 1, 3 << 20, 0.1, 0.2, (1.0, 4.0, 2.0))
    drawn = growth_figure([measured])
    seconds, memory = (axes.lines[0].get_xydata().tolist() for axes in drawn.axes)  # type: ignore[union-attr]
    assert (seconds, memory) == ([[100, 2.0]], [[100, 3.0]])


# -- the command -------------------------------------------------------------------------------------------------------


def test_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "mnist-softmax", replace(WORKLOADS["mnist-softmax"], quick_clients=2, samples=300))
    page, numbers = tmp_path / "new" / "speed.md", tmp_path / "new" / "speed.json"
    page.parent.mkdir()
    page.write_text("Before.\n<!-- bench speed -->\nold\n<!-- end speed -->\nAfter.\n")
    asked = ["bench", "mnist-softmax", "--quick", "--repeat", "2", "--threads", "1"]
    done = CliRunner().invoke(app, [*asked, "--json", str(numbers), "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    assert "This takes less than a minute" in done.output
    content = json.loads(numbers.read_text())
    (record,) = content["speed"]
    assert content["command"] == "fedkin bench mnist-softmax --repeat 2 --threads 1 --quick"
    assert record["operations"] == 10 * 2 * 300 * 4 * 784 * 10
    assert set(record["rounds"]) == {"engine", "loop", "slices", "sweep"}
    assert max(record["difference"].values()) < 1e-4
    for name in LOOPS:  # ratios are those of the turns that are written too
        slow, fast = (record["rounds"][who]["turns"] for who in (name, "engine"))
        assert record["ratios"][name]["low"] == pytest.approx(min(s / f for s, f in zip(slow, fast, strict=True)))
    turns = [seconds / len(SWEEP_BETAS) for seconds in record["rounds"]["sweep"]["turns"]]
    assert record["sweep"]["low"] == pytest.approx(min(turns))
    assert record["of_limit"]["high"] == pytest.approx(record["limit"] / record["engine"]["low"])
    text = page.read_text()
    assert text.startswith("Before.\n<!-- bench speed -->")
    assert text.endswith("<!-- end speed -->\nAfter.\n")
    assert "old" not in text
    assert re.search(r"\| mnist-softmax \| [\d.e-]+ \([\d.e-]+–", text)
    assert f"Measured on {content['date']} by `fedkin bench mnist-softmax" in text


def test_evaluation_of_the_engine_and_of_a_plain_loop_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "QUICK_EVALUATED", 100)
    workloads = [WORKLOADS[name] for name in ("mnist-mlp", "many-tiny", "groupnorm")]
    options = Options(2, threads=1, quick=True)
    section = measure_evaluation(workloads, options, silent())
    assert [record["workload"] for record in section.records] == ["mnist-mlp", "groupnorm"], "one of each model"
    for record in section.records:
        assert record["samples"] == 100
        assert record["difference"] < 1e-5
        assert min(record["engine"]["low"], record["loop"]["low"]) > 0
    assert evaluation_seconds(workloads, options) < evaluation_seconds(workloads, replace(options, quick=False))


def test_threads_are_compared_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Competitors that need 3 s over the number of threads, and note how many they had."""
    clock, had = Clock(monkeypatch), list[int]()

    class Divided:
        global_model = torch.zeros(1)

        def round(self) -> None:
            had.append(torch.get_num_threads())
            clock.now += 3.0 / had[-1]

    monkeypatch.setattr(speed, "engine_run", lambda *_: Divided())
    monkeypatch.setattr(speed, "engine_sweep", lambda *_: Divided())
    workloads = [TINY, replace(TINY, sweep=False)]
    section = measure_threads(workloads, Options(3, threads=2, quick=True), silent())
    assert [record["runs"] for record in section.records] == ["one run", "sweep of 4", "one run"]
    assert had == 3 * [1, 2, 1, 2, 2, 1, 1, 2]
    assert section.table.rows[0] == (TINY.name, "one run", "3 (3–3)", "1.5 (1.5–1.5)", "2 (2–2)")
    assert torch.get_num_threads() == 1
    with pytest.raises(BadInput, match="--threads 2"):
        measure_threads(workloads, Options(2, threads=1), silent())


def test_growth_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        GrowthRecord(100, "last", 1 << 20, 3 << 20, 0.1, 0.2, (1.0, 3.0, 2.0)),
        GrowthRecord(10_000, "last", 2 << 20, 5 << 20, 0.3, 0.4, (3.0,)),
    ]
    monkeypatch.setattr(growth, "growth_records", lambda *_: iter(rows))
    (section,) = run_benchmarks(
        ["growth"], Options(2, threads=1, quick=True), Console(quiet=True), figure=tmp_path / "deep" / "growth"
    )
    assert section.table.rows == (
        ("100", "last", "2 (1–3)", "3", "1", "0.1", "0.2"),
        ("10,000", "last", "3 (3–3)", "5", "2", "0.3", "0.4"),
    )
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["growth.pdf", "growth.png"]


def test_kin_are_found_among_many_clients() -> None:
    """In a process of its own; most of the kin are of one kind, of 20 with five clients each."""
    (section,) = run_benchmarks(["kin"], Options(2, threads=1, quick=True), Console(quiet=True))
    (record,) = section.records
    assert record["clients"] == 100
    assert (len(record["rounds"]), len(record["compared"])) == (2, 6)
    assert record["peak"] > record["before"] > 0
    assert min(record["first"], record["search"], *record["rounds"], *record["compared"]) > 0
    assert record["alike"] > 0.5, "0.04 by chance"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist-sofmax"], "did you mean 'mnist-softmax'"),
        (["mnist-softmax", "--repeat", "1"], "at least 2"),
        (["mnist-softmax", "--threads", "0"], "at least 1"),
        (["mnist-softmax", "--figure", "x"], "bench growth"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: Any) -> float:
        raise AssertionError("something was measured")

    monkeypatch.setattr(command, "seconds_of", measured)  # what every benchmark begins with
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("fedkin: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_names_choose_measurements_and_workloads() -> None:
    assert chosen([], quick=False) == (["speed"], list(WORKLOADS.values()))
    assert chosen(["module", "threads"], quick=True) == (["threads"], [WORKLOADS["module"].quick()])


def test_a_section_is_replaced_or_added() -> None:
    page = "Words.\n<!-- bench a -->old<!-- end a -->\nMore words."
    assert with_section(page, "a", "new") == "Words.\n<!-- bench a -->\nnew\n<!-- end a -->\nMore words."
    assert with_section("Words.", "a", "new") == "Words.\n<!-- bench a -->\nnew\n<!-- end a -->\n"


def test_the_page_in_the_documentation_has_a_place_for_every_measurement() -> None:
    text = (Path(__file__).parent.parent / "docs" / "speed.md").read_text()
    for name in MEASUREMENTS:
        assert text.count(f"<!-- bench {name} -->") == text.count(f"<!-- end {name} -->") == 1
    assert all(f"| `{name}` |" in text for name in WORKLOADS)
