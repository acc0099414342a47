"""The matrix: the loops compute what the engine does in every combination, and the report says what was measured."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bench_tools import TINY
from fedkin.algorithms import FedAvg, Local
from fedkin.bench import command, matrix
from fedkin.bench.command import run_benchmarks
from fedkin.bench.loops import SliceLoop
from fedkin.bench.matrix import federation_of, measure_matrix, plain_differences, simulations
from fedkin.bench.matrix_figure import matrix_figure
from fedkin.bench.matrix_table import matrix_table, summary_notes
from fedkin.bench.memory import MEMORIES
from fedkin.bench.meter import Meter
from fedkin.bench.runs import as_run
from fedkin.bench.settings import AXES, RUNS, SWEEP_STEPS, Setting, part_of, settings
from fedkin.bench.timing import Options, Times
from fedkin.bench.workloads import STEP_SIZE, WORKLOADS, Workload
from fedkin.cli import app
from fedkin.engine.lanes import together
from fedkin.engine.local_work import batches_of_client
from fedkin.threads import torch_threads

QUICK = settings([], quick=True)
MLP = replace(WORKLOADS["mnist-mlp"], clients=5, samples=30, shape=(12,), batch_size=16, testing=25)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def gap(workload: Workload, rounds: int, algorithm: str | None = None) -> float:
    """Distance of the loop's model from the engine's, relative to how far the engine's has moved."""
    federation = workload.federation()
    kind, by_hand = MEMORIES[algorithm] if algorithm else (FedAvg, SliceLoop)
    loop = by_hand(workload, federation)
    with as_run([workload.simulation(federation, kind(step_size=STEP_SIZE))]) as engine:
        start = engine.global_model.clone()
        for _ in range(rounds):
            loop.round()
            engine.round()
        return float((loop.global_model - engine.global_model).norm() / (engine.global_model - start).norm())


# -- the loop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "clip", "take_part"), list(product(("fixed", "shuffled"), (None, 0.3), (None, 2)))
)  # fmt: skip
def test_the_loop_has_the_settings_of_the_engine(order: str, clip: float | None, take_part: int | None) -> None:
    """Clients of different sizes, with last batches that are not full."""
    assert gap(replace(TINY, order=order, clip=clip, take_part=take_part), rounds=3) < 1e-4


def test_each_setting_changes_what_is_computed() -> None:
    """Otherwise a loop that ignores it would agree as well. Distances are relative to the round's change."""
    ends, start = [], SliceLoop(TINY, TINY.federation()).global_model.clone()
    changed: list[dict[str, Any]] = [{}, {"order": "shuffled"}, {"clip": 0.3}, {"take_part": 2}]
    for changes in changed:
        workload = replace(TINY, **changes)
        loop = SliceLoop(workload, workload.federation())
        loop.round()
        ends.append(loop.global_model)
    for one, other in ((one, other) for k, one in enumerate(ends) for other in ends[:k]):
        assert float((one - other).norm() / (one - start).norm()) > 1e-3


def test_the_loop_shuffles_like_the_engine() -> None:
    workload = replace(TINY, order="shuffled")
    loop = SliceLoop(workload, federation := workload.federation())
    loop.number = 4
    seed = workload.simulation(federation).seed
    for client in range(workload.clients):
        x, y = loop.samples[client]
        expected = batches_of_client(workload.local, len(y), seed, 4, client)
        found = list(loop.batches(client))
        assert [batch.shape[0] for batch, _ in found] == [len(batch) for batch in expected]
        for (images, labels), places in zip(found, expected, strict=True):
            assert torch.equal(images, x[places])
            assert torch.equal(labels, y[places])


def test_the_loop_measures_what_a_run_records() -> None:
    workload = replace(MLP, order="shuffled", size_imbalance=1.0)
    federation = workload.federation()
    loop = SliceLoop(workload, federation)
    with as_run([workload.simulation(federation)]) as engine:
        loop.round()
        engine.round()
        (record,) = engine.group.going[0].done
    (train_loss, train), (test_loss, test) = loop.evaluate()
    penalty = workload.local.l2 / 2 * float(loop.global_model.double() @ loop.global_model.double())
    assert record["train_loss"] == pytest.approx(train_loss + penalty, rel=1e-5)
    assert record["test_loss"] == pytest.approx(test_loss + penalty, rel=1e-5)
    assert (record["train_accuracy"], record["test_accuracy"]) == pytest.approx((train, test))
    assert loop.net.training


@pytest.mark.parametrize("base", [TINY, MLP], ids=["softmax", "network"])
@pytest.mark.parametrize("algorithm", MEMORIES)
def test_loops_with_memory_agree_with_the_engine(algorithm: str, base: Workload) -> None:
    """Over three rounds with sampled clients, so that what was remembered matters."""
    workload = replace(base, order="shuffled", take_part=3)
    assert gap(workload, rounds=3, algorithm=algorithm) < 1e-4


def test_memory_matters() -> None:
    """SCAFFOLD is FedAvg in its first round, as all controls are zero, and not in the second."""
    ends = {}
    for name, by_hand in (("FedAvg", SliceLoop), ("SCAFFOLD", MEMORIES["SCAFFOLD"][1])):
        workload = replace(TINY, order="shuffled")
        loop = by_hand(workload, workload.federation())
        for round in range(2):
            loop.round()
            ends[name, round] = loop.global_model.clone()
    assert torch.allclose(ends["FedAvg", 0], ends["SCAFFOLD", 0], atol=1e-7)
    assert float((ends["FedAvg", 1] - ends["SCAFFOLD", 1]).norm()) > 1e-5


def test_the_personal_models_of_ditto() -> None:
    workload = replace(TINY, take_part=3)
    loop = MEMORIES["Ditto"][1](workload, federation := workload.federation())
    with as_run([workload.simulation(federation, MEMORIES["Ditto"][0](step_size=STEP_SIZE))]) as engine:
        for _ in range(2):
            loop.round()
            engine.round()
        rows = engine.group.state.memory["own"].at(np.arange(workload.clients))
    own: Any = loop
    for client, parts in enumerate(own.personal):
        assert torch.allclose(rows[client], torch.cat([part.flatten() for part in parts]), atol=1e-6)


# -- the settings ------------------------------------------------------------------------------------------------------


def test_the_matrix_has_128_cells() -> None:
    full = settings([], quick=False)
    assert len(full) * len(RUNS) == 128
    assert len({setting.title for setting in full}) == 64
    assert {(s.workload.clients, s.workload.samples, s.workload.features) for s in full} == {(100, 600, 784)}
    assert {(s.workload.batch_size, s.workload.take_part, s.workload.clip, s.workload.order) for s in full} == set(
        product((256, 32), (None, 10), (None, 10.0), ("fixed", "shuffled"))
    )
    assert {s.workload.local.epochs for s in full} == {10}


def test_imbalanced_clients_are_as_unequal_as_the_papers_digits() -> None:
    (imbalanced,) = settings(["imbalanced", "softmax", "all", "B32", "fixed", "clipped"], quick=False)
    federation = replace(imbalanced.workload, shape=(2,)).federation()  # sizes do not depend on it
    sizes = federation.train.sizes
    assert (len(sizes), sizes.sum(), federation.test.sizes.sum()) == (100, 60_000, 10_000)
    assert 20 < sizes.min() < 100
    assert 2_000 < sizes.max() < 6_000
    classes = [np.bincount(federation.train.y[federation.train.rows(i)], minlength=10).max() for i in range(100)]
    assert np.mean(np.array(classes) / sizes) > 0.5, "most samples of a client are of one class or two"


def test_words_leave_a_part() -> None:
    assert [s.title for s in settings(["softmax", "shuffled", "balanced", "all", "clipped"], quick=True)] == [
        "softmax balanced all B256 shuffled clipped",
        "softmax balanced all B32 shuffled clipped",
    ]
    assert settings(["memory"], quick=True) == []


def test_a_part_of_the_clients_has_the_same_share_of_samples_and_steps() -> None:
    """By size: 640, 320, 64, 32. Every second from the first has 704 samples and 22 steps of 1,056 and 33."""
    sizes, local = np.array([320, 32, 640, 64]), Local(epochs=1, batch_size=32)
    assert part_of(sizes, local, 2) == ([2, 3], 704 / 1056)
    unequal = settings(["imbalanced"], quick=False)[0].workload
    many = replace(unequal, shape=(2,)).federation().train.sizes
    for batch in (32, 256):
        local = Local(epochs=10, batch_size=batch)
        who, share = part_of(many, local, 5)
        steps = [local.count(int(n)) for n in many]
        assert len(who) == 20
        assert sum(steps[i] for i in who) / sum(steps) == pytest.approx(share, rel=0.1)


def test_a_part_of_a_round_leaves_the_other_clients_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, trained = SliceLoop(TINY, TINY.federation(), only=[1, 4]), list[int]()
    monkeypatch.setattr(loop, "train", trained.append)
    loop.round()
    assert trained == [1, 4]


# -- the check ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", QUICK[::7], ids=lambda setting: setting.title)
def test_fast_equals_plain(setting: Setting) -> None:
    assert max(plain_differences(replace(setting.few, clients=3), list(RUNS)).values()) < 1e-4


def test_a_wrong_engine_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(runs: Any) -> Any:
        group = together(runs)
        return replace(group, local=replace(group.local, l2=0.0)) if group.stacked else group

    monkeypatch.setattr(matrix, "together", wrong)
    assert plain_differences(TINY, ["single"])["single"] > 1e-4


def test_a_sweep_is_four_runs_of_which_the_first_is_the_loops() -> None:
    steps = [run.algorithm.step_size for run in simulations(TINY, TINY.federation(), 4)]  # type: ignore[union-attr]
    assert steps == [STEP_SIZE * factor for factor in SWEEP_STEPS]
    assert steps[0] == STEP_SIZE


def test_combinations_share_a_federation() -> None:
    one, other = (s.workload for s in settings(["balanced", "B32", "shuffled", "all", "clipped"], quick=True))
    assert one.model is not other.model
    assert federation_of(one) is federation_of(other)


# -- the report --------------------------------------------------------------------------------------------------------


def record(ratio: float, **words: str) -> dict[str, Any]:
    spread = {"median": ratio, "low": ratio, "high": ratio}
    return {
        **{axis: next(iter(of)) for axis, of in AXES.items()},
        "runs": "single",
        **words,
        "ratio": spread,
        "share": 1.0,
        "proportion": None,
        "loop_differs": None,
        "plain_differs": 1e-7,
    }


def test_table_notes_and_figure_have_the_numbers() -> None:
    cells = [record(2.0), record(8.0, order="shuffled"), record(0.5, clip="clipped", runs="sweep")]
    table = matrix_table(cells)
    assert table.columns[-4:] == ("fixed", "fixed, G = 10", "shuffled", "shuffled, G = 10")
    assert table.rows == (
        ("softmax", "balanced", "all", "256", "one run", "2.0", "—", "8.0", "—"),
        ("softmax", "balanced", "all", "256", "sweep of 4", "—", "0.5", "—", "—"),
    )
    notes = summary_notes(cells, [], 5)
    assert notes[0] == (
        "softmax: geometric mean 2.0, lowest 0.50 (balanced, all, 256, sweep of 4, fixed, G = 10), 3 cells."
    )
    (axes,) = [axes for axes in matrix_figure(cells).axes if axes.images]
    assert [text.get_text() for text in axes.texts] == ["2.0", "8.0", "0.5"]
    shown = np.asarray(axes.images[0].get_array())
    assert shown[0, 0] == pytest.approx(math.log2(2.0))
    assert shown[1, 1] == pytest.approx(math.log2(0.5))


def test_parts_and_evaluation_are_added_up() -> None:
    part, evaluation = Times(1.0, [1.0, 2.0, None]), Times(0.5, [0.25, 0.5, 1.0])
    assert part.each(0.2).then(evaluation) == Times(5.5, [5.25, 10.5, None])


def test_the_command_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(command, "save", lambda *both: drawn.append(both))
    numbers, page, figure = tmp_path / "matrix.json", tmp_path / "speed.md", tmp_path / "matrix"
    asked = ["bench", "matrix", "softmax", "imbalanced", "B32", "shuffled", "clipped"]
    files = ["--json", str(numbers), "--markdown", str(page), "--figure", str(figure)]
    done = CliRunner().invoke(app, [*asked, "--quick", "--repeat", "2", "--threads", "1", *files])
    assert done.exit_code == 0, done.output
    cells = json.loads(numbers.read_text())["matrix"]
    assert [(cell["clients"], cell["runs"]) for cell in cells] == list(product(("all", "sampled"), RUNS))
    for cell in cells:
        assert cell["plain_differs"] < 1e-4
        assert cell["ratio"]["low"] == pytest.approx(cell["loop"]["low"] / cell["engine"]["low"], rel=0.9)
        assert (cell["loop_differs"] is None) == (cell["clients"] == "all") == (cell["share"] < 1)
    assert "| softmax | imbalanced | 10 of 100 | 32 | sweep of 4 | — | — | — |" in page.read_text()
    assert [stem for _, stem in drawn] == [figure]


def test_what_is_beside_the_matrix() -> None:
    options = Options(2, threads=1, quick=True, only=("modules", "memory"))
    section = measure_matrix([], options, Meter(Console(quiet=True), 1.0, 1.0))
    assert [record["other"] for record in section.records] == [
        "module: convolutions",
        "module: convolutions with GroupNorm",
        "module: network as nn.Module",
        "SCAFFOLD: softmax",
        "SCAFFOLD: network",
        "Ditto: softmax",
        "Ditto: network",
    ]
    # Rounding moves maxima and signs of units: more so in a network of several layers that has hardly moved.
    assert max(record["loop_differs"] for record in section.records) < 1e-3
    assert section.table.columns[0] == "work"


def test_words_of_the_matrix_belong_to_it() -> None:
    done = CliRunner().invoke(app, ["bench", "growth", "shuffled"])
    assert done.exit_code == 2
    assert "no measurement or workload 'shuffled'" in done.stderr
    with pytest.raises(Exception, match="did you mean 'shuffled'"):
        run_benchmarks(["matrix", "shufled"], Options(2, threads=1), Console(quiet=True))
