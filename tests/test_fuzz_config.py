"""Random settings: they run, or one sentence says why not."""

import math
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from hypothesis import event, given

from fedkin import run
from fedkin.engine.metrics import has_diverged
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments.results import Result
from fuzz import assert_sentence, examples, nonsense, overrides, sensible, spoiled


def assert_sound(result: Result) -> None:
    """Finite numbers in every round, but for the last of a run that has diverged."""
    assert result.rounds
    diverged = result.summary["status"] == "diverged"
    for place, record in enumerate(result.rounds):
        last = place == len(result.rounds) - 1
        for key, value in record.items():
            if value is None:
                assert diverged or key == "test_loss", (key, place)
                assert key != "train_loss" or last, "a run ends when it has diverged"
            else:
                assert math.isfinite(value), (key, value)
    assert diverged == has_diverged(result.rounds[-1])


def carry_out(settings: Any, overridden: Sequence[str] = ()) -> None:
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = run(settings, overrides=overridden, out=out)
        except BadInput as error:
            assert_sentence(error)
            event("refused")
            return
        finally:
            torch.set_num_threads(threads)
        event("carried out")
        for result in results:
            assert_sound(result)
        with mock.patch.object(Simulation, "advance", None):  # what has ended is kept
            assert [kept.summary for kept in run(settings, overrides=overridden, out=out)] == [
                result.summary for result in results
            ]


@given(sensible())
@examples(60)
def test_sensible_settings(settings: Any) -> None:
    carry_out(settings)


@given(spoiled())
@examples(150)
def test_one_or_two_settings_are_wrong(settings: Any) -> None:
    carry_out(settings)


@given(nonsense())
@examples(75)
def test_nonsense(settings: Any) -> None:
    carry_out(settings)


@given(sensible(), overrides())
@examples(75)
def test_overrides(settings: Any, overridden: list[str]) -> None:
    carry_out(settings, overridden)
