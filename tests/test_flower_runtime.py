"""Real Flower processes: a deployment with authentication, the simulation runtime, and that no telemetry is sent."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedkin.experiments.tensor_files import read_tensors
from fedkin.flower import keys
from flower_runs import APP, LIMIT, received, settings, undisturbed, until
from loopback.federation import OFFLINE, Loopback
from loopback.warm import started
from loops import CLIENTS
from simulated_systems import ALGORITHMS as EVERY
from simulated_systems import NODES, SAMPLED, expected_of

TWO = ("fedavg", "fedkin")


@pytest.mark.first
def test_a_deployment(tmp_path: Path) -> None:
    """A SuperLink and two SuperNodes, over TLS; all in one test, because starting them takes the most time."""
    keys.make(tmp_path / "strange", nodes=1)
    with Loopback(tmp_path, nodes=2, secure=True, warm=True) as deployment:
        certificate = ["--root-certificates", str(deployment.keys / "ca.pem")]
        tries = ["--max-retries", "2"]
        key = ["--auth-supernode-private-key", str(tmp_path / "strange" / "node-0")]
        deployment.start_node(1, "unregistered", [*certificate, *tries, *key])
        deployment.start_node(1, "keyless", [*certificate, *tries])
        deployment.start_node(1, "plain", ["--insecure", *tries])
        for partition in range(2):
            deployment.register(partition)
            deployment.start_node(partition)
        unregistered_nodes_and_plain_text_are_refused(deployment, tmp_path / "keys")
        a_server_app_that_is_killed_continues_with_the_same_command(deployment, tmp_path)


def unregistered_nodes_and_plain_text_are_refused(deployment: Loopback, out: Path) -> None:
    """With authentication on, a round is done by the two registered nodes, and by no other."""
    run = deployment.run(APP, settings("fedavg", 2, 1, out, identity="key"))
    (record,) = deployment.records(run, out / "fedavg", LIMIT)
    assert (record["asked"], record["replies"]) == (2, 2)
    keys = [(deployment.keys / f"node-{i}.pub").read_bytes() for i in range(2)]
    prints = [base64.b64encode(hashlib.sha256(base64.b64decode(key.split()[1])).digest())[:16] for key in keys]
    assert list(record["bytes_up"]) == [f"SHA256:{text.decode()}" for text in prints]  # as `ssh-keygen -l` shows
    for name in ("unregistered", "keyless", "plain"):
        until(lambda name=name: deployment.processes[name].poll() is not None, f"the end of the {name} node")  # type: ignore[misc]
        assert deployment.processes[name].returncode != 0
        assert "SuperNode ID" not in deployment.log(name)  # what an accepted node logs
    assert "SuperNode ID" in deployment.log("node-0", 10_000)


def a_server_app_that_is_killed_continues_with_the_same_command(deployment: Loopback, place: Path) -> None:
    """From the last complete round, to the rounds of the engine, which none has disturbed."""
    out, config = place / "fedkin", settings("fedkin", 2, 3, place)
    before = [received(deployment, f"node-{i}") for i in range(2)]
    run = deployment.run(APP, config)
    next(deployment.records(run, out, LIMIT))
    # While the nodes work: had they only half of a message, they would wait for Flower to notice that the run is dead.
    until(lambda: all(received(deployment, f"node-{i}") == before[i] + 2 for i in range(2)), "the second round")
    os.kill(started(deployment.aside, "flwr-serverapp")[-1], signal.SIGKILL)
    killed = len((out / "rounds.jsonl").read_text().splitlines())
    again = deployment.run(APP, config)
    done = list(deployment.records(again, out, LIMIT))
    assert killed < 3
    expected = undisturbed("fedkin", 2, 3)
    np.testing.assert_allclose([r["test_loss"] for r in done], expected.test_loss, atol=1e-5, rtol=0)
    assert [(r["round"], r["replies"]) for r in done] == [(0, 2), (1, 2), (2, 2)]
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


@pytest.mark.first
@pytest.mark.timeout(600)  # two runs, each of which would have 300 s alone
def test_the_simulation(tmp_path: Path) -> None:
    """Two runs at the same time in one start of Flower's simulation runtime, most of whose time is waiting for Ray."""
    federation = Loopback(tmp_path, nodes=CLIENTS, simulation=True)
    tests = Path(__file__).parent  # the nodes of the second app import the modules of the tests
    paths = [str(tests), str(tests.parent / "examples" / "own_algorithm"), os.environ.get("PYTHONPATH", "")]
    federation.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with federation as deployment:
        example = deployment.run(APP, settings(" ".join(TWO), CLIENTS, 2, tmp_path / "example"))
        deployment.nodes = NODES
        every = deployment.run(tests / "flower_app", {"out": tmp_path / "every"})
        the_example_gives_the_rounds_of_the_engine(deployment, example, tmp_path / "example")
        every_system_gives_the_models_of_the_engine(deployment, every, tmp_path / "every")


def the_example_gives_the_rounds_of_the_engine(simulated: Loopback, run: str, out: Path) -> None:
    """`flwr run` with FedAvg, and with FedKin, whose server keeps what it has learned of the nodes."""
    for name in TWO:
        records = list(simulated.records(run, out / name, LIMIT))
        expected = undisturbed(name, CLIENTS, 2)
        np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
        assert all(r["replies"] == CLIENTS for r in records)


def every_system_gives_the_models_of_the_engine(simulated: Loopback, run: str, out: Path) -> None:
    """One after the other on the same six nodes: global models and clients' memories are the engine's.

    Memories survive: clients that are sampled again continue from what they kept.
    """
    for name, algorithm in EVERY.items():
        records = list(simulated.records(run, out / name, LIMIT))
        assert [record["replies"] for record in records] == [SAMPLED] * 3
        model, square = expected_of(algorithm)
        saved = read_tensors(out / name / "model.safetensors")
        assert saved is not None
        off = np.linalg.norm(saved[0]["model"].double().numpy() - model)
        assert off < 1e-6 * np.linalg.norm(model), name
        if square is not None:
            until((out / name / "square.json").exists, "the end of the run")
            assert json.loads((out / name / "square.json").read_text()) == pytest.approx(square, rel=1e-6), name


def test_no_telemetry_is_sent() -> None:
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
