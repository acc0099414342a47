"""Checks on what nodes send. Whatever it is, it is used, or refused with a reason; it never ends the run.

Bytes of a node are only interpreted inside `guarded`, and memory is only taken after the header of an array has been
compared with what is expected and with the number of bytes that were received.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedkin.flower.wire import METRICS, NODE, VECTORS
from fedkin.types import Floats, Tensors

HEADER = 1024  # bytes in which the header of an array must end; NumPy writes 128
# Flower's codes: the message, its reply or the node is not available.
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
LONGEST_NAME = 80  # characters
MOST_SAMPLES = 10**12  # at one node; sums over nodes stay in 64 bits
NUM_EXAMPLES = "num-examples"  # the number of samples in a node's metrics, as Flower's own strategies call it


class Refused(ValueError):  # noqa: N818 - reads as what it is
    """What a node sent cannot be used; the message says why."""


class Unfit(Refused):
    """A node does not belong to this run: it has another model, or other data than before."""


class Unavailable(Refused):
    """A node has gone, as the SuperLink says in its name."""


class NotFinite(Refused):
    """A vector of a node contains NaN or infinite values."""


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn everything that fails inside into `Refused`: crafted bytes raise nearly any exception in their readers."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{what} cannot be read ({type(error).__name__})") from None  # its text may be the node's


def in_line(text: object, most: int = 160) -> str:
    """Text of a node as a short printable line for logs and records."""
    line = next(iter(str(text)[: 4 * most].strip().splitlines()), "")
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= most else line[: most - 1] + "…"


def content_of(reply: Message) -> RecordDict:
    """The content of a reply, or `Refused` with its error in one line."""
    with guarded("the reply"):
        if reply.has_error():
            kind = Unavailable if reply.error.code in GONE else Refused
            raise kind(f"error {reply.error.code}: {in_line(reply.error.reason or '') or 'no reason given'}")
        return reply.content


# -- arrays ------------------------------------------------------------------------------------------------------------


def decoded(array: Array, name: str, dtype: type[np.generic], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """An array of this dtype and shape (None: any vector), or `Refused`.

    Its header and the number of its bytes are compared first, so that nothing is allocated for what is only claimed.
    Arrays of objects, which are pickles, have another dtype.
    """
    with guarded(name):
        stream = BytesIO(array.data[:HEADER])
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
        found_shape, _, found_dtype = read(stream, max_header_size=HEADER)
        if found_dtype != dtype:
            raise Refused(f"{name} has dtype {in_line(found_dtype, 40)} instead of {np.dtype(dtype)}")
        wanted = len(found_shape) == 1 if shape is None else found_shape == shape
        if not wanted or min(found_shape, default=0) < 0:
            raise Refused(f"{name} has shape {in_line(found_shape, 40)} instead of {shape or 'one vector'}")
        count, sent = math.prod(found_shape), len(array.data) - stream.tell()
        if sent != count * found_dtype.itemsize:
            raise Refused(f"{name} cannot be read ({sent} bytes instead of {in_line(count * found_dtype.itemsize)})")
        values = np.frombuffer(array.data, found_dtype, count, stream.tell()).reshape(found_shape)
        if not np.isfinite(values).all():
            raise NotFinite(f"{name} contains NaN or infinite values")
        return values.copy()


def checked_vectors(content: RecordDict, expected: Mapping[str, tuple[int, ...]]) -> Tensors:
    """The vectors of a reply, or `Refused`: names, shapes (q,), dtype, finite values."""
    with guarded("the vectors"):
        record = content.array_records.get(VECTORS)
        if record is None or set(record) != set(expected):
            sent = "nothing" if record is None else in_line(", ".join(sorted(record))) or "nothing"
            raise Refused(f"sent {sent} instead of {', '.join(sorted(expected))}")
        return {name: torch.from_numpy(decoded(record[name], name, np.float32, expected[name])) for name in expected}


OTHER_LOOP = {
    False: "trains with a loop of its own: set own_loops = True, or use client_app at the nodes",
    True: "has no training loop of its own: set own_loops = False, or use Work at the nodes",
}


def check_loop(content: RecordDict, own_loops: bool) -> None:
    """`Refused` if a reply is not of the kind of loop on record, as epochs and batches on record would be wrong."""
    if bool(content.config_records.get(NODE, ConfigRecord()).get("own-loop", own_loops)) != own_loops:
        raise Refused(OTHER_LOOP[own_loops])


# -- introductions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself.

    name        of its client
    node        Flower's id of the node
    samples     how many the client has
    message     mᵢ; empty if the graph needs none
    parameters  how many its model has, 0 if it does not say
    place       what new clients are numbered by; the name if empty
    """

    name: str
    node: int
    samples: int
    message: Floats
    parameters: int = 0
    place: str = ""


def checked_introduction(reply: Message, node: int, with_message: bool) -> Introduction:
    """What a node said of itself, or `Refused`: a short name, a number of samples, and a unit vector if wanted."""
    with guarded("the introduction"):
        content = content_of(reply)
        said = content.config_records.get(NODE, ConfigRecord())
        name, samples, parameters = said.get("name"), said.get("samples"), said.get("parameters", 0)
        if not isinstance(name, str) or not name or not _is_count(samples) or not _is_count(parameters, 0):
            raise Refused("did not say its name and number of samples")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise Refused(f"has a name of more than {LONGEST_NAME} printable characters")
        m = checked_message(content) if with_message else np.zeros(0)
        return Introduction(name, node, int(samples), m, int(parameters))  # type: ignore[arg-type]


def checked_message(content: RecordDict) -> Floats:
    """The message of a node, or `Refused`: a finite unit vector in float64."""
    record = content.array_records.get(VECTORS)
    if record is None or set(record) != {"message"}:
        raise Refused("sent no message")
    m = decoded(record["message"], "message", np.float64, None)
    if m.size == 0 or abs(np.linalg.norm(m) - 1) > 1e-6:
        raise Refused("the message is no unit vector")
    return m


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_SAMPLES


# -- numbers -----------------------------------------------------------------------------------------------------------


def checked_loss(content: RecordDict) -> float:
    """The loss of a node, or `Refused`: a finite number."""
    with guarded("the loss"):
        loss = content.metric_records.get(METRICS, MetricRecord()).get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            raise Refused("sent no finite loss")
        return loss


def checked_metrics(content: RecordDict, needs_samples: bool = False) -> dict[str, float]:
    """The finite numbers among a node's metrics; `Refused` if it does not say its number of samples but has to."""
    with guarded("the metrics"):
        sent = next(iter(content.metric_records.values()), MetricRecord())
        found = {k: float(v) for k, v in sent.items() if isinstance(v, int | float) and math.isfinite(v)}
        if needs_samples and not 0 <= found.get(NUM_EXAMPLES, -1) <= MOST_SAMPLES:
            raise Refused(f"did not say its number of samples ({NUM_EXAMPLES})")
        return found


def check_noise(content: RecordDict, asked: Mapping[str, float]) -> None:
    """`Refused` if a node does not confirm that it has clipped its upload and added noise as it was asked to."""
    said = content.config_records.get(NODE, ConfigRecord())
    if any(said.get(name) != value for name, value in asked.items()):
        raise Refused("did not clip its upload and add noise: install the server's version of fedkin")
