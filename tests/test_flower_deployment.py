"""A SuperLink and five SuperNodes on loopback: three runs at the same time, and a killed node.

Apps are started by fork (see `loopback.warm`), on free ports, and every process is ended by its own id. `make test`
leaves these out: it has a deployment in `test_flower_runtime.py`, and lost replies in `test_flower_faults.py`.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedkin.experiments.tensor_files import read_tensors
from flower_runs import APP, LIMIT, TEST_SAMPLES, received, settings, undisturbed, until
from loopback.federation import Loopback
from loopback.warm import started

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A SuperLink with five SuperNodes."""
    with Loopback(tmp_path_factory.mktemp("five"), nodes=5, warm=True) as deployment:
        for partition in range(5):
            deployment.start_node(partition)
        yield deployment
    assert not deployment.processes


def test_five_nodes_give_the_rounds_of_the_engine(five: Loopback, tmp_path: Path) -> None:
    """FedAvg, FedProx and FedKin at the same time on one deployment: the same test loss each round within 1e-5."""
    rounds = {"fedavg": 2, "fedprox": 2, "fedkin": 3}
    runs = {name: five.run(APP, settings(name, 5, count, tmp_path)) for name, count in rounds.items()}
    for name, run in runs.items():
        records = list(five.records(run, tmp_path / name, LIMIT))
        expected = undisturbed(name, 5, rounds[name])
        np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
        assert all(r["replies"] == 5 for r in records)


def test_a_node_killed_in_the_middle_of_a_round_costs_that_reply(five: Loopback, tmp_path: Path) -> None:
    """The others go on; restarted it keeps its number, and only the rounds in which it was away are lost.

    How many those are depends on how long it takes to start, which on a busy machine is more than one round.
    """
    before = received(five, "node-4")
    run = five.run(APP, settings("fedkin", 5, 5, tmp_path, timeout=12.0))
    records = five.records(run, tmp_path / "fedkin", LIMIT)
    done = [next(records)]
    until(lambda: received(five, "node-4") == before + 2, "the second round")
    five.stop("node-4", signal.SIGKILL)
    done.append(next(records))
    five.start_node(4)
    done.extend(records)
    assert (done[1]["replies"], done[1]["refused"]) == (4, {"4": "no reply in time"})
    assert done[-1]["replies"] == 5
    assert all(r["attempts"] == 1 for r in done)
    away = sum(r["replies"] < 5 for r in done)
    accuracy = undisturbed("fedkin", 5, 5).test_accuracy
    noise = np.sqrt(accuracy * (1 - accuracy) / TEST_SAMPLES)  # the standard error of an accuracy on so many samples
    least, most = (accuracy - 2 * noise)[-1 - away], (accuracy + 2 * noise)[-1]
    assert least < done[-1]["test_accuracy"] < most


def test_memory_survives_restarts(five: Loopback, tmp_path: Path) -> None:
    """Of a node that is killed, and of the server app: Ditto's models are those of an undisturbed run."""
    config = settings("ditto", 5, 4, tmp_path, timeout=30.0, **{"min-replies": 5})
    run = five.run(APP, config)
    next(five.records(run, tmp_path / "ditto", LIMIT))
    five.stop("node-4", signal.SIGKILL)
    os.kill(started(five.aside, "flwr-serverapp")[-1], signal.SIGKILL)
    five.start_node(4)
    again = five.run(APP, config)
    done = list(five.records(again, tmp_path / "ditto", LIMIT))
    assert [record["replies"] for record in done] == [5] * 4
    assert not any("memory_lost" in record for record in done)
    expected = undisturbed("ditto", 5, 4)
    for client in range(5):
        (last,) = (five.folder / "memory" / f"node-{client}").glob("*-round-3.safetensors")
        kept = read_tensors(last)
        assert kept is not None
        own = np.concatenate([value.numpy().ravel() for value in expected.state_dict(client).values()])
        np.testing.assert_allclose(kept[0]["own"][0].numpy(), own, atol=1e-5, rtol=0)
