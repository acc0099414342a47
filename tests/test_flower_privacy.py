"""Privacy on Flower: noise of the server and of the nodes, what it is worth, and secure sums."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

from fedkin import Algorithm, BadInput, FedAvg, FedKin, FedProx, Kin, Privacy
from fedkin.engine.accounting import Release, epsilon_of
from fedkin.files import json_object
from fedkin.flower.protection import upload_of
from fedkin.flower.secure import LEVELS, SecureSum
from flower_grid import recorded
from flower_nodes import five, lead

PLAIN: dict[str, Any] = {"graph": "global", "weights": "uniform", "min_replies": 5}
AVERAGE = FedAvg(step_size=0.05)


def model_after(**settings: Any) -> torch.Tensor:
    """The global model after three rounds."""
    strategy, _ = lead(five(), settings.pop("algorithm", AVERAGE), **{**PLAIN, **settings})
    return strategy._state.model


# -- noise -------------------------------------------------------------------------------------------------------------


def test_a_large_clip_without_noise_is_the_plain_run_to_the_bit() -> None:
    plain = model_after()
    for where in ("server", "clients"):
        assert torch.equal(model_after(privacy=Privacy(clip=1e9, where=where)), plain)
    assert not torch.equal(model_after(privacy=Privacy(clip=0.01)), plain)


@pytest.mark.parametrize(("where", "deviation"), [("server", 100 * 0.01 / 5), ("clients", 100 * 0.01 / np.sqrt(5))])
def test_noise_has_the_stated_deviation_and_nobody_can_repeat_it(where: str, deviation: float) -> None:
    """σC/M in the average of five by the server, σC/√5 by the nodes: of one round, over 650 numbers to 15 %."""
    privacy = Privacy(clip=0.01, noise=100.0, where=where, delta=1e-3)
    models = []
    for _ in range(2):
        strategy, _ = lead(five(), AVERAGE, 1, **{**PLAIN, "privacy": privacy})
        models.append(strategy._state.model - strategy._first[0])
    for moved in models:
        assert float(moved.std()) == pytest.approx(deviation, rel=0.15)
    assert abs(float(torch.corrcoef(torch.stack(models))[0, 1])) < 0.2  # the same seed, other noise


def test_an_upload_is_clipped_before_it_leaves_the_node() -> None:
    grid = five()
    lead(grid, AVERAGE, 1, **{**PLAIN, "privacy": Privacy(clip=0.01, where="clients")})
    start, moved = torch.zeros(1, 4), torch.tensor([[3.0, 0.0, 4.0, 0.0]])
    torch.testing.assert_close(upload_of(moved, start, 1.0, 0.0), torch.tensor([[0.6, 0.0, 0.8, 0.0]]))


def test_records_have_epsilon_and_a_run_that_continues_adds_to_it(tmp_path: Path) -> None:
    privacy = Privacy(clip=0.1, noise=4.0, delta=1e-3)
    lead(five(), AVERAGE, 2, **PLAIN, privacy=privacy, out=tmp_path / "run")
    lead(five(), AVERAGE, 4, **PLAIN, privacy=privacy, out=tmp_path / "run")
    spent = [record["epsilon"] for record in recorded(tmp_path / "run")]
    assert spent == pytest.approx([epsilon_of([Release(4.0, 1.0, t)], 1e-3) for t in range(1, 5)], abs=1e-5)
    summary = json_object(tmp_path / "run" / "summary.json") or {}
    assert summary["privacy"]["epsilon"] == pytest.approx(spent[-1], abs=1e-5)


def test_a_sample_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of five nodes on average, a third of the rounds have none: they are noise, and count."""
    seeds = itertools.count()
    monkeypatch.setattr("fedkin.flower.protection.secrets.randbits", lambda bits: next(seeds))
    settings = {**PLAIN, "min_replies": 1, "take_part": 1, "privacy": Privacy(clip=0.01, noise=1.0, delta=1e-3)}
    grid = five()
    strategy, losses = lead(grid, AVERAGE, 12, **settings)
    trained = [m for m in grid.questions if m.metadata.message_type == "train"]
    asked = Counter(int(m.content.config_records["config"]["server-round"]) for m in trained)  # type: ignore[arg-type]
    assert len(losses) == strategy._state.round == 12
    assert 0 < len(asked) < 12, "some rounds have nobody"
    assert max(asked.values()) > 1, "others have several"


def test_a_node_that_does_not_confirm_its_noise_is_refused() -> None:
    def older(question: Message, reply: Message) -> Message:
        if "node" in reply.content.config_records and question.metadata.message_type == "train":
            del reply.content.config_records["node"]["noise"]
        return reply

    grid = five()
    grid.faults[2] = older
    settings = {**PLAIN, "min_replies": 4, "privacy": Privacy(clip=1.0, noise=1.0, where="clients", delta=1e-3)}
    strategy, _ = lead(grid, AVERAGE, 1, **settings)
    assert "did not clip its upload" in strategy.ledger.refused["2"]


def test_messages_of_nodes_have_noise() -> None:
    privacy = Privacy(clip=1.0, noise=1.0, where="clients", message_noise=0.5, delta=1e-3)
    found = []
    for _ in range(2):
        strategy, _ = lead(five(), FedKin(step_size=0.05), 1, weights="uniform", min_replies=5, privacy=privacy)
        found.append(strategy.nodes.roster.messages)
    first, second = found
    assert first is not None
    assert second is not None
    assert not np.allclose(first, second)


# -- secure sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [AVERAGE, FedProx(step_size=0.05), FedKin(step_size=0.05)], ids=repr)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_secure_sum_is_the_mean_up_to_rounding(algorithm: Algorithm, weights: str) -> None:
    """An entry is rounded to 2·limit/2²² at each of five nodes, in each of three rounds."""
    plain = model_after(algorithm=algorithm, weights=weights)
    secure = model_after(algorithm=algorithm, weights=weights, secure=SecureSum(limit=1.0))
    assert float((secure - plain).abs().max()) < 40 * 2 / LEVELS
    assert not torch.equal(secure, plain)


def test_the_server_sees_masks_and_no_models() -> None:
    """No reply has a vector, and what replaces it is nothing like the update: its entries fill 32 bits."""
    grid = five()
    seen: list[Message] = []

    def watch(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            seen.append(reply)
        return reply

    grid.faults = dict.fromkeys(range(5), watch)
    lead(grid, AVERAGE, 1, **PLAIN, secure=SecureSum())
    assert len(seen) == 4 * 5
    assert not any(len(record) for reply in seen for record in reply.content.array_records.values())
    masked = [r for reply in seen if (r := reply.content.config_records[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS))]
    assert len(masked) == 5
    entries = np.concatenate([bytes_to_ndarray(one[1]) for one in masked])  # type: ignore[index, arg-type]
    assert float(np.mean(entries > 2**31)) == pytest.approx(0.5, abs=0.05)


def test_a_node_that_leaves_before_the_end_is_left_out_of_the_sum() -> None:
    grid, calls = five(), [0]

    def leaves(question: Message, reply: Message) -> Message | None:
        """It has shared its keys, and does not send its masked update: the third message of a round."""
        if question.metadata.message_type != "train":
            return reply
        calls[0] += 1
        return None if calls[0] >= 3 else reply

    grid.faults[4] = leaves
    strategy, _ = lead(grid, AVERAGE, 1, **{**PLAIN, "min_replies": 3, "secure": SecureSum()})
    assert strategy.ledger.refused == {"4": "did not stay until the end of the secure sum"}
    expected = model_without(4)
    assert float((strategy._state.model - expected).abs().max()) < 40 * 2 / LEVELS


def model_without(partition: int) -> torch.Tensor:
    """The plain average of the other nodes after a round."""
    grid = five()
    grid.faults[partition] = lambda question, reply: None if question.metadata.message_type == "train" else reply
    strategy, _ = lead(grid, AVERAGE, 1, **{**PLAIN, "min_replies": 3})
    return strategy._state.model


def test_shares_of_noise_add_up_in_the_secure_sum() -> None:
    """Each of five nodes adds σC/√5: the mean has σC/5, as that of a server; to 15 % over 650 numbers."""
    privacy = Privacy(clip=0.01, noise=100.0, where="shares", delta=1e-3)
    strategy, _ = lead(five(), AVERAGE, 1, **PLAIN, privacy=privacy, secure=SecureSum())
    moved = strategy._state.model - strategy._first[0]
    assert float(moved.std()) == pytest.approx(100 * 0.01 / 5, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"algorithm": Kin(), "secure": SecureSum()}, "Kin needs more of the clients than the sum"),
        ({"algorithm": FedKin(), "graph": "uniform", "secure": SecureSum()}, "FedKin with graph='global'"),
        ({"min_replies": 2, "secure": SecureSum()}, "set min_replies to 3 or more"),
        ({"graph": "similarity", "secure": SecureSum()}, "use graph='global'"),
        ({"aggregate": "median", "secure": SecureSum()}, "gives the mean alone"),
        ({"privacy": Privacy(clip=1.0, noise=1.0, where="shares", delta=1e-3)}, "set secure=SecureSum"),
        ({"privacy": Privacy(clip=1.0, noise=1.0), "secure": SecureSum()}, "set where='shares'"),
        ({"weights": "samples", "privacy": Privacy(clip=1.0, noise=1.0)}, "graph.weights = 'uniform'"),
        ({"privacy": Privacy(clip=1.0, noise=1.0, delta=0.3)}, "not below 1/5"),
    ],
)
def test_what_would_not_be_protected_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        lead(five(), settings.pop("algorithm", AVERAGE), 1, **{**PLAIN, **settings})


@pytest.mark.parametrize(("make", "says"), [(lambda: SecureSum(0.0), "limit = 0"), (lambda: SecureSum(1, 0.5), "0.5")])
def test_bad_sums_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()
