"""Real Flower processes on loopback: SuperLink and SuperNodes, the simulation runtime, faults, authentication.

Apps are started warm (see `flower_warm`), ports are chosen free, and every process is ended by its own id.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import Algorithm, FedAvg, Federation, FedKin, FedProx, Local
from fedkin.flower_loopback import OFFLINE, Loopback
from fedkin.flower_warm import started

APP = Path(__file__).parents[1] / "examples" / "flower" / "digits"
ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(step_size=0.05),
    "fedprox": FedProx(step_size=0.05, alpha=0.1),
    "fedkin": FedKin(step_size=0.05, beta=0.5),
}
LIMIT = 100.0  # seconds for a round


def undisturbed(name: str, nodes: int, rounds: int) -> fedkin.Result:
    """The in-process engine's run of what the example app does."""
    federation: Federation = fedkin.federate(
        fedkin.load("digits"), clients=nodes, class_imbalance=10.0, size_imbalance=1.0, seed=0
    )
    local = Local(epochs=2, batch_size=32, order="shuffled")
    return fedkin.train(federation, ALGORITHMS[name], local=local, rounds=rounds, threshold=0.85)


def settings(name: str, nodes: int, rounds: int, out: Path, **more: Any) -> dict[str, Any]:
    """The same as the app's settings."""
    return {"algorithms": name, "nodes": nodes, "rounds": rounds, "epochs": 2, "out": out, **more}


def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A SuperLink with five SuperNodes."""
    with Loopback(tmp_path_factory.mktemp("five"), nodes=5, warm=True) as deployment:
        for partition in range(5):
            deployment.start_node(partition)
        yield deployment
    assert not deployment.processes


def received(deployment: Loopback, node: str) -> int:
    """How many rounds' messages a node has received whole."""
    log = deployment.log(node, 100_000)
    return sum("Received successfully" in part for part in log.split("Receiving: train message")[1:])


def test_five_nodes_give_the_rounds_of_the_engine(five: Loopback, tmp_path: Path) -> None:
    """FedAvg, FedProx and FedKin at the same time on one deployment: the same test loss each round within 1e-5."""
    rounds = {"fedavg": 2, "fedprox": 2, "fedkin": 3}
    runs = {name: five.run(APP, settings(name, 5, rounds[name], tmp_path)) for name in ALGORITHMS}
    for name, run in runs.items():
        records = list(five.records(run, tmp_path / name, LIMIT))
        expected = undisturbed(name, 5, rounds[name])
        np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
        assert all(r["replies"] == 5 for r in records)


def test_a_node_killed_in_the_middle_of_a_round_costs_that_reply(five: Loopback, tmp_path: Path) -> None:
    """The others go on; started again it has its place back, and the result is as good."""
    before = received(five, "node-4")
    run = five.run(APP, settings("fedkin", 5, 5, tmp_path, timeout=8.0))
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
    expected = undisturbed("fedkin", 5, 5)
    assert abs(done[-1]["test_accuracy"] - expected.test_accuracy[-1]) < 0.03


def test_a_server_app_that_is_killed_continues_with_the_same_command(five: Loopback, tmp_path: Path) -> None:
    """From the last complete round, to the very result of the undisturbed run."""
    out, config = tmp_path / "fedkin", settings("fedkin", 5, 3, tmp_path)
    before = [received(five, f"node-{i}") for i in range(5)]
    run = five.run(APP, config)
    next(five.records(run, out, LIMIT))
    # While the nodes work: had they only half of a message, they would wait for Flower to notice that the run is dead.
    until(lambda: all(received(five, f"node-{i}") == before[i] + 2 for i in range(5)), "the second round")
    os.kill(started(five.aside, "flwr-serverapp")[-1], signal.SIGKILL)
    killed = len((out / "rounds.jsonl").read_text().splitlines())
    again = five.run(APP, config)
    done = list(five.records(again, out, LIMIT))
    assert killed < 3
    expected = undisturbed("fedkin", 5, 3)
    np.testing.assert_allclose([r["test_loss"] for r in done], expected.test_loss, atol=1e-5, rtol=0)
    assert [r["round"] for r in done] == [0, 1, 2]
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


def test_strangers_and_plain_text_are_refused(tmp_path: Path) -> None:
    """With authentication on, a round is done by the two registered nodes, over TLS, and by nobody else."""
    with Loopback(tmp_path, nodes=3, secure=True, warm=True) as deployment:
        certificate = ["--root-certificates", str(deployment.keys / "ca.pem")]
        tries = ["--max-retries", "2"]
        key = ["--auth-supernode-private-key", str(deployment.keys / "node-2")]
        deployment.start_node(2, "unregistered", [*certificate, *tries, *key])
        deployment.start_node(2, "keyless", [*certificate, *tries])
        deployment.start_node(2, "plain", ["--insecure", *tries])
        for partition in range(2):
            deployment.register(partition)
            deployment.start_node(partition)
        run = deployment.run(APP, settings("fedavg", 2, 1, tmp_path / "out", identity="key"))
        (record,) = deployment.records(run, tmp_path / "out" / "fedavg", LIMIT)
        assert (record["asked"], record["replies"]) == (2, 2)
        names = sorted(record["bytes_up"])
        assert all(len(bytes.fromhex(name)) > 32 for name in names)  # clients go by their keys
        for name in ("unregistered", "keyless", "plain"):
            until(lambda name=name: deployment.processes[name].poll() is not None, f"the end of the {name} node")  # type: ignore[misc]
            assert deployment.processes[name].returncode != 0
            assert "SuperNode ID" not in deployment.log(name)  # what a node says once it is let in
        assert "SuperNode ID" in deployment.log("node-0", 10_000)


def test_the_simulation_gives_the_rounds_of_the_engine(tmp_path: Path) -> None:
    """Twenty nodes in Flower's simulation runtime, `flwr run`, all three algorithms."""
    with Loopback(tmp_path, nodes=20, simulation=True) as deployment:
        run = deployment.run(APP, settings(" ".join(ALGORITHMS), 20, 3, tmp_path / "out"))
        for name in ALGORITHMS:
            records = list(deployment.records(run, tmp_path / "out" / name, LIMIT))
            expected = undisturbed(name, 20, 3)
            np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
            assert all(r["replies"] == 20 for r in records)


def test_nothing_is_sent_home() -> None:
    """With the launcher's environment, Flower sends neither telemetry nor an update check."""
    script = """
import requests, urllib.request
def never(*_, **__): raise SystemExit("the network was used")
requests.post = requests.get = urllib.request.urlopen = never
from flwr.supercore import telemetry, update_check
update_check.warn_if_flwr_update_available("flwr")
telemetry.event(telemetry.EventType.PING)
import threading, time
for thread in threading.enumerate():
    if thread is not threading.main_thread(): thread.join(2)
print(telemetry.FLWR_TELEMETRY_ENABLED)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("0", 0), done.stderr
