"""Real Flower processes on loopback: SuperLink and SuperNodes, the simulation runtime, faults, authentication.

Apps are started warm (see `flower_warm`), ports are chosen free, and every process is ended by its own id.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
LIMIT = 150.0  # seconds for the rounds of a run


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


def test_five_nodes_give_the_rounds_of_the_engine(tmp_path: Path) -> None:
    """FedAvg, FedProx and FedKin at the same time on one deployment: the same test loss each round within 1e-5."""
    with Loopback(tmp_path, nodes=5, warm=True) as deployment:
        for partition in range(5):
            deployment.start_node(partition)
        runs = {name: deployment.run(APP, settings(name, 5, 3, tmp_path / "out")) for name in ALGORITHMS}
        for name, run in runs.items():
            records = list(deployment.records(run, tmp_path / "out" / name, 3, LIMIT))
            expected = undisturbed(name, 5, 3)
            np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
            assert all(r["replies"] == 5 for r in records)
    assert not deployment.processes


def test_a_node_killed_in_the_middle_of_a_round_costs_that_reply(tmp_path: Path) -> None:
    """The others go on; started again it has its place back, and the result is as good."""
    out = tmp_path / "out" / "fedkin"
    with Loopback(tmp_path, nodes=3, warm=True) as deployment:
        for partition in range(3):
            deployment.start_node(partition)
        run = deployment.run(APP, settings("fedkin", 3, 6, tmp_path / "out", timeout=10.0))
        records = deployment.records(run, out, 6, LIMIT)
        done = [next(records)]
        until(lambda: deployment.log("node-2", 10_000).count("Receiving: train message") == 2, "the second round")
        deployment.stop("node-2", signal.SIGKILL)
        done.append(next(records))
        deployment.start_node(2, name="node-2-again")
        done.extend(records)
    assert (done[1]["replies"], done[1]["refused"]) == (2, {"2": "no reply in time"})
    assert done[-1]["replies"] == 3
    assert all(r["attempts"] == 1 for r in done)
    assert "bytes_up" in done[-1]
    expected = undisturbed("fedkin", 3, 6)
    assert abs(done[-1]["test_accuracy"] - expected.test_accuracy[-1]) < 0.03


def test_a_server_app_that_is_killed_continues_with_the_same_command(tmp_path: Path) -> None:
    """From the last complete round, to the very result of the undisturbed run."""
    out = tmp_path / "out" / "fedkin"
    config = settings("fedkin", 3, 4, tmp_path / "out")
    with Loopback(tmp_path, nodes=3, warm=True) as deployment:
        for partition in range(3):
            deployment.start_node(partition)
        run = deployment.run(APP, config)
        records = deployment.records(run, out, 4, LIMIT)
        next(records), next(records)
        os.kill(started(deployment.aside, "flwr-serverapp")[-1], signal.SIGKILL)
        assert not (out / "summary.json").exists()
        again = deployment.run(APP, config)
        done = list(deployment.records(again, out, 4, LIMIT))
        assert len(started(deployment.aside, "flwr-serverapp")) == 2
    expected = undisturbed("fedkin", 3, 4)
    np.testing.assert_allclose([r["test_loss"] for r in done], expected.test_loss, atol=1e-5, rtol=0)
    assert [r["round"] for r in done] == [0, 1, 2, 3]
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
        (record,) = deployment.records(run, tmp_path / "out" / "fedavg", 1, LIMIT)
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
            records = list(deployment.records(run, tmp_path / "out" / name, 3, LIMIT))
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
