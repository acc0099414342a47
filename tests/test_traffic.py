"""Bytes between server and clients, worked out from the shapes of what is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.algorithms import IFCA, Alone, FineTuned
from fedkin.algorithms.kin import is_choosing
from fedkin.experiments.records import exchanged

P = 10 * 65 * 4  # softmax regression of 64 pixels and 10 classes, with intercepts, as float32


def trained(algorithm: fedkin.Algorithm, rounds: int = 3, **settings: Any) -> fedkin.Result:
    federation = fedkin.federate(fedkin.load("digits"), clients=12, validation=0.2)
    return fedkin.train(federation, algorithm, rounds=rounds, **settings)


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        (fedkin.FedAvg(), P, P),
        (fedkin.FedProx(alpha=0.1), P, P),
        (fedkin.FedKin(beta=0.5), 2 * P, P),  # w̄ and u
        (fedkin.FedKin(beta=1.0, kappa=1.0), P, P),  # u alone
        (FineTuned(), P, P),  # fine-tuning is the client's own
        (IFCA(groups=4), 5 * P, P + 4 * 4),  # w̄ and four models; the model and the choice
        (Alone(), 0, 0),
    ],
)
def test_bytes_per_client_and_round(algorithm: fedkin.Algorithm, down: int, up: int) -> None:
    result = trained(algorithm)
    assert result.bytes_down.tolist() == [down] * 3
    assert result.bytes_up.tolist() == [up] * 3
    assert result.sampled.tolist() == [12] * 3
    assert result.summary["total_bytes_down"] == 3 * 12 * down


def test_kin_sends_candidates_in_some_rounds_only() -> None:
    """A model and the number of the use; in some rounds J candidates, of which 2 (J + 2) + 1 losses come back."""
    result = trained(fedkin.Kin(), rounds=9)
    for number, (down, up) in enumerate(zip(result.bytes_down.tolist(), result.bytes_up.tolist(), strict=True)):
        models, rest = divmod(down, P)
        assert rest == 4
        assert (models > 2) == is_choosing(number)
        assert up == P + (4 * (2 * (models - 1 + 2) + 1) if is_choosing(number) else 0)


def test_lanes_of_kin_count_their_own_candidates(tmp_path: Path) -> None:
    """In lanes the candidates of all are sent to all."""
    base = {"rounds": 17, "partition": {"clients": 12, "kinds": 2, "validation": 0.2}, "algorithm": "kin"}
    steps = [0.001, 0.03, 1.0]
    together = fedkin.run({**base, "name": "lanes", "local": {"epochs": 2, "step_size": steps}}, out=tmp_path)
    assert len(names(together[0])) == 3
    for step, lane in zip(steps, together, strict=True):
        (alone,) = fedkin.run({**base, "name": f"alone{step}", "local": {"epochs": 2, "step_size": step}}, out=tmp_path)
        assert lane.bytes_down.tolist() == alone.bytes_down.tolist()
        assert lane.bytes_up.tolist() == alone.bytes_up.tolist()
    assert len({tuple(lane.bytes_down) for lane in together}) > 1, "lanes have chosen alike, and nothing is tested"


def test_only_sampled_clients_count() -> None:
    result = trained(fedkin.FedAvg(), take_part=5)
    assert result.sampled.tolist() == [5] * 3
    assert result.summary["total_bytes_up"] == 3 * 5 * P


def test_lanes_count_what_a_run_alone_exchanges(tmp_path: Path) -> None:
    """FedAvg, FedProx and FedKin with several κ are one group, in which u is sent to all: FedAvg does not need it."""
    settings = {
        "rounds": 2,
        "partition": {"clients": 6},
        "local": {"step_size": [0.01, 0.1]},
        "algorithm": [
            {"name": "fedavg"},
            {"name": "fedprox"},
            {"name": "fedkin", "beta": 0.5, "kappa": [0.0, 0.5, 1.0]},
        ],
    }
    results = fedkin.run({**settings, "name": "lanes"}, out=tmp_path)
    (together,) = {tuple(sorted(names(result))) for result in results}
    assert len(together) == 10
    found = {(r.config["algorithm"]["name"], r.config["algorithm"].get("kappa")): r.bytes_down[-1] / P for r in results}
    assert found == {
        ("fedavg", None): 1, ("fedprox", None): 1, ("fedkin", 0.0): 2, ("fedkin", 0.5): 2, ("fedkin", 1.0): 1,
    }  # fmt: skip


def names(result: fedkin.Result) -> list[str]:
    assert result.folder is not None
    found: list[str] = json.loads((result.folder / "origin.json").read_text())["lanes"]
    return found


def test_records_of_an_earlier_version_have_no_total() -> None:
    assert exchanged([{"round": 0}, {"round": 1, "sampled": 2, "bytes_down": 3, "bytes_up": 4}]) == {}
    assert exchanged([{"sampled": 2, "bytes_down": 3, "bytes_up": 4}] * 2) == {
        "total_bytes_down": 12,
        "total_bytes_up": 16,
    }
