"""A loss that grows in the first rounds is said; noise is not."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedkin
from command_line import Command
from conftest import small_federation
from fedkin import FedAvg, Kin, Local
from fedkin.algorithms import Algorithm, Alone
from fedkin.experiments.rising import growth_sentence
from fedkin.experiments.run import train

TOO_LARGE = 100.0


def grown(algorithm: Algorithm, rounds: int = 6) -> fedkin.Result:
    with pytest.warns(UserWarning, match="the training loss grew from"):
        return train(small_federation(), algorithm, local=Local(epochs=2), rounds=rounds)


def test_the_sentence_has_the_losses_before_and_after() -> None:
    """Initially all classes are equally likely but for the random first model: about ln 3 = 1.1."""
    result = grown(FedAvg(step_size=TOO_LARGE))
    match = re.fullmatch(
        r"the training loss grew from (1\.\d+) to ([\d.e+]+) in the first 5 rounds: try a smaller local\.step_size",
        result.summary["warning"],
    )
    assert match
    assert float(match[2]) == pytest.approx(result.train_loss[4], rel=0.01)
    assert result.rounds[4]["warning"] == result.summary["warning"]
    assert ["warning" in record for record in result.rounds] == [False] * 4 + [True, False]


@pytest.mark.parametrize("algorithm", [Alone(step_size=TOO_LARGE), Kin(step_size=TOO_LARGE)])
def test_of_personal_models(algorithm: Algorithm) -> None:
    federation = small_federation(sizes=(12, 12, 12, 12)).held_out(0.25, seed=0)
    with pytest.warns(UserWarning, match="grew"):
        train(federation, algorithm, local=Local(epochs=2), rounds=5)


def test_short_runs() -> None:
    assert "in the first 3 rounds" in grown(FedAvg(step_size=TOO_LARGE), rounds=3).summary["warning"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "warning" not in train(small_federation(), FedAvg(step_size=TOO_LARGE), rounds=2).summary


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([2.6, 2.6, 2.6], True),
        ([2.4, 2.6, 2.6], False),  # less than a quarter above, once
        ([9.0, 2.0, 9.0, 9.0, 9.0], False),  # as in noise, once below
        ([9.0, 9.0], False),  # too few to say
        ([9.0, 9.0, None], False),  # a diverged run says so itself
    ],
)
def test_when_a_loss_has_grown(losses: list[float | None], says: bool) -> None:
    assert (growth_sentence(2.0, losses) is not None) == says


@pytest.mark.parametrize("step_size", [0.1, 0.3])
def test_noise_of_few_sampled_clients_is_no_growth(step_size: float) -> None:
    """Two of 50 clients a round, with one or two classes each: the loss is above the first one, 2.4, for rounds."""
    federation = fedkin.federate(fedkin.load("digits"), clients=50, class_imbalance=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(federation, FedAvg(step_size=step_size), local=Local(epochs=5), rounds=5, take_part=2)
    assert (result.train_loss > 2.5).sum() > 1


def test_the_average_of_personal_models_does_not_count() -> None:
    """Two clients with opposite labels, 20 and 12 samples: alone both learn theirs.

    The average, a quarter of the larger client's model, is the worse for the smaller client the better they are.
    """
    x = np.linspace(-1, 1, 20)[:, None].round(3)
    larger, smaller = (x, (x[:, 0] > 0).astype(int)), (x[4:16], (x[4:16, 0] < 0).astype(int))
    federation = fedkin.from_clients([larger, smaller], [larger, smaller])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(federation, Alone(step_size=100.0), graph="uniform", local=Local(epochs=50, l2=0), rounds=5)
    assert result.train_loss.min() > 1.25 * np.log(2) * 1.2  # of the average: more than it may be
    assert result.own_test_accuracy[-1] == 1


def test_the_command_says_it_once_and_keeps_it(tmp_path: Path, invoke: Command) -> None:
    settings = ["rounds=6", "clients=5", "epochs=1", "validation=0", "model.kind=softmax", "step_size=[0.1, 1000]"]
    arguments = ["run", *(word for one in [*settings, 'algorithm="fedavg"'] for word in ("--set", one))]
    done = invoke(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "grew" in line]
    assert line.startswith("fedavg-step_size=1000: the training loss grew from 2")
    folder = tmp_path / "results" / "demo"
    assert line.endswith(json.loads((folder / "fedavg-step_size=1000" / "summary.json").read_text())["warning"])
    assert "warning" not in json.loads((folder / "fedavg-step_size=0.1" / "summary.json").read_text())
    again = invoke(*arguments, cwd=tmp_path)
    assert again.stdout.count("(kept)") == 2
