"""Bytes between server and clients, worked out from the shapes of what is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.algorithms import IFCA, Alone, FineTuned
from fedkin.algorithms.kin import is_choosing
from fedkin.algorithms.rounds import random_numbers
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
        (fedkin.FedAvgM(), P, P),
        (fedkin.FedYogi(), P, P),
        (fedkin.SCAFFOLD(), 2 * P, 2 * P),  # x and c; y and the change of cᵢ
        (fedkin.FedNova(), P, P + 4),  # the number of steps
        (fedkin.FedDyn(), P, P),
        (fedkin.PowerOfChoice(losses="stale"), P, P + 4),  # the loss
        (fedkin.Ditto(), P, P),
        (fedkin.MRMTL(), P, P),  # v̄; the change of v
        (fedkin.APFL(adaptive=True), P, P),  # the share stays at the client
        (fedkin.PFedMe(), P, P),
        (fedkin.PerFedAvg(), P, P),
        (fedkin.FedU(), P, P + 4),
        (fedkin.MOCHA(), P, P + 4),
        (fedkin.CFL(), P, P),
        (fedkin.FedAMP(), P, P),
    ],
)
def test_bytes_per_client_and_round(algorithm: fedkin.Algorithm, down: int, up: int) -> None:
    result = trained(algorithm)
    assert result.bytes_down.tolist() == [down] * 3
    assert result.bytes_up.tolist() == [up] * 3
    assert result.sampled.tolist() == [12] * 3
    assert result.summary["total_bytes_down"] == 3 * 12 * down


def test_losses_that_are_asked_for_count() -> None:
    """Of three sampled clients, twice as many candidates receive the model and return a number."""
    result = trained(fedkin.PowerOfChoice(), take_part=3)
    assert result.summary["total_bytes_down"] == 3 * (3 * P + 6 * P)
    assert result.summary["total_bytes_up"] == 3 * (3 * P + 6 * 4)


@pytest.mark.parametrize("take_part", [None, 5])
def test_l2gd_exchanges_when_its_coin_changes(take_part: int | None, tmp_path: Path) -> None:
    """v̄ and one number come down in the first round of averaging, models go up in the last before it; in lanes, too.

    If clients are sampled, those of one round do not know what those of another have received.
    """
    settings: dict[str, Any] = {"name": "coins", "rounds": 12, "take_part": take_part or "all"}
    settings |= {"partition": {"clients": 8}, "local": {"epochs": 1}}
    runs = fedkin.run({**settings, "algorithm": {"name": "l2gd", "every": 2, "pull": [0.1, 1.0]}}, out=tmp_path)
    averages = [random_numbers(0, "coin", t).random() < 0.5 for t in range(13)]
    assert 0 < sum(averages) < 12
    for result in runs:
        for t, average in enumerate(averages[:12]):
            down = average and (take_part is not None or (t > 0 and not averages[t - 1]))
            up = not average and (take_part is not None or averages[t + 1])
            assert (result.bytes_down[t], result.bytes_up[t]) == ((P + 4) * down, P * up), t


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
