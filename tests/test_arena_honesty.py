"""Answers of comparisons are honest: what is equal ties, what is better is found, what is left out is named."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import FedAvg, Local, build_graph, build_model, federate, load
from fedkin.algorithms import Algorithm, Round, ServerState, label_of
from fedkin.arena import Budget, compare
from fedkin.arena.entrants import ALWAYS, USUAL
from fedkin.data.measure import ACCURACY
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.reports.answer.cautions import cautions_of
from fedkin.reports.answer.contenders import Contender, Field, field_of
from fedkin.reports.answer.scores import Score
from fedkin.reports.answer.sentences import answer_of
from fedkin.reports.runs import collect
from fedkin.types import Integers
from run_folders import write_run
from test_arena import TINY


@dataclass(frozen=True, kw_only=True)
class Planted(FedAvg):
    """FedAvg from a good model: better than FedAvg in few rounds, by construction."""

    def start(self, model: torch.Tensor, round: Round) -> ServerState:
        if model.shape[-1] == 1:  # only names are asked for
            return {"model": model}
        digits = load("digits")
        x, y = torch.as_tensor(digits.x_train).float().reshape(len(digits.y_train), -1), digits.y_train
        target = torch.nn.functional.one_hot(torch.as_tensor(y).long(), 10).float()
        ones = torch.cat([x, torch.ones(len(x), 1)], dim=1)
        w = torch.linalg.lstsq(ones.T @ ones + 10 * torch.eye(65), ones.T @ target).solution  # (65, 10)
        return {"model": torch.cat([10 * w[:-1].T.flatten(), 10 * w[-1]]).expand_as(model).clone()}


@dataclass(frozen=True, kw_only=True)
class Twin(Algorithm):
    """FedAvg under another name, which draws its clients with other random numbers."""

    def select(self, server: ServerState, round: Round, losses: Any) -> Integers:
        assert round.take_part is not None
        return round.who[np.sort(round.random("twin").choice(len(round), round.take_part, replace=False))]


def contenders(values: Mapping[str, Iterable[float]]) -> Field:
    found = [
        Contender(label_of(name), name, "", {str(k): v for k, v in enumerate(each)}) for name, each in values.items()
    ]
    return Field((), tuple(found), Score(ACCURACY), True)


def test_two_copies_of_fedavg_are_a_tie() -> None:
    """In at least 95 of 100 comparisons over five seeds; one copy draws other clients than the other."""
    federation = federate(load("digits"), clients=12, class_imbalance=3, seed=1)
    graph, model = build_graph(federation, "uniform"), build_model(federation)
    weights = graph.weights("samples", federation.train.sizes)
    work = Local(epochs=1, batch_size=64, order="fixed")
    whole = Simulation(federation, model, FedAvg(step_size=0.1), graph, weights, work, take_part=4)

    def value(kind: type[Algorithm], seed: int) -> float:
        simulation = replace(whole, algorithm=kind(step_size=0.1), seed=seed)
        state = simulation.start()
        for _ in range(2):
            state = simulation.advance(state)
        right = model.scores(state.model, federation.test.x).argmax(-2).flatten() == federation.test.y
        return float(right.double().mean())

    def values(kind: type[Algorithm], first: int) -> list[float]:
        return [value(kind, seed) for seed in range(first, first + 5)]

    ties = 0
    for first in range(0, 500, 5):
        answer = answer_of(contenders({"fedavg": values(FedAvg, first), "twin": values(Twin, first)}))
        ties += "tied for best" in answer.headline
    assert ties >= 95


def test_a_planted_better_algorithm_is_found(tmp_path: Path) -> None:
    settings = {**TINY, "rounds": 3, "partition": {"clients": 4}, "algorithm": "fedavg"}
    found = compare(
        settings, algorithms=["test_arena_honesty:Planted"], budget=Budget(3, 5), out=tmp_path, on="process"
    )
    headline = answer_of(field_of(collect(found.folder))).headline
    assert headline.startswith("Planted is best")


def test_the_first_line_says_if_nothing_beats_fine_tuned_fedavg() -> None:
    close = {"finetuned": [0.9, 0.91, 0.9, 0.92, 0.9], "kin": [0.91, 0.9, 0.91, 0.91, 0.91], "fedavg": [0.8] * 5}
    assert answer_of(contenders(close)).headline.startswith("Nothing measurably beats fine-tuned FedAvg")


def test_usual_methods_that_settings_do_not_allow_are_left_out(tmp_path: Path) -> None:
    """SCAFFOLD with momentum, in the dozen; if it is asked for, the comparison is refused. The answer names it."""
    settings = {"name": "tiny", "rounds": 1, "threads": 1, "partition": {"clients": 3}}
    settings["local"] = {"epochs": 1, "batch_size": 256, "optimizer": "momentum"}
    with pytest.warns(UserWarning, match="SCAFFOLD is left out of the comparison: SCAFFOLD counts on steps of its own"):
        found = compare(settings, budget=Budget(1, 1), out=tmp_path, on="process")
    labels = [entry.method.label for entry in found.entries]
    assert len(labels) == len(USUAL) + len(ALWAYS) - 1
    assert "SCAFFOLD" not in labels
    cautions = answer_of(field_of(collect(found.folder))).cautions
    assert any(sentence.startswith("SCAFFOLD is left out: SCAFFOLD counts on steps") for sentence in cautions)
    with pytest.raises(BadInput, match="SCAFFOLD counts on steps"):
        compare(settings, algorithms=["scaffold"], budget=Budget(1, 1), out=tmp_path / "asked", on="process")


def test_many_that_are_left_out_are_one_sentence(tmp_path: Path) -> None:
    """Robust averages protect neither of five; fewer are named with their reasons."""
    for name, reasons in (("few", {"Kin": "a"}), ("many", {"Kin": "a", "IFCA": "b", "CFL": "c"})):
        write_run(tmp_path, "run", {"name": "fedavg"}, experiment=name)
        (tmp_path / name / "comparison.json").write_text(json.dumps({"methods": [], "left_out": reasons}))
    few, many = (
        [*cautions_of(Field(tuple(collect(tmp_path / name)), (), Score(ACCURACY), True), None)]
        for name in ("few", "many")
    )
    assert few[0] == "Kin is left out: a."
    assert (
        many[0]
        == "Kin, IFCA and CFL are left out, as other settings do not allow them: comparison.json has the reasons."
    )
