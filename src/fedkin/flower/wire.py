"""What travels between the server and the nodes of a Flower federation, and the checks on what arrives.

    server → node   query          whether a message is wanted for the graph
    node → server                  the node's name and number of samples, and its message mᵢ
    server → node   query.losses   a model w, if the algorithm selects clients by their losses
    node → server                  fᵢ(w)
    server → node   train          w̄ and what else the algorithm sends (FedKin: the node's own uᵢ), and the order
    node → server                  what the algorithm replies: wᵢ, and whatever else

Vectors are flat: one array with all parameters, in the order of the model's parameters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms import ALGORITHMS, Algorithm, Local, algorithm_named, name_of
from fedkin.algorithms.registry import settings_of
from fedkin.errors import BadInput, nearest
from fedkin.types import Floats, Tensors

# The records of a message. FIRST holds the first global model, for a client's first round.
VECTORS, FIRST, ORDER, NODE, METRICS = "vectors", "first", "work", "node", "metrics"
LOSSES = "query.losses"  # the type of a message that asks for fᵢ(w)

# Endings of the names of arrays that travel in half precision.
DIFFERENCE, HALF, SCALE = " − model", ", half", ", scale"


# -- vectors -----------------------------------------------------------------------------------------------------------


def pack(vectors: Mapping[str, Tensor], half: bool = False) -> ArrayRecord:
    """Vectors (q,) as they travel: in full, or with `half` in half precision those that are as long as the model.

    Of such a vector v either v or v − w̄ is sent, whichever has the smaller largest entry, divided by that entry: half
    precision then keeps 11 bits of the large entries, however small all of them are. `model` itself stays in full.
    """
    arrays: dict[str, Array] = {}
    for name, vector in vectors.items():
        if half and name != "model" and vector.shape == vectors["model"].shape:
            label, rest = min(
                (name, vector),
                (name + DIFFERENCE, vector - vectors["model"]),
                key=lambda pair: float(pair[1].abs().max()),
            )
            scale = rest.abs().max().clamp(min=torch.finfo(torch.float32).tiny).reshape(1)
            arrays[label + HALF] = Array((rest / scale).half().cpu().numpy())
            arrays[label + SCALE] = Array(scale.cpu().numpy())
        else:
            arrays[name] = Array(vector.detach().cpu().contiguous().numpy())
    return ArrayRecord(arrays)


def unpack(record: ArrayRecord) -> Tensors:
    """The vectors that were packed."""
    found = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    vectors = {name: v for name, v in found.items() if not name.endswith((HALF, SCALE))}
    for name, v in found.items():
        if name.endswith(HALF):
            label = name.removesuffix(HALF)
            rest = v.float() * found[label + SCALE]
            vectors[label.removesuffix(DIFFERENCE)] = vectors["model"] + rest if label.endswith(DIFFERENCE) else rest
    return vectors


def payload(content: RecordDict) -> int:
    """Bytes of the arrays in a message: the part that grows with the model."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def flatten(arrays: ArrayRecord) -> Tensor:
    """All arrays of a model in one vector, (P,) float32."""
    parts = [array.numpy() for array in arrays.values()]
    if not parts:
        raise BadInput("the initial arrays are empty: pass ArrayRecord(model.state_dict())")
    if other := next((p.dtype for p in parts if p.dtype != np.float32), None):
        raise BadInput(
            f"the initial arrays contain {other}, but only float32 parameters can be averaged: "
            "use a model in float32 without running statistics (GroupNorm or LayerNorm instead of BatchNorm)"
        )
    return torch.from_numpy(np.concatenate([p.reshape(-1) for p in parts]))


def unflatten(vector: Tensor, like: ArrayRecord) -> ArrayRecord:
    """The vector (P,) as arrays with the names and shapes of another record."""
    arrays: dict[str, Array] = {}
    first = 0
    for name, array in like.items():
        size = int(np.prod(array.shape, dtype=np.int64))
        part = vector[first : first + size].detach().cpu().numpy()
        arrays[name] = Array(np.ascontiguousarray(part.reshape(array.shape)))
        first += size
    return ArrayRecord(arrays)


# -- orders ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What the server asks of a node in a round: the algorithm as it is in that round, and the local work.

    client   the client's number among all: batches are drawn under (seed, round, client)
    counted  the last round in which the server used this client's reply, −1 if none: its memory is the one it kept
             after that round
    """

    algorithm: Algorithm
    local: Local
    seed: int
    round: int
    client: int
    counted: int = -1

    def pack(self) -> ConfigRecord:
        """As plain values with dotted names; what is None is left out."""
        flat: dict[str, Any] = {"algorithm": name_of(self.algorithm)}
        flat |= {name: getattr(self, name) for name in ("seed", "round", "client", "counted")}
        flat |= {f"algorithm.{name}": value for name, value in settings_of(self.algorithm).items()}
        flat |= {f"local.{name}": value for name, value in asdict(self.local).items()}
        sent = {name: value for name, value in flat.items() if value is not None}
        if wrong := next((name for name, value in sent.items() if not isinstance(value, int | float | str)), None):
            raise BadInput(
                f"{wrong} of {flat['algorithm']} is a {type(sent[wrong]).__name__}, which cannot be sent to nodes: "
                "use fields that are numbers or words"
            )
        return ConfigRecord(sent)

    @classmethod
    def unpack(cls, record: ConfigRecord) -> "Order":
        """Build the algorithm and the local work again."""
        kinds: dict[str, type[Any]] = {"algorithm": known_algorithm(str(record["algorithm"])), "local": Local}
        parts: list[Any] = []
        for part, kind in kinds.items():
            own = {f.name for f in fields(kind)}
            sent = {name.partition(".")[2] for name in record if name.startswith(f"{part}.")}
            if sent - own:
                raise BadInput(
                    f"this node's {kind.__name__} has no field '{min(sent - own)}': install the server's version of it"
                )
            parts.append(kind(**{name: record.get(f"{part}.{name}") for name in own}))  # what was left out was None
        numbers: dict[str, Any] = {key: record[key] for key in ("seed", "round", "client", "counted")}
        return cls(*parts, **numbers)


def known_algorithm(name: str) -> type[Algorithm]:
    """The class of that name, if it is built in or if the client app has imported it.

    Nothing is imported because a server names it: it could otherwise run any module that the node can import.
    """
    if name in ALGORITHMS:
        return algorithm_named(name)
    imported = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in _classes(Algorithm)}
    if name not in imported:
        close = nearest(name, {*ALGORITHMS, *imported})
        raise BadInput(f"this node knows no algorithm '{name}'{close}: import it in the client app")
    return imported[name]


def _classes(root: type[Algorithm]) -> Iterator[type[Algorithm]]:
    """A class and all that are derived from it."""
    yield root
    for kind in root.__subclasses__():
        yield from _classes(kind)


# -- checks ------------------------------------------------------------------------------------------------------------


class Refused(ValueError):  # noqa: N818 - reads as what it is
    """What a node sent cannot be used; the message says why."""


def checked_vectors(
    content: RecordDict, expected: Mapping[str, tuple[int, ...]], model: Tensor, max_norm: float | None
) -> Tensors:
    """The vectors of a reply, or `Refused`: names, shapes, dtype, finite values, ‖w − w̄‖ ≤ max_norm.

    expected  the shape (q,) of each vector, by name
    model     w̄, (P,)
    """
    record = content.array_records.get(VECTORS)
    if record is None or set(record) != set(expected):
        sent = "nothing" if record is None else ", ".join(sorted(record)) or "nothing"
        raise Refused(f"sent {sent} instead of {', '.join(sorted(expected))}")
    vectors: Tensors = {}
    for name, array in record.items():
        found = _decoded(array, name)
        if found.dtype != np.float32:
            raise Refused(f"{name} has dtype {found.dtype} instead of float32")
        if found.shape != expected[name]:
            raise Refused(f"{name} has shape {found.shape} instead of {expected[name]}")
        if not np.isfinite(found).all():
            raise Refused(f"{name} contains NaN or infinite values")
        vectors[name] = torch.from_numpy(found.copy())
    if max_norm is not None and "model" in vectors:
        norm = float(torch.linalg.vector_norm(vectors["model"].double() - model.double()))
        if norm > max_norm:
            raise Refused(f"the model lies {norm:.3g} from the global one, more than max_norm = {max_norm:g}")
    return vectors


def checked_message(content: RecordDict, features: int | None) -> Floats:
    """The message of a node, or `Refused`: a finite unit vector in float64 with as many entries as the others'."""
    record = content.array_records.get(VECTORS)
    if record is None or set(record) != {"message"}:
        raise Refused("sent no message")
    m = _decoded(record["message"], "message")
    if m.dtype != np.float64 or m.ndim != 1 or m.size == 0:
        raise Refused(f"the message is {m.dtype} of shape {m.shape} instead of one float64 vector")
    if features is not None and m.size != features:
        raise Refused(f"the message has {m.size} entries where the others have {features}")
    if not np.isfinite(m).all() or abs(np.linalg.norm(m) - 1) > 1e-6:
        raise Refused("the message is no unit vector")
    return m


def checked_loss(content: RecordDict) -> float:
    """The loss of a node, or `Refused`: a finite number."""
    loss = content.metric_records.get(METRICS, MetricRecord()).get("loss")
    if not isinstance(loss, float) or not np.isfinite(loss):
        raise Refused("sent no finite loss")
    return loss


def _decoded(array: Array, name: str) -> NDArray[Any]:
    try:
        return np.asarray(array.numpy())
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise Refused(f"{name} cannot be read ({error})") from None
