"""What is sent, what it costs, and what is checked."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import nn

from fedkin import Algorithm, FedAvg, FedKin, Local
from fedkin.algorithms import IFCA
from fedkin.errors import BadInput
from fedkin.flower import Strategy
from fedkin.flower.wire import Order, flatten, pack, payload, unflatten, unpack
from fedkin.graph.similarity import messages
from flower_nodes import FEDERATION, KIN, LOCAL, Momentum, five, lead


def test_bytes_by_hand() -> None:
    """650 float32 parameters are 2,600 bytes and 128 of header. Down: w̄, and u in full or in half. Up: w.

    In half: 1,300 + 128 for the difference, 4 + 128 for its scale. The message of round 1: 64 float64, 512 + 128.
    """
    whole, half = 2728, 1428 + 132
    cases: list[tuple[Algorithm, dict[str, Any], int]] = [
        (FedAvg(step_size=0.05), {}, whole),
        (KIN, {}, 2 * whole),
        (KIN, {"half": True}, whole + half),
    ]
    for algorithm, settings, down in cases:
        strategy, _ = lead(five(), algorithm, rounds=1, **settings)
        assert strategy.ledger.down == dict.fromkeys("01234", down)
        assert strategy.ledger.up == dict.fromkeys("01234", whole + 640)


def test_half_precision_is_precise_however_small_the_difference() -> None:
    """The error is at most 2⁻¹¹ of the largest entry, also where half precision alone would round to zero."""
    for size in (1.0, 1e-6, 1e-12):
        model = torch.zeros(1000)
        anchor = size * torch.linspace(-1, 1, 1000)
        back = unpack(pack({"model": model, "anchor": anchor}, half=True))["anchor"]
        assert float((back - anchor).abs().max()) <= 2**-11 * size
    same = unpack(pack({"model": model, "anchor": model}, half=True))
    assert torch.equal(same["anchor"], model)


def test_half_precision_of_vectors_that_are_no_models() -> None:
    """A control variate is small beside the model, not near it; what has another length stays in full."""
    model, control = torch.linspace(1, 2, 1000), 1e-5 * torch.linspace(-1, 1, 1000)
    choice = torch.tensor([0.1, 0.2])
    back = unpack(pack({"model": model, "control": control, "choice": choice}, half=True))
    assert float((back["control"] - control).abs().max()) <= 2**-11 * 1e-5
    assert torch.equal(back["choice"], choice)
    assert torch.equal(back["model"], model)


def test_half_precision_hardly_changes_the_result() -> None:
    """Ten rounds: the test loss differs in the sixth digit."""
    _, exact = lead(five(), rounds=10)
    _, rounded = lead(five(), rounds=10, half=True)
    assert exact != rounded
    np.testing.assert_allclose(exact, rounded, atol=1e-5)


def test_an_order_arrives_as_it_was_sent() -> None:
    """Also what is None, words and integers, and algorithms of the user's own."""
    local = Local(epochs=3, batch_size=None, clip=1.5, order="fixed")
    algorithms: list[Algorithm] = [KIN, FedKin(absent="last"), FedAvg(), Algorithm(step_size=0.1)]
    algorithms += [Momentum(step_size=0.25), Outer.Momentum(step_size=0.5), IFCA(groups=3)]
    for algorithm in algorithms:
        order = Order(algorithm, local, seed=7, round=2, client=4, counted=1)
        again = Order.unpack(order.pack())
        assert again == order
        assert type(again.algorithm) is type(algorithm)


class Outer:
    """Has a class whose name is another's."""

    @dataclass(frozen=True, kw_only=True)
    class Momentum(Algorithm):
        """FedAvg under another name."""


@dataclass(frozen=True, kw_only=True)
class Widths(Algorithm):
    """Has a field that is neither number nor word."""

    widths: tuple[int, ...] = (3, 4)


def test_fields_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(BadInput, match=r"algorithm.widths of .*:Widths is a tuple.*numbers or words"):
        Order(Widths(), LOCAL, 0, 0, 0).pack()


def test_a_field_that_the_node_does_not_have_is_refused() -> None:
    """The server has another version of the algorithm, which would otherwise run with other settings."""
    record = Order(KIN, LOCAL, 0, 0, 0).pack()
    record["algorithm.gamma"] = 0.5
    with pytest.raises(BadInput, match=r"FedKin has no field 'gamma'.*version"):
        Order.unpack(record)


def test_an_unknown_algorithm_is_an_error_at_the_node() -> None:
    record = Order(KIN, LOCAL, 0, 0, 0).pack()
    record["algorithm"] = "fedkim"
    with pytest.raises(BadInput, match=r"fedkim.*did you mean 'fedkin'.*import it in the client app"):
        Order.unpack(record)


def test_a_node_imports_nothing_because_the_server_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the client app has imported can be asked for; attributes of imported modules are not looked up."""
    touched = tmp_path / "touched"
    (tmp_path / "elsewhere.py").write_text(
        "from pathlib import Path\nfrom fedkin import FedAvg\n"
        f"Path({str(touched)!r}).touch()\nclass Mine(FedAvg): pass\ndef __getattr__(name): raise SystemExit\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    record = Order(FedAvg(), LOCAL, 0, 0, 0).pack()
    record["algorithm"] = "elsewhere:Mine"
    with pytest.raises(BadInput, match="import it in the client app"):
        Order.unpack(record)
    assert not touched.exists()
    assert "elsewhere" not in sys.modules
    mine = importlib.import_module("elsewhere").Mine  # as the client app would
    assert type(Order.unpack(record).algorithm) is mine
    for name in ("elsewhere:Other", "os:system", "fedkin:FedAvg"):
        record["algorithm"] = name
        with pytest.raises(BadInput, match="knows no algorithm"):
            Order.unpack(record)
    del sys.modules["elsewhere"]


def test_arrays_flatten_and_back() -> None:
    """Names, shapes and order survive."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    arrays = ArrayRecord(net.state_dict())
    flat = flatten(arrays)
    torch.testing.assert_close(flat, nn.utils.parameters_to_vector(net.parameters()))
    again = unflatten(flat, arrays).to_torch_state_dict()
    assert all(torch.equal(again[name], value) for name, value in net.state_dict().items())
    with pytest.raises(BadInput, match="GroupNorm"):
        flatten(ArrayRecord(nn.BatchNorm1d(3).state_dict()))


def test_the_message_is_the_engines() -> None:
    """The first principal component of the raw features."""
    strategy, _ = lead(five(), rounds=1)
    sent = strategy.nodes.roster.messages
    assert sent is not None
    np.testing.assert_allclose(sent, messages(FEDERATION), atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"graph": "shuffled"}, "unknown graph"),
        ({"identity": "name"}, "unknown identity"),
        ({"min_nodes": 1}, "min_nodes"),
        ({"min_nodes": 5, "take_part": 3, "min_replies": 4}, "min_replies"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Strategy(KIN, **settings)


def test_payload_counts_arrays() -> None:
    one = ArrayRecord({"a": Array(np.zeros(2, dtype=np.float32))})
    assert payload(RecordDict({"x": one, "y": one})) == 2 * (8 + 128)
