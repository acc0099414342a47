"""Lanes: runs that are executed together equal the same runs executed one by one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import small_federation, tensors_of
from fedkin import run
from fedkin.algorithms import FedAvg, FedKin, FedProx, FedSGD, Round
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.engine.lanes import joined, key, parted, together
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import build_graph
from fedkin.models import MLP, Model, Softmax
from test_experiment import SMALL, Crash, crash_after, rounds

MEMBERS = [
    FedAvg(step_size=0.3),
    FedProx(step_size=0.3, alpha=0.7),
    FedKin(step_size=0.3, beta=0.9),
    FedKin(step_size=0.1, beta=Schedule(0.4, 1.0, over=2)),
]
PENALTIES = [{}, {"l2": 0.1}, {"clip": 0.2}, {"l2": 0.0, "clip": 0.5}]


def runs(model: Model, local: Local, take_part: int | None) -> list[Simulation]:
    federation = small_federation(features=40)
    graph = build_graph(federation)
    return [
        Simulation(federation, model, member, graph, graph.degrees, replace(local, **change), take_part, seed=3)  # type: ignore[arg-type]
        for member, change in zip(MEMBERS, PENALTIES, strict=True)
    ]


@pytest.mark.parametrize("model", [Softmax(40, 3), MLP(40, 3, 4)], ids=["samples", "plain"])
@pytest.mark.parametrize("take_part", [None, 3])
@pytest.mark.parametrize("local", [Local(4, 4), Local(3, 4, order="shuffled"), Local(steps=3)], ids=str)
def test_lanes_equal_single_runs(model: Model, take_part: int | None, local: Local) -> None:
    alone = runs(model, local, take_part)
    assert len({key(simulation) for simulation in alone}) == 1
    group = together(alone)
    state, states = group.start(), [simulation.start() for simulation in alone]
    for _ in range(3):
        state = group.advance(state)
        states = [simulation.advance(one) for simulation, one in zip(alone, states, strict=True)]
        # Going on from the parts, put together again, changes nothing.
        state = joined(parted(state, alone), group)
    for part, one in zip(parted(state, alone), states, strict=True):
        assert part.round == one.round == 3
        assert set(part.server) == set(one.server)
        for name, value in tensors_of(one).items():
            torch.testing.assert_close(tensors_of(part)[name], value, rtol=1e-4, atol=1e-6)


def test_a_diverging_lane_does_not_change_the_others() -> None:
    alone = runs(Softmax(40, 3), Local(4, 4, order="fixed"), None)
    wild = [replace(alone[0], algorithm=FedAvg(step_size=1e38)), *alone[1:]]
    state = together(wild).start()
    calm = together(alone).start()
    for _ in range(3):
        state, calm = together(wild).advance(state), together(alone).advance(calm)
    assert not torch.isfinite(state.model[0]).all()
    torch.testing.assert_close(state.model[1:], calm.model[1:], rtol=1e-5, atol=1e-7)


def test_which_runs_can_share_lanes() -> None:
    federation = small_federation()
    graph = build_graph(federation)
    base = Simulation(federation, Softmax(5, 3), FedAvg(), graph, graph.degrees)
    assert key(base) == key(replace(base, algorithm=FedKin(beta=0.3), local=replace(base.local, l2=1.0, clip=2.0)))
    assert key(base) != key(replace(base, algorithm=FedKin(absent="last")))
    assert key(base) != key(replace(base, local=replace(base.local, epochs=3)))
    assert key(base) != key(replace(base, seed=5))
    assert key(replace(base, algorithm=FedSGD())) == key(replace(base, algorithm=FedSGD(step_size=0.5))) != key(base)

    class Other(FedAvg):
        pass

    class Selective(FedAvg):
        def select(self, server: Any, round: Round, losses: Any) -> Any:
            return round.who[:2]

    other = replace(base, algorithm=Other())
    assert key(other) == key(replace(base, algorithm=Other(step_size=0.5))) != key(base), "its step may be another"
    assert key(replace(base, algorithm=Selective())) is None, "lanes share their clients"


GRID: dict[str, Any] = {
    **SMALL,
    "local": {**SMALL["local"], "step_size": [0.05, 1e30]},
    "algorithm": ["fedavg", {"name": "fedprox", "alpha": 1.0}, {"name": "fedkin", "beta": [0.9, 0.5]}, "fedsgd"],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = run(GRID, out=tmp_path_factory.mktemp("whole"))
    assert [r.summary["status"] for r in results].count("diverged") == 5
    assert results[0].folder is not None
    return results[0].folder.parent


@pytest.mark.parametrize("done", [1, 4, 7])
def test_a_crash_in_a_grid(done: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        crash_after(patch, done)
        with pytest.raises(Crash):
            run(GRID, out=tmp_path)
    run(GRID, out=tmp_path)
    for folder in whole.glob("*/"):
        assert rounds(tmp_path / "small" / folder.name) == rounds(folder), folder.name


@pytest.mark.parametrize("saves", [1, 5, 8, 9, 12, 15])
def test_a_crash_between_the_files_of_a_group(
    saves: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after a number of files, in the middle of a group's checkpoints or summaries."""
    from fedkin import files

    write, written = files.write_atomically, 0

    def failing(path: Path, content: bytes) -> None:
        nonlocal written
        if path.suffix == ".safetensors" or path.name == "summary.json":
            written += 1
            if written > saves:
                raise Crash
        write(path, content)

    with monkeypatch.context() as patch:
        for module in ("records", "tensor_files"):
            patch.setattr(f"fedkin.experiments.{module}.write_atomically", failing)
        with pytest.raises(Crash):
            run(GRID, out=tmp_path)
    run(GRID, out=tmp_path)
    for folder in whole.glob("*/"):
        assert rounds(tmp_path / "small" / folder.name) == rounds(folder), folder.name
        assert json.loads((folder / "summary.json").read_text())["status"] in ("finished", "diverged")


def test_an_extended_grid_keeps_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run({**SMALL, "algorithm": {"name": "fedkin", "beta": [0.9]}}, out=tmp_path)
    first = (tmp_path / "small" / "fedkin-beta=0.9" / "rounds.jsonl").read_bytes()
    run({**SMALL, "algorithm": {"name": "fedkin", "beta": [0.9, 0.5]}}, out=tmp_path)
    assert (tmp_path / "small" / "fedkin-beta=0.9" / "rounds.jsonl").read_bytes() == first
