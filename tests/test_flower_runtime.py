"""Authentication, the simulation runtime, and that nothing is sent home.

In a file of their own, so that they can run beside those of the deployment.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from flower_runs import ALGORITHMS, APP, LIMIT, settings, undisturbed, until
from loopback.federation import OFFLINE, Loopback


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
