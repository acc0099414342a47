"""Authentication, the simulation runtime, and that no telemetry is sent.

In a file of their own, so that they can run beside those of the deployment.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedkin.experiments.tensor_files import read_tensors
from flower_runs import ALGORITHMS, APP, LIMIT, settings, undisturbed, until
from loopback.federation import OFFLINE, Loopback
from loops import CASES, CLIENTS, simulation


def test_unregistered_nodes_and_plain_text_are_refused(tmp_path: Path) -> None:
    """With authentication on, a round is done by the two registered nodes, over TLS, and by no other."""
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
        assert all(len(bytes.fromhex(name)) > 32 for name in names)  # clients are identified by their keys
        for name in ("unregistered", "keyless", "plain"):
            until(lambda name=name: deployment.processes[name].poll() is not None, f"the end of the {name} node")  # type: ignore[misc]
            assert deployment.processes[name].returncode != 0
            assert "SuperNode ID" not in deployment.log(name)  # what an accepted node logs
        assert "SuperNode ID" in deployment.log("node-0", 10_000)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Twenty nodes in Flower's simulation runtime, which can import the modules of the tests."""
    federation = Loopback(tmp_path_factory.mktemp("twenty"), nodes=CLIENTS, simulation=True)
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent / "examples" / "own_algorithm"), os.environ.get("PYTHONPATH", "")]
    federation.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with federation as deployment:
        yield deployment


def test_the_simulation_gives_the_rounds_of_the_engine(simulated: Loopback, tmp_path: Path) -> None:
    """`flwr run` with FedAvg, FedProx and FedKin."""
    run = simulated.run(APP, settings(" ".join(ALGORITHMS), CLIENTS, 3, tmp_path))
    for name in ALGORITHMS:
        records = list(simulated.records(run, tmp_path / name, LIMIT))
        expected = undisturbed(name, CLIENTS, 3)
        np.testing.assert_allclose([r["test_loss"] for r in records], expected.test_loss, atol=1e-5, rtol=0)
        assert all(r["replies"] == CLIENTS for r in records)


@pytest.mark.parametrize("take_part", [None, 5])
def test_algorithms_of_the_users_own_in_the_simulation(
    simulated: Loopback, tmp_path: Path, take_part: int | None
) -> None:
    """SCAFFOLD, Ditto and IFCA one after the other, to 1e-6 of the loops in float64, models and clients' memory."""
    app = Path(__file__).parent / "flower_app"
    run = simulated.run(app, {"take-part": take_part or CLIENTS, "rounds": 3, "out": tmp_path})
    for members, loop in CASES:
        out = tmp_path / type(members[0]).__name__
        records = list(simulated.records(run, out, LIMIT))
        assert [record["replies"] for record in records] == [take_part or CLIENTS] * 3
        oracle = loop(simulation(members[0], take_part=take_part))
        sampled = sorted({client for t in range(3) for client in oracle.clients(t)[0]})
        expected = oracle.rounds(3)
        saved = read_tensors(out / "model.safetensors")
        assert saved is not None
        off = np.linalg.norm(saved[0]["model"].double().numpy() - expected["model"])
        assert off < 1e-6 * np.linalg.norm(expected["model"])
        until((out / "square.json").exists, "the end of the run")
        squares = [(value[sampled] ** 2).sum() / CLIENTS for name, value in expected.items() if "memory" in name]
        if squares:  # IFCA's choice is not in the loop's result
            assert json.loads((out / "square.json").read_text()) == pytest.approx(sum(squares), rel=1e-6)


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
