"""The benchmark: that all competitors compute the same, that it counts and times rightly, and what it writes."""

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from fedkin.algorithms import FedKin
from fedkin.bench import growth as bench_growth
from fedkin.bench import loops as bench_loops
from fedkin.bench import run as bench
from fedkin.bench.loops import LOOPS, DataLoaderLoop, SliceLoop, engine
from fedkin.bench.run import Options, Spread, Times, interleaved, ratio
from fedkin.bench.works import WORKS, Work
from fedkin.cli import app
from fedkin.errors import BadInput
from fedkin.reports.pages import with_section

# Very small, yet with clients of different sizes and a last batch that is not full.
TINY = replace(WORKS["cifar-imbalanced"], clients=6, samples=30, shape=(12,), batch_size=16)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Tests run side by side: threads that wait for each other on busy cores are slow."""
    with bench.threads_set(1):
        yield


def silent(total: float = 1.0) -> bench.Meter:
    return bench.Meter(Console(quiet=True), total, total)


def difference(work: Work, loop: Callable[[Work, Any], bench_loops.Competitor], rounds: int = 1) -> float:
    """Of the loop's global model from the engine's, relative to how far the engine's has moved."""
    federation = work.federation()
    mine, theirs = engine(work, federation), loop(work, federation)
    start = mine.global_model.clone()
    assert torch.equal(start, theirs.global_model)
    for _ in range(rounds):
        mine.round()
        theirs.round()
    gap: Tensor = (theirs.global_model - mine.global_model).norm() / (mine.global_model - start).norm()
    return float(gap)


# -- all compute the same ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("work", WORKS)
def test_loops_and_engine_agree_after_a_round(work: str, loop: str) -> None:
    assert difference(replace(WORKS[work].quick(), clients=2), LOOPS[loop]) < 1e-4


@pytest.mark.parametrize("loop", LOOPS.values())
def test_they_agree_on_clients_of_different_sizes_for_several_rounds(loop: Any) -> None:
    assert len(set(TINY.federation().train.sizes)) > 3
    assert difference(TINY, loop, rounds=3) < 1e-4


def test_a_loop_that_computes_something_else_is_found_out() -> None:
    """Without the penalty, or with equal weights, the difference is far above what rounding makes of it."""

    def without_penalty(work: Work, federation: Any) -> SliceLoop:
        loop = SliceLoop(work, federation)
        loop.optimizer.param_groups[0]["weight_decay"] = 0.0
        return loop

    def equal_weights(work: Work, federation: Any) -> DataLoaderLoop:
        loop = DataLoaderLoop(work, federation)
        loop.weights = [1 / len(loop.weights)] * len(loop.weights)
        return loop

    assert difference(WORKS["mnist-softmax"].quick(), without_penalty) > 1e-3
    assert difference(TINY, without_penalty) > 1e-3
    assert difference(TINY, equal_weights) > 1e-3


# -- the works ---------------------------------------------------------------------------------------------------------


def test_works_have_the_sizes_they_should() -> None:
    sizes = {}
    for name, work in WORKS.items():
        train = replace(work, shape=(2,)).federation().train  # the number of features plays no part in it
        sizes[name] = (len(train), int(train.sizes.min()), int(train.sizes.max()), len(train.y))
    imbalanced = sizes.pop("cifar-imbalanced")
    assert sizes == {
        "mnist-softmax": (100, 600, 600, 60_000),
        "cifar-softmax": (100, 500, 500, 50_000),
        "mnist-mlp": (100, 600, 600, 60_000),
        "many-tiny": (3000, 20, 20, 60_000),
        "module": (50, 200, 200, 10_000),
    }
    assert imbalanced[0] == 100
    assert imbalanced[3] == 50_000
    # b = 1: of 100 log-normal clients the largest has many times what the smallest has
    assert imbalanced[2] > 20 * imbalanced[1]
    assert {w.features for w in WORKS.values()} == {784, 3072}


def test_the_same_data_come_every_time() -> None:
    one, other = TINY.federation().train, TINY.federation().train
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_arithmetic_by_hand() -> None:
    """E·N samples, each 2·|W|·o operations a layer: twice for the first layer, three times for the others.

    The convolutions are applied at 24×24 and 8×8 places and have 8·25 and 16·8·25 weights.
    """
    assert WORKS["mnist-softmax"].arithmetic() == 10 * 60_000 * 4 * 784 * 10
    assert WORKS["cifar-imbalanced"].arithmetic() == 10 * 50_000 * 4 * 3072 * 10
    assert WORKS["mnist-mlp"].arithmetic() == 10 * 60_000 * (4 * 784 * 128 + 6 * 128 * 10)
    module = 4 * 200 * 24 * 24 + 6 * (3200 * 8 * 8 + 256 * 10)
    assert WORKS["module"].arithmetic() == 10 * 10_000 * module


@pytest.mark.parametrize("name", ["mnist-mlp", "module"])
def test_arithmetic_is_what_pytorch_counts(name: str) -> None:
    work = WORKS[name]
    net, x = work.net(), torch.zeros(4, *work.shape)
    net(x)
    with FlopCounterMode(display=False) as counted:
        net(x).sum().backward()
    assert counted.get_total_flops() / 4 == work.arithmetic() / (10 * work.clients * work.samples)


# -- timing ------------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only the competitors move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order = 0.0, list[str]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def round(self, name: str, *seconds: float) -> Callable[[], None]:
        """A competitor whose rounds last so long, the last of them for ever."""
        left = list(seconds)

        def round() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return round


def timed(rounds: dict[str, Callable[[], None]], repeat: int) -> dict[str, Times]:
    return interleaved(rounds, Options(repeat, threads=1), lambda _: None, lambda _: None)


def test_everyone_has_a_turn_and_who_is_first_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed({"a": clock.round("a", 9.0, 1.0), "b": clock.round("b", 5.0, 2.0)}, repeat=3)
    assert "".join(clock.order) == "ab" + "ab" + "ba" + "ab"
    assert times == {"a": Times(9.0, [1.0, 1.0, 1.0]), "b": Times(5.0, [2.0, 2.0, 2.0])}


def test_short_rounds_are_timed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round of 1 s, then 0.125 s each: three of them make 0.3 s full."""
    clock = Clock(monkeypatch)
    times = timed({"a": clock.round("a", 1.0, 0.125, 0.125, 0.25, 0.375)}, repeat=2)
    assert len(clock.order) == 1 + 1 + 3 + 3
    assert times["a"] == Times(1.0, [0.25, 0.375])


def test_slow_competitors_get_fewer_turns_but_two(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed({"slow": clock.round("slow", 50.0), "fast": clock.round("fast", 1.0)}, repeat=4)
    assert times["slow"].turns == [50.0, 50.0, None, None]
    assert times["fast"].turns == [1.0] * 4


def test_ratios_are_taken_within_a_turn() -> None:
    slow, fast = Times(0.0, [2.0, 40.0, None]), Times(0.0, [1.0, 10.0, 1.0])
    assert ratio(slow, fast) == Spread(3.0, 2.0, 4.0)
    assert ratio(slow, fast.each(4)) == Spread(12.0, 8.0, 16.0)
    assert Spread(3.0, 2.0, 4.0).text() == "3 (2–4)"


def test_the_limit_is_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    product = bench.Product(size=10)
    ticks = iter([0.0, 4.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    for _ in range(3):
        product.round()
    assert product.rate == 2 * 10**3 / 2.0


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_four_lanes_that_differ_in_beta() -> None:
    runs = bench_loops.sweep(TINY, TINY.federation())
    assert isinstance(runs, bench_loops.Engine)
    for _ in range(2):
        runs.round()
    (simulation,), (state,) = runs.simulations, runs.states
    assert [member.beta for member in simulation.algorithm.members] == list(bench_loops.BETAS)  # type: ignore[attr-defined]
    ends = state.model
    assert all(not torch.equal(ends[i], ends[j]) for i in range(4) for j in range(i))


# -- growth ------------------------------------------------------------------------------------------------------------


def test_growth_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that this process holds must not count there."""
    held = np.ones(800 << 20, dtype=np.uint8)
    monkeypatch.setattr(bench_growth, "QUICK_CLIENTS", (120,))
    monkeypatch.setattr(bench_growth, "ABSENT", ("last",))
    (grown,) = bench_growth.measured(quick=True, threads=1, doing=lambda _: None)
    assert bench_growth.peak_memory() > held.nbytes
    assert 0 < grown.before <= grown.peak < held.nbytes
    assert (grown.clients, grown.absent, len(grown.rounds)) == (120, "last", bench_growth.ROUNDS)
    assert min(grown.messages, grown.graph, *grown.rounds) > 0


def test_last_models_of_all_clients_are_there_from_the_start() -> None:
    work = replace(TINY, clients=7)
    simulation = work.simulation(work.federation(), FedKin(absent="last"))
    state = bench_growth.everyone_has_sent(simulation, simulation.start())
    assert state.server["owners"].tolist() == list(range(7))
    assert torch.allclose(state.server["models"], simulation.start().model.expand(7, -1))
    assert torch.allclose(state.model, simulation.start().model)


def test_the_figure_of_growth_shows_medians_and_peaks() -> None:
    measured = bench_growth.Grown(100, "global", 1, 3 << 20, 0.1, 0.2, (1.0, 4.0, 2.0))
    drawn = bench_growth.figure([measured])
    seconds, memory = (axes.lines[0].get_xydata().tolist() for axes in drawn.axes)  # type: ignore[union-attr]
    assert (seconds, memory) == ([[100, 2.0]], [[100, 3.0]])


# -- the command -------------------------------------------------------------------------------------------------------


def test_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, "mnist-softmax", replace(WORKS["mnist-softmax"], quick_clients=2, samples=300))
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
    turns = [seconds / len(bench_loops.BETAS) for seconds in record["rounds"]["sweep"]["turns"]]
    assert record["sweep"]["low"] == pytest.approx(min(turns))
    assert record["of_limit"]["high"] == pytest.approx(record["limit"] / record["engine"]["low"])
    text = page.read_text()
    assert text.startswith("Before.\n<!-- bench speed -->")
    assert text.endswith("<!-- end speed -->\nAfter.\n")
    assert "old" not in text
    assert re.search(r"\| mnist-softmax \| [\d.e-]+ \([\d.e-]+–", text)
    assert f"Measured on {content['date']} by `fedkin bench mnist-softmax" in text


def test_threads_are_compared_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Competitors that need 3 s over the number of threads, and note how many they had."""
    clock, had = Clock(monkeypatch), list[int]()

    class Divided:
        global_model = torch.zeros(1)

        def round(self) -> None:
            had.append(torch.get_num_threads())
            clock.now += 3.0 / had[-1]

    monkeypatch.setattr(bench, "engine", lambda *_: Divided())
    monkeypatch.setattr(bench, "sweep", lambda *_: Divided())
    works = [TINY, replace(TINY, sweep=False)]
    section = bench.threads(works, Options(3, threads=2, quick=True), silent())
    assert [record["runs"] for record in section.records] == ["one run", "sweep of 4", "one run"]
    assert had == 3 * [1, 2, 1, 2, 2, 1, 1, 2]
    assert section.table.rows[0] == (TINY.name, "one run", "3 (3–3)", "1.5 (1.5–1.5)", "2 (2–2)")
    assert torch.get_num_threads() == 1
    with pytest.raises(BadInput, match="--threads 2"):
        bench.threads(works, Options(2, threads=1), silent())


def test_growth_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        bench_growth.Grown(100, "last", 1 << 20, 3 << 20, 0.1, 0.2, (1.0, 3.0, 2.0)),
        bench_growth.Grown(10_000, "last", 2 << 20, 5 << 20, 0.3, 0.4, (3.0,)),
    ]
    monkeypatch.setattr(bench_growth, "measured", lambda *_: iter(rows))
    (section,) = bench.run(
        ["growth"], Options(2, threads=1, quick=True), Console(quiet=True), figure=tmp_path / "deep" / "growth"
    )
    assert section.table.rows == (
        ("100", "last", "2 (1–3)", "3", "1", "0.1", "0.2"),
        ("10,000", "last", "3 (3–3)", "5", "2", "0.3", "0.4"),
    )
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["growth.pdf", "growth.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist-sofmax"], "did you mean 'mnist-softmax'"),
        (["mnist-softmax", "--repeat", "1"], "at least 2"),
        (["mnist-softmax", "--threads", "0"], "at least 1"),
        (["mnist-softmax", "--figure", "x"], "bench growth"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(done.exception, BadInput)
    assert message in str(done.exception)


def test_names_choose_measurements_and_works() -> None:
    assert bench.chosen([], quick=False) == (["speed"], list(WORKS.values()))
    assert bench.chosen(["module", "threads"], quick=True) == (["threads"], [WORKS["module"].quick()])


def test_a_section_is_replaced_or_added() -> None:
    page = "Words.\n<!-- bench a -->old<!-- end a -->\nMore words."
    assert with_section(page, "a", "new") == "Words.\n<!-- bench a -->\nnew\n<!-- end a -->\nMore words."
    assert with_section("Words.", "a", "new") == "Words.\n<!-- bench a -->\nnew\n<!-- end a -->\n"


def test_the_page_in_the_documentation_has_a_place_for_every_measurement() -> None:
    text = (Path(__file__).parent.parent / "docs" / "speed.md").read_text()
    for name in bench.MEASUREMENTS:
        assert text.count(f"<!-- bench {name} -->") == text.count(f"<!-- end {name} -->") == 1
    assert all(f"| `{name}` |" in text for name in WORKS)


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("work", WORKS)
def test_the_engine_equals_its_plain_path_after_three_rounds(
    work: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client at a time, plainly, is the oracle; 1e-4 of the parameters' length is allowed."""
    monkeypatch.setattr("fedkin.engine.cohorts.MUCH", 0 if compiled else math.inf)
    few = replace(WORKS[work].quick(), clients=3)
    run = few.simulation(few.federation())
    states = []
    for simulation in (run, replace(run, stacked=False)):
        state = simulation.start()
        for _ in range(3):
            state = simulation.advance(state)
        states.append(state.model)
    quick, plain = states
    assert float((quick - plain).norm() / plain.norm()) < 1e-4
    assert float((plain - run.start().model).norm() / plain.norm()) > 1e-3, "something was learnt"
