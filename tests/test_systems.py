"""The related systems, against explicit loops in float64: alone, as lanes, resumed and on Flower."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from conftest import tensors_of
from fedkin.algorithms import (
    ALGORITHMS,
    APFL,
    CFL,
    IFCA,
    L2GD,
    MOCHA,
    MRMTL,
    SCAFFOLD,
    Algorithm,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAMP,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedEM,
    FedNova,
    FedU,
    FedYogi,
    Local,
    PerFedAvg,
    PFedMe,
    PowerOfChoice,
    label_of,
)
from fedkin.algorithms.lanes import lane_key
from fedkin.algorithms.multitask import bipartition
from fedkin.engine.lanes import joined, parted, together
from fedkin.engine.own import models_of
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.experiments.progress import Silent
from fedkin.experiments.state_files import state_of, state_tensors
from fedkin.graph.similarity import SimilarityGraph, build_graph
from loops import CLIENTS, DittoLoop, IFCALoop, ScaffoldLoop, assert_loop, federation, played, simulation
from system_loops import (
    AdagradLoop,
    AdamLoop,
    APFLLoop,
    CFLLoop,
    FedAMPLoop,
    FedAvgMLoop,
    FedDynLoop,
    FedEMLoop,
    FedNovaLoop,
    FedULoop,
    L2GDLoop,
    MOCHALoop,
    MRMTLLoop,
    PerFedAvgLoop,
    PFedMeLoop,
    PowerLoop,
    YogiLoop,
)

ROUNDS, SEED = 3, 13  # with which L2GD has local steps, an average, and local steps again
# Three runs of each system that can be lanes together, and the loop.
SYSTEMS: dict[str, tuple[list[Algorithm], type[Any]]] = {
    "fedavgm": ([FedAvgM(step_size=g, server_momentum=m, server_step=s)
                 for g, m, s in ((0.2, 0.5, 0.7), (0.1, 0.9, 1.0), (0.2, 0.0, 0.3))], FedAvgMLoop),
    "fedadagrad": ([FedAdagrad(step_size=0.2, server_step=s, tau=t)
                    for s, t in ((0.05, 0.01), (0.01, 0.01), (0.05, 0.1))], AdagradLoop),
    "fedadam": ([FedAdam(step_size=0.2, server_step=0.05, tau=0.01, beta1=b, beta2=c)
                 for b, c in ((0.5, 0.75), (0.0, 0.75), (0.5, 0.5))], AdamLoop),
    "fedyogi": ([FedYogi(step_size=0.2, server_step=0.05, tau=0.01, beta1=b, beta2=c)
                 for b, c in ((0.5, 0.75), (0.0, 0.75), (0.5, 0.5))], YogiLoop),
    "scaffold": ([SCAFFOLD(step_size=g, server_step=s) for g, s in ((0.2, 0.7), (0.1, 1.0), (0.2, 1.0))], ScaffoldLoop),
    "fednova": ([FedNova(step_size=g) for g in (0.2, 0.1, 0.05)], FedNovaLoop),
    "feddyn": ([FedDyn(step_size=g, alpha=a) for g, a in ((0.2, 0.5), (0.1, 0.5), (0.2, 1.0))], FedDynLoop),
    "ditto": ([Ditto(step_size=g, pull=p) for g, p in ((0.2, 0.5), (0.1, 0.5), (0.1, 0.0))], DittoLoop),
    "apfl": ([APFL(step_size=g, share=a) for g, a in ((0.2, 0.5), (0.1, 0.5), (0.2, 0.1))], APFLLoop),
    "apfl adaptive": ([APFL(step_size=g, share=a, adaptive=True) for g, a in ((0.2, 0.5), (0.1, 0.5), (0.2, 0.1))],
                      APFLLoop),
    "mrmtl": ([MRMTL(step_size=g, pull=p) for g, p in ((0.2, 0.5), (0.1, 0.5), (0.1, 0.0))], MRMTLLoop),
    "ifca warm": ([IFCA(step_size=g, groups=2, spread=s, warm=2) for g, s in ((0.2, 0.1), (0.1, 0.1), (0.2, 0.2))],
                  IFCALoop),
    "l2gd": ([L2GD(step_size=g, pull=p, every=2) for g, p in ((0.1, 1.0), (0.05, 1.0), (0.1, 3.0))], L2GDLoop),
    "pfedme": ([PFedMe(step_size=g, pull=p, inner_step=0.1, inner_steps=3, server_step=b)
                for g, p, b in ((0.05, 2.0, 0.7), (0.1, 2.0, 1.0), (0.05, 5.0, 1.0))], PFedMeLoop),
    "pfedme aggregated": ([PFedMe(step_size=g, pull=2.0, inner_step=0.1, inner_steps=2, aggregated=3)
                           for g in (0.05, 0.1, 0.02)], PFedMeLoop),
    "pfedme y": ([PFedMe(step_size=g, pull=2.0, inner_step=0.1, uses="y") for g in (0.05, 0.1, 0.02)], PFedMeLoop),
    "perfedavg": ([PerFedAvg(step_size=g, inner_step=a) for g, a in ((0.2, 0.3), (0.1, 0.3), (0.2, 0.1))],
                  PerFedAvgLoop),
    "perfedavg hf": ([PerFedAvg(step_size=g, inner_step=a, variant="hf", delta=0.5)
                      for g, a in ((0.1, 0.05), (0.05, 0.05), (0.1, 0.02))], PerFedAvgLoop),
    "perfedavg separate": ([PerFedAvg(step_size=g, inner_step=a, variant="hf", delta=0.5, separate=True)
                            for g, a in ((0.1, 0.05), (0.05, 0.05), (0.1, 0.02))], PerFedAvgLoop),
    "fedu": ([FedU(step_size=g, pull=p) for g, p in ((0.2, 0.5), (0.1, 0.5), (0.2, 0.1))], FedULoop),
    "mocha": ([MOCHA(step_size=0.1, pull=p, ridge=r) for p, r in ((0.05, 0.1), (0.1, 0.1), (0.05, 0.5))], MOCHALoop),
    "fedamp": ([FedAMP(step_size=0.2, pull=0.5, share=a, sigma=s) for a, s in ((0.5, 1.0), (1.0, 1.0), (0.5, 0.1))],
               FedAMPLoop),
    "cfl": ([CFL(step_size=0.2, groups=4, eps1=e, eps2=f) for e, f in ((9.0, 0.0), (0.0, 0.0), (9.0, 0.8))], CFLLoop),
    "fedem": ([FedEM(step_size=g, components=3, spread=s) for g, s in ((0.2, 0.3), (0.1, 0.3), (0.2, 0.5))], FedEMLoop),
}  # fmt: skip
SELECTING = {
    "powerofchoice": PowerOfChoice(step_size=0.2, candidates=9),
    "powerofchoice stale": PowerOfChoice(step_size=0.2, candidates=9, losses="stale"),
}
by_system = pytest.mark.parametrize("system", SYSTEMS)


def prepared(algorithm: Algorithm, features: int = 5, take_part: int | None = 5, **other: Any) -> Simulation:
    """Twenty clients of different sizes, of which five are sampled, on the graph of their data."""
    run = simulation(algorithm, features, take_part, **{"seed": SEED, **other})
    return replace(run, graph=graph_of(features))


@cache
def graph_of(features: int) -> SimilarityGraph:
    return build_graph(federation(features))


def assert_system(run: Simulation, state: State, loop: Any) -> None:
    """The state of server and clients, and the models that clients use."""
    reference = loop(run)
    assert_loop(state, reference.rounds(ROUNDS))
    if (uses := getattr(reference, "uses", lambda: None)()) is not None:
        ((_, models),) = models_of(run, state)
        assert np.linalg.norm(models[0].double().numpy() - uses) < 1e-6 * np.linalg.norm(uses)


@by_system
@pytest.mark.parametrize(("features", "take_part"), [(5, 5), (40, None)], ids=["sampled", "all"])
def test_a_run_alone(system: str, features: int, take_part: int | None) -> None:
    """Steps that are linear combinations are computed in the fast spaces."""
    members, loop = SYSTEMS[system]
    run = prepared(members[0], features, take_part)
    state = played(run, ROUNDS)
    assert ("plain" in state.spaces) == (system in ("apfl adaptive", "perfedavg separate"))
    assert_system(run, state, loop)


@by_system
def test_lanes(system: str) -> None:
    members, loop = SYSTEMS[system]
    alone = [prepared(member, 40) for member in members]
    assert len({lane_key(member) for member in members}) == 1
    group = together(alone)
    state = joined(parted(played(group, 2), alone), group)  # taken apart and put together on the way
    for _ in range(ROUNDS - 2):
        state = group.advance(state)
    for run, part in zip(alone, parted(state, alone), strict=True):
        assert_system(run, part, loop)


@pytest.mark.parametrize("system", SELECTING)
@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
def test_selection(system: str, features: int) -> None:
    run = prepared(SELECTING[system], features)
    assert lane_key(SELECTING[system]) is None
    assert_system(run, played(run, ROUNDS), PowerLoop)


def test_a_sweep_of_selecting_runs_goes_one_after_another(tmp_path: Path) -> None:
    """With a line that says so; other runs are lanes as usual."""
    said: list[str] = []

    class Heard(Silent):
        def warn(self, name: str, sentence: str) -> None:
            said.append(f"{name}: {sentence}")

        def together(self, names: Sequence[str]) -> None:
            said.append(str(len(names)))

    settings = {
        "rounds": 1,
        "take_part": 2,
        "partition": {"clients": 4, "samples": 20},
        "local": {"epochs": 1, "step_size": [0.05, 0.1]},
        "algorithm": ["fedavg", "powerofchoice"],
    }
    fedkin.run(settings, out=tmp_path, listener=Heard())
    first, *groups = said
    assert first.startswith("powerofchoice")
    assert first.endswith("2 runs, of which this is the first, select clients of their own, and go one after another")
    assert sorted(groups) == ["1", "1", "2"]


@pytest.mark.parametrize("system", [*SYSTEMS, *SELECTING])
def test_a_resumed_run_equals_an_uninterrupted_one(system: str) -> None:
    algorithm = SYSTEMS[system][0][0] if system in SYSTEMS else SELECTING[system]
    whole = played(prepared(algorithm), ROUNDS)
    half = played(prepared(algorithm), 2)
    run, state = prepared(algorithm), state_of(state_tensors(half), 2)
    for _ in range(ROUNDS - 2):
        state = run.advance(state)
    assert tensors_of(state).keys() == tensors_of(whole).keys()
    for name, value in tensors_of(whole).items():
        assert torch.equal(tensors_of(state)[name], value), name


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.neutral])
@pytest.mark.parametrize("stacked", [True, False])
def test_the_neutral_setting_is_fedavg_to_the_bit(name: str, stacked: bool) -> None:
    """Both the global model and the models that clients use."""
    algorithm = ALGORITHMS[name](step_size=0.2, **ALGORITHMS[name].neutral)
    run = prepared(algorithm, stacked=stacked)
    state, average = played(run), played(prepared(FedAvg(step_size=0.2), stacked=stacked))
    assert torch.equal(state.model, average.model)
    for _, models in models_of(run, state):
        assert torch.equal(models[0], average.model.expand_as(models[0]))


def test_what_is_fedavg_to_the_bit_at_times() -> None:
    """SCAFFOLD while all controls are zero; FedNova with as many steps everywhere; power-of-choice of all clients."""
    average = FedAvg(step_size=0.2)
    assert torch.equal(*(played(prepared(a), 1).model for a in (SCAFFOLD(step_size=0.2), average)))
    same = Local(steps=3, l2=0.01)
    assert torch.equal(*(played(prepared(a, local=same)).model for a in (FedNova(step_size=0.2), average)))
    assert torch.equal(*(played(prepared(a, take_part=None)).model for a in (PowerOfChoice(step_size=0.2), average)))


def test_every_field_changes_the_result() -> None:
    """Beside those in which the lanes above differ."""
    for one, other in (
        (PFedMe(inner_steps=2), PFedMe(inner_steps=3)),
        (PFedMe(inner_step=0.1), PFedMe(inner_step=0.2)),
        (L2GD(every=2), L2GD(every=3)),
        (PowerOfChoice(candidates=6), PowerOfChoice(candidates=15)),
        (CFL(eps1=9.0, eps2=0.0, groups=2), CFL(eps1=9.0, eps2=0.0, groups=3)),
        (FedAMP(pull=0.0, step_size=0.2), FedAMP(pull=1.0, step_size=0.2)),
        (FedAdam(tau=0.01), FedAdam(tau=0.1)),
    ):
        states = [tensors_of(played(prepared(a), ROUNDS)) for a in (one, other)]
        assert any(
            value.shape != states[1][name].shape or not torch.equal(value, states[1][name])
            for name, value in states[0].items()
        ), one


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (FedAvgM, {"server_momentum": 1.0}, "server_momentum = 1 is out of range: it must be at least 0 and below 1"),
        (FedAdam, {"beta2": 1.0}, "beta2 = 1 is out of range"),
        (FedAdagrad, {"tau": 0.0}, "tau = 0 is out of range: it must be above 0"),
        (FedYogi, {"server_step": 0.0}, "server_step = 0 is out of range"),
        (FedDyn, {"alpha": 0.0}, "alpha = 0 is out of range"),
        (PowerOfChoice, {"candidates": -1}, "candidates = -1 is out of range"),
        (PowerOfChoice, {"losses": "old"}, "unknown losses 'old': choose exact or stale"),
        (Ditto, {"pull": -1.0}, "pull = -1 is out of range"),
        (IFCA, {"warm": -1}, "warm = -1 is out of range"),
        (MRMTL, {"pull": -1.0}, "pull = -1 is out of range"),
        (APFL, {"share": 1.5}, "share = 1.5 is out of range"),
        (L2GD, {"every": 1}, "every = 1 is out of range"),
        (PFedMe, {"inner_steps": 0}, "inner_steps = 0 is out of range"),
        (PerFedAvg, {"variant": "so"}, "unknown variant 'so': choose fo or hf"),
        (MOCHA, {"ridge": 0.0}, "ridge = 0 is out of range"),
        (FedAMP, {"sigma": 0.0}, "sigma = 0 is out of range"),
        (CFL, {"groups": 0}, "groups = 0 is out of range"),
        (FedEM, {"components": 0}, "components = 0 is out of range"),
        (FedEM, {"spread": 0.0}, "spread = 0 is out of range"),
    ],
)
def test_ranges(kind: type[Algorithm], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as error:
        kind(**settings)
    assert says in str(error.value)


def test_labels() -> None:
    names = ("pfedme", "perfedavg", "powerofchoice", "scaffold", "fedyogi")
    assert [label_of(name) for name in names] == ["pFedMe", "Per-FedAvg", "Power-of-Choice", "SCAFFOLD", "FedYogi"]


def test_adaptive_shares_differ() -> None:
    """Each client of APFL has its own."""
    shares = played(prepared(SYSTEMS["apfl adaptive"][0][0], take_part=None), ROUNDS).memory["share"].values
    assert len(shares.unique()) == CLIENTS


def test_groups_of_cfl() -> None:
    """One lane divides groups while there is room, one never does, one only those with a long update."""
    runs = [prepared(member, 40) for member in SYSTEMS["cfl"][0]]
    used = [int(state.server["used"]) for state in parted(played(together(runs), ROUNDS), runs)]
    assert (used[0], used[1]) == (4, 1)
    assert 1 < used[2] < 4


def test_bipartition_against_all_divisions() -> None:
    updates = torch.tensor(np.random.default_rng(3).standard_normal((7, 3)))
    unit = torch.nn.functional.normalize(updates, dim=-1)
    cosines = (unit @ unit.mT).numpy()

    def across(part: tuple[int, ...]) -> float:
        return float(cosines[list(part)][:, np.setdiff1d(np.arange(7), part)].max())

    every = [part for size in range(1, 7) for part in itertools.combinations(range(1, 7), size)]
    assert tuple(bipartition(updates).tolist()) == min(every, key=across)
    assert len(bipartition(torch.ones(4, 3))) > 0, "equal updates are divided, too"


def test_every_system_runs_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its defaults, sampled clients and a newcomer; personal models are measured."""
    monkeypatch.setattr("fedkin.experiments.group.score_summary", lambda *_: {})  # which takes longer than the rounds
    names = {name.split()[0] for name in (*SYSTEMS, *SELECTING)}
    settings = {
        "name": "all",
        "rounds": 1,
        "take_part": 3,
        "keep": "model",
        "evaluate": "test",
        "partition": {"clients": 6, "samples": 30, "validation": 0.2, "newcomers": 0.2},
        "local": {"epochs": 1, "step_size": 0.05},
        "algorithm": [{"name": name} for name in sorted(names)],
    }
    for result in fedkin.run(settings, out=tmp_path):
        name = result.config["algorithm"]["name"]
        assert (name, result.summary["status"]) == (name, "finished")
        assert ("final_newcomer_test_accuracy" in result.summary) == ALGORITHMS[name]().is_personal, name
