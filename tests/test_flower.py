"""The Flower halves in one process: parity with the engine, identity, evaluation."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

import fedkin
from fedkin import Algorithm, FedAvg, FedKin, FedProx, FedSGD, Schedule
from fedkin.flower import Strategy, client_app, initial_arrays, measured
from fedkin.flower.checks import Introduction
from fedkin.flower.keys import fingerprint, make
from fedkin.flower.roster import Roster
from fedkin.flower.wire import VECTORS, unpack
from flower_grid import Direct
from flower_nodes import APP, FEDERATION, KIN, LOCAL, MODEL, Momentum, data, five, lead, loader


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(step_size=0.05),
        FedProx(step_size=0.05, alpha=0.5),
        KIN,
        FedKin(step_size=Schedule(0.05, 0.01, over=3), beta=Schedule(0.5, 1.0, over=3), absent="last"),
        FedSGD(step_size=0.5),
        Momentum(step_size=0.01),
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("take_part", [None, 3])
def test_the_rounds_are_those_of_the_engine(algorithm: Algorithm, take_part: int | None) -> None:
    """One node at a time over Flower gives what the engine gives, also where clients are sampled."""
    expected = fedkin.train(FEDERATION, algorithm, local=LOCAL, rounds=4, take_part=take_part).test_loss
    _, losses = lead(five(), algorithm, rounds=4, take_part=take_part)
    np.testing.assert_allclose(losses, expected, atol=1e-6, rtol=0)


def test_the_order_of_arrival_changes_nothing() -> None:
    """Clients are numbered by partition."""
    strategy, losses = lead(Direct(APP, [3, 0, 4, 2, 1]))
    _, expected = lead(five())
    assert losses == expected
    assert strategy.nodes.roster.names == ("0", "1", "2", "3", "4")
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, fedkin.build_graph(FEDERATION).adjacency)


def test_a_torch_module_and_a_data_loader() -> None:
    """The model may be any module's class, the data a loader; the message is then that of the loader's samples."""
    net = nn.Linear(64, 10)
    app = client_app(lambda: nn.Linear(64, 10), lambda context: loader(context, 100))
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    result = strategy.start(Direct(app, range(5)), ArrayRecord(net.state_dict()), 2, 0.2)
    assert set(result.arrays) == {"weight", "bias"}
    assert result.arrays["weight"].shape == (10, 64)
    graph = fedkin.build_graph(FEDERATION, pixels="preprocessed")
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, graph.adjacency, rtol=1e-6)


# -- identity --------------------------------------------------------------------------------------------------------


def test_a_node_that_joins_late_enters_the_graph() -> None:
    """Four begin; the fifth comes after a round, sends its message, and is asked from then on."""
    grid = Direct(APP, [0, 1, 2, 4])
    strategy = Strategy(KIN, LOCAL, min_nodes=4)
    seen: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        seen.append(len(strategy.nodes.roster))
        if round == 1:
            grid.join(3)

    strategy.start(grid, initial_arrays(MODEL), 3, 0.2, evaluate_fn=evaluate)
    assert seen == [0, 4, 5, 5]
    assert strategy.nodes.roster.names == ("0", "1", "2", "4", "3")  # numbers stay as they are
    order = [0, 1, 2, 4, 3]
    expected = fedkin.build_graph(FEDERATION).relabelled(order)
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, expected.adjacency)
    assert [q.metadata.dst_node_id for q in grid.questions if q.metadata.message_type == "query"][-1] == 1003


@pytest.mark.parametrize("absent", ["global", "last"])
def test_a_client_that_leaves_counts_as_the_algorithm_says(absent: str) -> None:
    """Client 2 leaves after the first round; in the third, it enters its neighbours' u as w̄ or as its last model."""
    grid = five()
    strategy = Strategy(FedKin(step_size=0.05, beta=0.5, absent=absent), LOCAL, min_nodes=5)
    last: list[Tensor] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            last.append(strategy._state.server["models"].at(np.array([2]))[0].clone())
            grid.leave(1002)

    strategy.start(grid, initial_arrays(MODEL), 3, 0.2, evaluate_fn=evaluate)
    question = [q for q in grid.questions if q.metadata.dst_node_id == 1000][-1]
    got = unpack(question.content.array_records[VECTORS])
    models = _second_round_models(grid)
    mixing = strategy.nodes.graph.mixing[0]
    missing = last[0] if absent == "last" else got["model"]
    u = sum(mixing[i] * models[i] for i in (1, 3, 4)) + mixing[2] * missing
    torch.testing.assert_close(got["anchor"], u.float(), atol=1e-6, rtol=1e-5)


def _second_round_models(grid: Direct) -> dict[int, Tensor]:
    """What the nodes answer to the questions of the second round: the app is a pure function, so ask again."""
    models = {}
    for q in grid.questions:
        if q.metadata.group_id == "2":
            reply = grid.app(q, grid.nodes[q.metadata.dst_node_id])
            models[q.metadata.dst_node_id - 1000] = unpack(reply.content.array_records[VECTORS])["model"].double()
    return models


def test_a_restarted_node_keeps_its_number() -> None:
    """It has another node id and the same partition: the result is that of an undisturbed run."""
    grid = five()
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    evaluate = measured(MODEL, FEDERATION, LOCAL.l2)

    def restart(round: int, arrays: ArrayRecord) -> Any:
        if round == 1:
            grid.leave(1002)
            grid.join(2, node=77)
        return evaluate(round, arrays)

    result = strategy.start(grid, initial_arrays(MODEL), 3, 0.2, evaluate_fn=restart)
    _, expected = lead(five())
    assert result.evaluate_metrics_serverapp[3]["test_loss"] == expected[-1]
    assert strategy.nodes.roster.nodes == (1000, 1001, 77, 1003, 1004)


def test_identity_by_registered_key_ignores_what_the_node_claims() -> None:
    """Names are fingerprints of the keys that the SuperLink knows; what is claimed only decides the order at first."""
    strategy, losses = lead(Direct(APP, [3, 0, 4, 2, 1]), rounds=1, identity="key")
    names = strategy.nodes.roster.names
    assert names == tuple(fingerprint(f"key of {1000 + i}".encode()) for i in range(5))
    assert losses == lead(five(), rounds=1)[1]


def test_a_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    """Of a key as the SuperLink knows it: the beginning of SHA-256 of its OpenSSH encoding."""
    make(tmp_path / "keys", 1)
    line = (tmp_path / "keys" / "node-0.pub").read_bytes()
    pem = load_ssh_public_key(line).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    whole = base64.b64encode(hashlib.sha256(base64.b64decode(line.split()[1])).digest()).decode()
    assert fingerprint(pem) == f"SHA256:{whole[:16]}"


def test_names_sort_by_number() -> None:
    """Partition 10 follows partition 9; known names keep their number and message."""

    def arrival(name: str, node: int) -> Introduction:
        return Introduction(name, node, 1, np.array([float(node)]))

    roster = Roster().joined([arrival(n, i) for i, n in enumerate(["10", "9", "b", "a"])])
    assert roster.names == ("9", "10", "a", "b")
    again = roster.joined([arrival("10", 50), arrival("1", 51)])
    assert again.names == ("9", "10", "a", "b", "1")
    assert again.nodes == (1, 50, 3, 2, 51)
    assert again.messages is not None
    assert again.messages[:, 0].tolist() == [1.0, 0.0, 3.0, 2.0, 51.0]
    counted = again.counting(np.array([1, 4]), 7)
    saved = Roster.from_tensors(counted.tensors())
    assert (saved.names, saved.nodes, saved.counted) == (again.names, again.nodes, (-1, 7, -1, -1, 7))


def test_without_similarity_no_message_leaves_a_node() -> None:
    """The uniform graph needs none, so none is asked for."""
    grid = five()
    strategy, _ = lead(grid, rounds=1, graph="uniform")
    assert strategy.nodes.roster.features == 0
    assert strategy.ledger.up["0"] == len(Array(np.zeros(650, dtype=np.float32)).data)  # only the model


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_nodes_can_evaluate() -> None:
    """As with Flower's own strategies: `arrays` in, metrics out, averaged by the number of samples."""
    app = client_app(MODEL, data)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:

        assert set(msg.content.array_records["arrays"]) == {"model"}
        client = int(context.node_config["partition-id"])
        return Message(RecordDict({"m": MetricRecord({"place": client, "num-examples": client})}), reply_to=msg)

    strategy = Strategy(KIN, LOCAL, min_nodes=5, evaluate=True)
    result = strategy.start(Direct(app, range(5)), initial_arrays(MODEL), 1, 0.2)
    assert result.evaluate_metrics_clientapp[1]["place"] == pytest.approx((1 + 4 + 9 + 16) / 10)
