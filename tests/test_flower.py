"""The Flower halves in one process: parity with the engine, identity, faults, resume, checks, cost."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from torch import Tensor, nn

import fedkin
from fedkin import Algorithm, FedAvg, Federation, FedKin, FedProx, FedSGD, Local, Schedule, Softmax
from fedkin.errors import BadInput
from fedkin.experiments.records import RunFolder, read_tensors
from fedkin.flower import Strategy, Work, client_app, initial_arrays, introduce, measured
from fedkin.flower.nodes import Introduction, Roster
from fedkin.flower.wire import VECTORS, Order, flatten, pack, payload, unflatten, unpack
from fedkin.graph.similarity import messages
from fedkin.types import Tensors
from flower_grid import Direct, Fault

MODEL = Softmax(64, 10)
LOCAL = Local(epochs=2, batch_size=32, order="shuffled")
KIN = FedKin(step_size=0.05, beta=0.5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Products this small are not worth splitting, and threads that wait for each other crawl on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Five clients whose digits differ."""
    return fedkin.federate(fedkin.load("digits"), clients=5, class_imbalance=10, size_imbalance=1)


@pytest.fixture
def app(federation: Federation) -> ClientApp:
    """Every node has the data of its partition."""
    return client_app(MODEL, lambda context: data(federation, context))


def data(federation: Federation, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """What the node of a partition holds."""
    client = int(context.node_config["partition-id"])
    rows = federation.train.rows(client)
    return federation.train.x[rows], federation.train.y[rows], federation.raw(client)


def lead(
    grid: Direct,
    federation: Federation,
    algorithm: Algorithm = KIN,
    rounds: int = 3,
    timeout: float = 0.2,
    strategy: Strategy | None = None,
    **settings: Any,
) -> tuple[Strategy, list[float]]:
    """Run, and the test loss of each round."""
    strategy = strategy or Strategy(algorithm, LOCAL, **{"min_nodes": 5, **settings})
    evaluate = measured(MODEL, federation, LOCAL.l2)
    result = strategy.start(grid, initial_arrays(MODEL), rounds, timeout, evaluate_fn=evaluate)
    found = result.evaluate_metrics_serverapp
    return strategy, [float(found[t]["test_loss"]) for t in range(1, rounds + 1)]  # type: ignore[arg-type]


# -- parity ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Momentum(Algorithm):
    """An algorithm of the user's own, whose clients remember: v ← v/2 + ∇f, w ← w − γ v."""

    def remember(self, model: Tensor, clients: int) -> Tensors:
        """No velocity yet."""
        return {"velocity": torch.zeros(clients, model.shape[-1])}

    def step(self, w: Any, got: Any, memory: Tensors, gradient: Callable[[Any], Any]) -> tuple[Any, Tensors]:
        """As in the docstring of the class."""
        v = memory["velocity"] / 2 + gradient(w)
        return w - self.step_size * v, {"velocity": v}


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
def test_the_rounds_are_those_of_the_engine(
    federation: Federation, app: ClientApp, algorithm: Algorithm, take_part: int | None
) -> None:
    """Vectorised = one node at a time over Flower, whoever is drawn."""
    expected = fedkin.train(federation, algorithm, local=LOCAL, rounds=4, take_part=take_part).test_loss
    _, losses = lead(Direct(app, range(5)), federation, algorithm, rounds=4, take_part=take_part)
    np.testing.assert_allclose(losses, expected, atol=1e-6, rtol=0)


def test_the_order_of_arrival_changes_nothing(federation: Federation, app: ClientApp) -> None:
    """Places go by partition, not by who came first."""
    strategy, losses = lead(Direct(app, [3, 0, 4, 2, 1]), federation)
    _, expected = lead(Direct(app, range(5)), federation)
    assert losses == expected
    assert strategy.nodes.roster.names == ("0", "1", "2", "3", "4")
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, fedkin.build_graph(federation).adjacency)


@pytest.mark.parametrize("algorithm", [KIN, FedProx(step_size=0.05, alpha=0.5)], ids=["fedkin", "fedprox"])
def test_a_loop_of_the_users_own_makes_the_same_steps(federation: Federation, algorithm: Algorithm) -> None:
    """Plain SGD around `gradient_point`, on batches in order, is the engine's local work (without its L2 penalty)."""
    local = Local(epochs=2, batch_size=32, l2=0.0)
    app = ClientApp()

    def loader(context: Context) -> torch.utils.data.DataLoader[Any]:
        x, y, _ = data(federation, context)
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)

    introduce(app, lambda context: data(federation, context))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        net = nn.Linear(64, 10)
        work = Work(msg, net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(2):
            for x, y in loader(context):
                optimizer.zero_grad()
                with work.gradient_point():
                    nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return work.reply(samples=1)

    strategy = Strategy(algorithm, local, min_nodes=5)
    _, losses = lead(Direct(app, range(5)), federation, strategy=strategy)
    expected = fedkin.train(federation, algorithm, local=local, rounds=3).test_loss
    penalty = LOCAL.l2 / 2 * float((strategy._state.model**2).sum())  # `lead` measures with it
    np.testing.assert_allclose(losses[-1] - penalty, expected[-1], atol=1e-5)


def test_a_torch_module_and_a_data_loader(federation: Federation) -> None:
    """The model may be any module's class, the data a loader; the message is then made of what the loader gives."""

    def loader(context: Context) -> torch.utils.data.DataLoader[Any]:
        x, y, _ = data(federation, context)
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)

    net = nn.Linear(64, 10)
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    result = strategy.start(
        Direct(client_app(lambda: nn.Linear(64, 10), loader), range(5)), ArrayRecord(net.state_dict()), 2, 0.2
    )
    assert set(result.arrays) == {"weight", "bias"}
    assert result.arrays["weight"].shape == (10, 64)
    graph = fedkin.build_graph(federation, pixels="preprocessed")
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, graph.adjacency, rtol=1e-6)


# -- identity ----------------------------------------------------------------------------------------------------------


def test_a_node_that_joins_late_enters_the_graph(federation: Federation, app: ClientApp) -> None:
    """Four begin; the fifth comes after a round, sends its message, and is asked from then on."""
    grid = Direct(app, [0, 1, 2, 4])
    strategy = Strategy(KIN, LOCAL, min_nodes=4)
    seen: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        seen.append(len(strategy.nodes.roster))
        if round == 1:
            grid.join(3)

    strategy.start(grid, initial_arrays(MODEL), 3, 0.2, evaluate_fn=evaluate)
    assert seen == [0, 4, 5, 5]
    assert strategy.nodes.roster.names == ("0", "1", "2", "4", "3")  # nobody's place moved
    order = [0, 1, 2, 4, 3]
    expected = fedkin.build_graph(federation).relabelled(order)
    np.testing.assert_allclose(strategy.nodes.graph.adjacency, expected.adjacency)
    assert [q.metadata.dst_node_id for q in grid.questions if q.metadata.message_type == "query"][-1] == 1003


@pytest.mark.parametrize("absent", ["global", "last"])
def test_one_that_leaves_counts_as_the_algorithm_says(federation: Federation, app: ClientApp, absent: str) -> None:
    """Client 2 leaves after the first round; in the third, its neighbours' u takes w̄ or its last model for it."""
    grid = Direct(app, range(5))
    strategy = Strategy(FedKin(step_size=0.05, beta=0.5, absent=absent), LOCAL, min_nodes=5)
    last: list[Tensor] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            last.append(strategy._state.server["models"][2].clone())
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


def test_a_restarted_node_continues_in_its_place(federation: Federation, app: ClientApp) -> None:
    """It has another node id, the same partition: the result is that of an undisturbed run."""
    grid = Direct(app, range(5))
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    evaluate = measured(MODEL, federation, LOCAL.l2)

    def restart(round: int, arrays: ArrayRecord) -> Any:
        if round == 1:
            grid.leave(1002)
            grid.join(2, node=77)
        return evaluate(round, arrays)

    result = strategy.start(grid, initial_arrays(MODEL), 3, 0.2, evaluate_fn=restart)
    _, expected = lead(Direct(app, range(5)), federation)
    assert result.evaluate_metrics_serverapp[3]["test_loss"] == expected[-1]
    assert strategy.nodes.roster.nodes == (1000, 1001, 77, 1003, 1004)


def test_identity_by_registered_key_ignores_what_the_node_claims(federation: Federation, app: ClientApp) -> None:
    """Names are the keys that the SuperLink knows."""
    strategy, _ = lead(Direct(app, range(5)), federation, rounds=1, identity="key")
    assert strategy.nodes.roster.names[0] == b"key of 1000".hex()


def test_names_sort_by_number() -> None:
    """Partition 10 follows partition 9; known names keep their place and message."""

    def arrival(name: str, node: int) -> Introduction:
        return Introduction(name, node, 1, np.array([float(node)]))

    roster = Roster().joined([arrival(n, i) for i, n in enumerate(["10", "9", "b", "a"])])
    assert roster.names == ("9", "10", "a", "b")
    again = roster.joined([arrival("10", 50), arrival("1", 51)])
    assert again.names == ("9", "10", "a", "b", "1")
    assert again.nodes == (1, 50, 3, 2, 51)
    assert again.messages is not None
    assert again.messages[:, 0].tolist() == [1.0, 0.0, 3.0, 2.0, 51.0]
    saved = Roster.from_tensors(again.tensors())
    assert (saved.names, saved.nodes) == (again.names, again.nodes)


def test_without_similarity_no_message_leaves_a_node(federation: Federation, app: ClientApp) -> None:
    """The uniform graph needs none, so none is asked for."""
    grid = Direct(app, range(5))
    strategy, _ = lead(grid, federation, rounds=1, graph="uniform")
    assert strategy.nodes.roster.features == 0
    assert strategy.ledger.up["0"] == len(Array(np.zeros(650, dtype=np.float32)).data)  # only the model


# -- faults ------------------------------------------------------------------------------------------------------------


def tampered(change: Callable[[np.ndarray[Any, Any]], Any]) -> Fault:
    """A node that changes the model it sends."""

    def fault(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.TRAIN:
            w = reply.content.array_records[VECTORS]["model"].numpy()
            reply.content[VECTORS] = ArrayRecord({"model": Array(change(w))})
        return reply

    return fault


def garbled(question: Message, reply: Message) -> Message:
    """A node that sends bytes which are no array."""
    if question.metadata.message_type == MessageType.TRAIN:
        reply.content[VECTORS] = ArrayRecord({"model": Array("float32", (650,), "numpy.ndarray", b"rubbish")})
    return reply


def renamed(question: Message, reply: Message) -> Message:
    """A node that sends something else."""
    if question.metadata.message_type == MessageType.TRAIN:
        reply.content[VECTORS] = ArrayRecord({"gradient": Array(np.zeros(650, dtype=np.float32))})
    return reply


def silent(question: Message, reply: Message) -> Message | None:
    """A node that does not answer in the rounds."""
    return None if question.metadata.message_type == MessageType.TRAIN else reply


BAD = {
    "shape": (tampered(lambda w: w[:-1]), "shape (649,)"),
    "dtype": (tampered(lambda w: w.astype(np.float64)), "dtype float64"),
    "nan": (tampered(lambda w: np.where(np.arange(650) == 7, np.nan, w).astype(np.float32)), "NaN"),
    "infinite": (tampered(lambda w: w + np.float32(np.inf)), "infinite"),
    "norm": (tampered(lambda w: w + np.float32(100)), "max_norm"),
    "bytes": (garbled, "cannot be read"),
    "names": (renamed, "sent gradient instead of model"),
    "silent": (silent, "no reply in time"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_costs_its_round_that_reply_and_nothing_else(
    federation: Federation, app: ClientApp, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It is refused, logged and recorded with the node and the reason, and the round is that of the other four."""
    fault, reason = BAD[kind]
    grid = Direct(app, range(5))
    grid.faults[3] = fault
    with caplog.at_level("WARNING", logger="flwr.fedkin"):
        strategy, _ = lead(grid, federation, rounds=1, max_norm=10.0, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert list(record["refused"]) == ["3"]
    assert reason in record["refused"]["3"]
    assert any("3: " in line.getMessage() and reason in line.getMessage() for line in caplog.records)
    assert (record["replies"], record["asked"]) == (4, 5)

    honest = Direct(app, range(5))
    honest.faults[3] = silent
    other, _ = lead(honest, federation, rounds=1)
    assert torch.equal(strategy._state.model, other._state.model)
    whole, _ = lead(Direct(app, range(5)), federation, rounds=1)
    assert not torch.equal(strategy._state.model, whole._state.model)


def test_an_error_is_traced_to_its_node(federation: Federation, tmp_path: Path) -> None:
    """Through the message it replies to: what the reply says of its sender is not believed."""
    calls = []

    def broken(context: Context) -> Any:
        calls.append(int(context.node_config["partition-id"]))
        if calls[-1] == 2 and len(calls) > 5:
            raise OSError("disk on fire")
        return data(federation, context)

    grid = Direct(client_app(MODEL, broken), range(5))

    def anonymous(question: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's own errors are
        return reply

    grid.faults[2] = anonymous
    lead(grid, federation, rounds=1, out=tmp_path / "run")
    refused = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["refused"]
    assert list(refused) == ["2"]
    assert "disk on fire" in refused["2"]


def test_a_round_with_too_few_replies_is_repeated(federation: Federation, app: ClientApp, tmp_path: Path) -> None:
    """Three of five fail once, four are needed: the round is done again, and the result is the undisturbed one."""
    grid = Direct(app, range(5))
    failed: set[int] = set()

    def once(question: Message, reply: Message) -> Message:
        node = question.metadata.dst_node_id
        if question.metadata.message_type == MessageType.TRAIN and node not in failed:
            failed.add(node)
            return tampered(lambda w: w[:1])(question, reply)  # type: ignore[return-value]
        return reply

    grid.faults |= {1: once, 2: once, 3: once}
    _, losses = lead(grid, federation, rounds=2, min_replies=4, out=tmp_path / "run")
    _, expected = lead(Direct(app, range(5)), federation, rounds=2)
    assert losses == expected
    first, second = map(json.loads, (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert (first["attempts"], second["attempts"]) == (2, 1)
    assert first["bytes_down"]["0"] == 2 * second["bytes_down"]["0"]  # sent twice


def test_a_round_that_never_succeeds_ends_the_run(federation: Federation, app: ClientApp) -> None:
    """After ten times, with what to do about it."""
    grid = Direct(app, range(5))
    grid.faults |= {i: tampered(lambda w: w[:1]) for i in range(4)}
    with pytest.raises(RuntimeError, match="the same command continues"):
        lead(grid, federation, rounds=1)


def test_a_silent_node_is_asked_again_after_a_sign_of_life(federation: Federation, app: ClientApp) -> None:
    """Killed machines stay listed for a minute: waiting for them in every round would stop the federation."""
    grid = Direct(app, range(5))
    grid.heartbeat = dict.fromkeys(grid.nodes, 100.0)
    grid.faults[4] = silent
    strategy = Strategy(KIN, LOCAL, min_nodes=5)
    asked: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        asked.append(len(strategy._asked))
        if round == 2:
            grid.heartbeat[1004] = 130.0
            del grid.faults[4]

    strategy.start(grid, initial_arrays(MODEL), 4, 0.2, evaluate_fn=evaluate)
    assert asked == [0, 5, 4, 5, 5]


@pytest.mark.parametrize("kind", ["message", "name"])
def test_a_node_that_introduces_itself_badly_is_left_out(
    federation: Federation, app: ClientApp, tmp_path: Path, kind: str
) -> None:
    """Its message must be a unit vector like the others', and it must say who it is."""
    grid = Direct(app, range(5))

    def odd(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == MessageType.QUERY:
            if kind == "message":
                reply.content[VECTORS] = ArrayRecord({"message": Array(np.full(64, np.nan))})
            else:
                del reply.content["node"]
        return reply

    grid.faults[4] = odd
    strategy, _ = lead(grid, federation, rounds=1, min_nodes=4, out=tmp_path / "run")
    assert strategy.nodes.roster.names == ("0", "1", "2", "3")
    assert "node 1004" in json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["refused"]


def test_a_late_node_with_the_data_of_another_is_refused(federation: Federation, app: ClientApp) -> None:
    """Two with the same data would weigh infinitely: the run must not fall over the late one."""
    grid = Direct(
        client_app(MODEL, lambda c: data(federation, _at(c, int(c.node_config["partition-id"]) % 5))), range(5)
    )
    strategy = Strategy(KIN, LOCAL, min_nodes=5)

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.join(7)

    strategy.start(grid, initial_arrays(MODEL), 2, 0.2, evaluate_fn=evaluate)
    assert len(strategy.nodes.roster) == 5
    assert "hold the same data" in strategy.ledger.refused["7"]


def _at(context: Context, partition: int) -> Context:
    return Context(1, context.node_id, {"partition-id": partition}, RecordDict(), {})


# -- resume ------------------------------------------------------------------------------------------------------------


class Dies(Exception):  # noqa: N818 - it is no error of ours
    """The server app dies."""


@pytest.mark.parametrize("damage", [False, True], ids=["sound", "newest checkpoint damaged"])
def test_a_run_that_died_continues_from_its_last_complete_round(
    federation: Federation, app: ClientApp, tmp_path: Path, damage: bool
) -> None:
    """All that matters is in the folder: w̄, last models, roster and messages; nobody is asked who it is again."""
    evaluate = measured(MODEL, federation, LOCAL.l2)

    def mortal(round: int, arrays: ArrayRecord) -> Any:
        if round == 3:
            raise Dies
        return evaluate(round, arrays)

    def strategy(folder: str) -> Strategy:
        return Strategy(FedKin(step_size=0.05, beta=0.5, absent="last"), LOCAL, min_nodes=5, out=tmp_path / folder)

    with pytest.raises(Dies):
        strategy("a").start(Direct(app, range(5)), initial_arrays(MODEL), 5, 0.2, evaluate_fn=mortal)
    if damage:
        newest = sorted((tmp_path / "a").glob("checkpoint-*"))[-1]
        newest.write_bytes(newest.read_bytes()[:-9])
    grid = Direct(app, range(5))
    _, losses = lead(grid, federation, rounds=5, strategy=strategy("a"))
    _, expected = lead(Direct(app, range(5)), federation, rounds=5, strategy=strategy("b"))
    assert losses == expected
    assert not [q for q in grid.questions if q.metadata.message_type == MessageType.QUERY]
    assert {q.metadata.group_id for q in grid.questions} == ({"2", "3", "4", "5"} if damage else {"3", "4", "5"})
    done = RunFolder(tmp_path / "a").records()
    assert [record["round"] for record in done] == [0, 1, 2, 3, 4]


def test_a_run_that_continues_waits_for_its_nodes(federation: Federation, app: ClientApp, tmp_path: Path) -> None:
    """Where the SuperLink died too, nodes come back one by one: the next round is not done by the first of them."""

    def strategy(folder: str) -> Strategy:
        return Strategy(KIN, LOCAL, min_nodes=5, out=tmp_path / folder)

    def mortal(round: int, arrays: ArrayRecord) -> None:
        if round == 3:
            raise Dies

    class Slow(Direct):
        def get_nodes(self) -> Iterable[NodeInfo]:
            if len(self.nodes) < 5:
                self.join(len(self.nodes), node=50 + len(self.nodes))
            return super().get_nodes()

    with pytest.raises(Dies):
        strategy("a").start(Direct(app, range(5)), initial_arrays(MODEL), 4, 5.0, evaluate_fn=mortal)
    slow = Slow(app, range(2))
    strategy("a").start(slow, initial_arrays(MODEL), 4, 5.0)
    lead(Direct(app, range(5)), federation, rounds=4, strategy=strategy("b"))
    (one, _), (other, _) = (read_tensors(tmp_path / folder / "model.safetensors") or ({}, {}) for folder in "ab")
    assert torch.equal(one["model"], other["model"])
    assert [record["replies"] for record in RunFolder(tmp_path / "a").records()] == [5, 5, 5, 5]


def test_a_finished_run_is_kept_and_another_is_not_overwritten(
    federation: Federation, app: ClientApp, tmp_path: Path
) -> None:
    """The same command again does nothing; other settings are an error."""
    _, losses = lead(Direct(app, range(5)), federation, out=tmp_path / "run")
    grid = Direct(app, range(5))
    _, again = lead(grid, federation, out=tmp_path / "run")
    assert again == losses
    assert not grid.questions
    with pytest.raises(BadInput, match="beta"):
        lead(grid, federation, FedKin(step_size=0.05, beta=0.9), out=tmp_path / "run")


def test_the_folder_is_read_by_report(federation: Federation, app: ClientApp, tmp_path: Path) -> None:
    """The same records as the engine's, so the same tables."""
    from fedkin.reports.runs import collect

    lead(Direct(app, range(5)), federation, out=tmp_path / "flower" / "fedkin")
    (run,) = collect(tmp_path)
    assert (run.algorithm, run.status, run.experiment) == ("fedkin", "finished", "flower")
    assert run.final_accuracy > 0.5


# -- cost --------------------------------------------------------------------------------------------------------------


def test_bytes_by_hand(federation: Federation, app: ClientApp) -> None:
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
        strategy, _ = lead(Direct(app, range(5)), federation, algorithm, rounds=1, **settings)
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


def test_half_precision_hardly_changes_the_result(federation: Federation, app: ClientApp) -> None:
    """Ten rounds: the test loss differs in the sixth digit."""
    _, exact = lead(Direct(app, range(5)), federation, rounds=10)
    _, rounded = lead(Direct(app, range(5)), federation, rounds=10, half=True)
    assert exact != rounded
    np.testing.assert_allclose(exact, rounded, atol=1e-5)


# -- the wire ----------------------------------------------------------------------------------------------------------


def test_an_order_arrives_as_it_was_sent() -> None:
    """Also what is None, and an algorithm of the user's own."""
    local = Local(epochs=3, batch_size=None, clip=1.5)
    for algorithm in (KIN, Momentum(step_size=0.25)):
        order = Order(algorithm, local, seed=7, round=2, client=4)
        assert Order.unpack(order.pack()) == order


def test_an_unknown_algorithm_is_an_error_at_the_node() -> None:
    """With what to do about it."""
    record = Order(KIN, LOCAL, 0, 0, 0).pack()
    record["algorithm"] = "FedKim"
    with pytest.raises(BadInput, match=r"FedKim.*import it in the client app"):
        Order.unpack(record)


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


def test_the_message_is_the_engines(federation: Federation, app: ClientApp) -> None:
    """The first principal component of the raw features."""
    strategy, _ = lead(Direct(app, range(5)), federation, rounds=1)
    sent = strategy.nodes.roster.messages
    assert sent is not None
    np.testing.assert_allclose(sent, messages(federation), atol=1e-12)


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
    """One sentence each."""
    with pytest.raises(BadInput, match=said):
        Strategy(KIN, **settings)


def test_nodes_can_evaluate(federation: Federation) -> None:
    """As with Flower's own strategies: `arrays` in, metrics out, averaged by the number of samples."""
    app = client_app(MODEL, lambda context: data(federation, context))

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        from flwr.app import MetricRecord

        assert set(msg.content.array_records["arrays"]) == {"model"}
        client = int(context.node_config["partition-id"])
        return Message(RecordDict({"m": MetricRecord({"place": client, "num-examples": client})}), reply_to=msg)

    strategy = Strategy(KIN, LOCAL, min_nodes=5, evaluate=True)
    result = strategy.start(Direct(app, range(5)), initial_arrays(MODEL), 1, 0.2)
    assert result.evaluate_metrics_clientapp[1]["place"] == pytest.approx((1 + 4 + 9 + 16) / 10)


def test_payload_counts_arrays() -> None:
    """All of them, in all records."""
    one = ArrayRecord({"a": Array(np.zeros(2, dtype=np.float32))})
    assert payload(RecordDict({"x": one, "y": one})) == 2 * (8 + 128)
