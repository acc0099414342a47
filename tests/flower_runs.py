"""Settings and helpers for the tests with real Flower processes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedkin
from fedkin import Algorithm, FedAvg, Federation, FedKin, FedProx, Local
from fedkin.algorithms import Ditto
from loopback.federation import Loopback

APP = Path(__file__).parents[1] / "examples" / "flower" / "digits"
ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(step_size=0.05),
    "fedprox": FedProx(step_size=0.05, alpha=0.1),
    "fedkin": FedKin(step_size=0.05, beta=0.5),
    "ditto": Ditto(step_size=0.05),
}
LIMIT = 100.0  # seconds for a round
TEST_SAMPLES = 359


def undisturbed(name: str, nodes: int, rounds: int) -> fedkin.Result:
    """The run of the example app in the in-process engine."""
    federation: Federation = fedkin.federate(
        fedkin.load("digits"), clients=nodes, class_imbalance=10.0, size_imbalance=1.0, seed=0
    )
    local = Local(epochs=2, batch_size=32, order="shuffled")
    return fedkin.train(federation, ALGORITHMS[name], local=local, rounds=rounds, threshold=0.85)


def settings(name: str, nodes: int, rounds: int, out: Path, **more: Any) -> dict[str, Any]:
    """The settings of the app."""
    return {"algorithms": name, "nodes": nodes, "rounds": rounds, "epochs": 2, "out": out, **more}


def received(deployment: Loopback, node: str) -> int:
    """The number of rounds whose messages a node has received completely."""
    log = deployment.log(node, 100_000)
    return sum("Received successfully" in part for part in log.split("Receiving: train message")[1:])


def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.05)
