"""One node may send anything: the server app goes on, the model stays finite, and the node is named."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin import Algorithm, Local
from fedkin.algorithms import Round, ServerState
from fedkin.flower import Strategy, client_app, initial_arrays
from fedkin.flower.checks import Refused, checked_introduction, checked_loss, checked_metrics, checked_vectors, decoded
from fedkin.flower.wire import LOSSES, METRICS, NODE, VECTORS
from fedkin.types import Integers
from flower_grid import Direct
from flower_nodes import MODEL, data
from fuzz import assert_sentence, examples

BAD = 4  # the partition of the node that sends anything
ROUNDS = 2


def few(context: Context) -> Any:
    """Ten samples."""
    return tuple(part[:10] for part in data(context))


APP = client_app(MODEL, few)


@APP.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """What the honest nodes report."""
    return Message(RecordDict({"m": MetricRecord({"loss": 1.0, "num-examples": 10})}), reply_to=msg)


class AllByLoss(Algorithm):
    """Asks all for their losses, and selects all that answer."""

    def select(self, server: ServerState, round: Round, losses: Callable[[Tensor, Integers], Tensor]) -> Integers:
        assert losses(server["model"], round.who).isfinite().all()
        return round.who


# -- arrays ------------------------------------------------------------------------------------------------------------


def npy(values: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def claimed(header: str, rest: bytes = b"") -> bytes:
    """An array whose header says what it likes."""
    text = header.encode("latin1", "replace")[:60_000] + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (10L, 0xffffffffffffffffffffffff), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (650,), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': 650, }",
    "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (650,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "(" * 300 + ")" * 300 + "), }",
    "(" * 9_000,
    "-" * 900 + "1",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 900 + ",), }",
    "{'descr': '<U999999999', 'fortran_order': False, 'shape': (650,), }",
    "'" * 3,
    "{'descr': '<f4', 'fortran_order': False, 'shape': (650,), ",
    "\x00\xff\x80",
    "__import__('os').abort()",
]
HONEST = npy(np.zeros(650, dtype=np.float32))
NUMBERS = [np.nan, np.inf, -np.inf, 1e30, -3e38, 1e-40]
DTYPES = ["<f8", ">f4", "<f2", "<i4", "|b1", "<c8", "|S4", "<M8[s]", "|V4"]


def flipped(place: int, value: int) -> bytes:
    changed = bytearray(HONEST)
    changed[place] = value
    return bytes(changed)


RAW = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=50).map(lambda rest: b"PK\x03\x04" + rest),
    st.binary(max_size=50).map(lambda rest: b"\x93NUMPY" + rest),
    st.binary(max_size=50).map(lambda rest: b"\x80\x04" + rest),  # a pickle
    st.integers(0, len(HONEST) - 1).map(lambda end: HONEST[:end]),
    st.builds(flipped, st.integers(0, 127), st.integers(0, 255)),
    st.sampled_from(HEADERS).map(claimed),
    st.text(max_size=60).map(claimed),
    st.sampled_from(DTYPES).map(lambda dtype: npy(np.zeros(650, dtype=dtype))),
    st.sampled_from([(0,), (1,), (649,), (651,), (65, 10), (1, 650), ()]).map(lambda s: npy(np.zeros(s, np.float32))),
    st.sampled_from(NUMBERS).map(lambda v: npy(np.full(650, v, dtype=np.float32))),
    st.sampled_from(NUMBERS).map(lambda v: npy(np.full(64, v))),
    st.sampled_from([1, 3, 64, 65, 10**5]).map(lambda n: npy(np.eye(1, n)[0])),
)
KINDS = st.sampled_from(["numpy.ndarray"] * 5 + ["", "torch", "pickle"])
ARRAYS = st.builds(lambda data, stype: Array("float32", (650,), stype, data), RAW, KINDS)


# -- records -----------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=8) | st.sampled_from(
    ["9" * 5000, "x" * 10**5, "0", "4", "\n", "\ud800", "٣", "²", "../..", "1e9"]
)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 1, 10**12, 2**62])
FLOATS = st.floats() | st.sampled_from([1e308, -1e308, 0.0])
NAMES = st.sampled_from(["model", "message", "", "change", "x" * 1000, "\n"])
SCALARS = INTEGERS | FLOATS
LISTS = st.lists(INTEGERS, max_size=3) | st.lists(FLOATS, max_size=3)
CONFIGS: st.SearchStrategy[Any] = (
    SCALARS | WORDS | st.booleans() | st.binary(max_size=9) | LISTS | st.lists(WORDS, max_size=2)
)
KEYS = st.sampled_from(["num-examples", "loss", "name", "samples", "parameters", "memory-lost", "place"])
RECORDS = st.one_of(
    st.dictionaries(NAMES, ARRAYS, max_size=2).map(ArrayRecord),
    st.dictionaries(KEYS | st.text(max_size=4), SCALARS | LISTS, max_size=4).map(MetricRecord),
    st.dictionaries(KEYS | st.text(max_size=4), CONFIGS, max_size=4).map(ConfigRecord),
)
PLACES = st.sampled_from([VECTORS, VECTORS, METRICS, NODE, "m", "arrays", "x" * 300])
# What is put into an honest reply; an error or nothing instead of it; None: the honest reply.
REPLIES: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"put": st.dictionaries(PLACES, RECORDS, min_size=1, max_size=3), "only": st.booleans()}),
    st.builds(dict, error=st.tuples(st.integers(0, 9), WORDS | st.none())),
    st.just({"silent": True}),
    st.none(),
)
KINDS_OF_MESSAGES = (MessageType.QUERY, LOSSES, MessageType.TRAIN, MessageType.EVALUATE)


def spoiled(how: dict[str, Any] | None, question: Message, reply: Message) -> Message | None:
    if how is None:
        return reply
    if "silent" in how:
        return None
    if "error" in how:
        return Message(Error(*how["error"]), reply_to=question)
    content = RecordDict() if how["only"] or reply.has_error() else reply.content
    for name, record in how["put"].items():
        if name in content:
            del content[name]
        content[name] = record
    return Message(content, reply_to=question)


def is_sound(kind: str, question: Message, reply: Message | None) -> bool:
    """Whether a reply can be used, by the checks alone: they return, or refuse with a sentence."""
    if reply is None or reply.has_error():
        return False
    try:
        if kind == MessageType.QUERY:
            return checked_introduction(reply, 1, True).message.size == 64
        if kind == LOSSES:
            checked_loss(reply.content)
        elif kind == MessageType.TRAIN:
            sent = checked_vectors(reply.content, {"model": (650,)})["model"].double()
            checked_metrics(reply.content)
            return float(sent.norm()) < 2.0  # larger ones may be refused for their size
        else:
            checked_metrics(reply.content, needs_samples=True)
    except Refused as reason:
        assert_sentence(reason)
        return False
    return True


@given(st.fixed_dictionaries(dict.fromkeys(KINDS_OF_MESSAGES, REPLIES)))
@examples(12)
def test_a_node_may_send_anything(hows: dict[str, Any]) -> None:
    """At introductions, losses, training and evaluation: four honest nodes and one that is not."""
    grid = Direct(APP, range(5))
    faulty: set[str] = set()

    def fault(question: Message, reply: Message) -> Message | None:
        kind = question.metadata.message_type
        sent = spoiled(hows[kind], question, reply)
        if hows[kind] is not None and not is_sound(kind, question, sent):
            faulty.add(kind)
        return sent

    grid.faults[BAD] = fault
    named: set[str] = set()
    honest: set[str] = set()
    strategy = Strategy(AllByLoss(step_size=0.1), Local(epochs=1), min_nodes=4, evaluate=True)

    def note(round: int, _: ArrayRecord) -> None:
        if round:
            for name, reason in strategy.ledger.refused.items():
                assert reason.isprintable(), reason
                assert len(reason) < 600, reason
                (honest if name in "0123" else named).add(name)

    result = strategy.start(grid, initial_arrays(MODEL), ROUNDS, 0.05, evaluate_fn=note)
    assert strategy._state.round == ROUNDS
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert {"0", "1", "2", "3"} <= set(strategy.nodes.roster.names)
    assert honest == set()
    if faulty - {MessageType.EVALUATE}:
        assert named, faulty


@given(RAW, st.sampled_from([np.float32, np.float64]), st.sampled_from([None, (650,), (0,), (3, 4)]))
@examples(150)
def test_bytes_are_an_array_or_refused(raw: bytes, dtype: Any, shape: tuple[int, ...] | None) -> None:
    """What is read is what NumPy reads, without more memory than was sent."""
    try:
        found = decoded(Array("float32", (1,), "numpy.ndarray", raw), "model", dtype, shape)
    except Refused as reason:
        assert_sentence(reason)
        return
    np.testing.assert_array_equal(found, np.load(io.BytesIO(raw), allow_pickle=False))
    assert found.dtype == dtype
    assert found.nbytes <= len(raw)


@pytest.mark.parametrize("header", HEADERS)
def test_headers_that_claim_too_much_are_refused(header: str) -> None:
    """None of them takes memory or time, and none is evaluated."""
    for rest in (b"", b"\0" * 2600):
        with pytest.raises(Refused):
            decoded(Array("float32", (650,), "numpy.ndarray", claimed(header, rest)), "model", np.float32, (650,))
