"""What travels between the server and the nodes of a Flower federation, and the checks on what arrives.

    server → node   QUERY   whether a message is asked for
    node → server           the node's name and number of samples, and its message mᵢ
    server → node   TRAIN   w̄ and what else the algorithm sends (FedKin: the node's own uᵢ), and the work to do
    node → server           what the algorithm replies: wᵢ

Vectors are flat: one array of all parameters, in the order of the model's parameters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms import Algorithm
from fedkin.algorithms.local import Local
from fedkin.errors import BadInput, nearest
from fedkin.types import Tensors

VECTORS, WORK, NODE, METRICS = "vectors", "work", "node", "metrics"  # the records of a message

# Suffixes of a vector that travels as its difference to w̄: in half precision, and what it was divided by.
HALF, SCALE = " − model, half", " − model, scale"


# -- vectors -----------------------------------------------------------------------------------------------------------


def pack(vectors: Mapping[str, Tensor], half: bool = False) -> ArrayRecord:
    """Vectors (P,) as they travel: in full, or all but `model` as their difference to it in half precision.

    A difference is divided by its largest entry first, so that half precision keeps 11 bits of the large entries
    however small all of them are. It takes 2 bytes a parameter instead of 4.
    """
    arrays: dict[str, Array] = {}
    for name, vector in vectors.items():
        if half and name != "model":
            difference = vector - vectors["model"]
            scale = difference.abs().max().clamp(min=torch.finfo(torch.float32).tiny).reshape(1)
            arrays[name + HALF] = Array((difference / scale).half().cpu().numpy())
            arrays[name + SCALE] = Array(scale.cpu().numpy())
        else:
            arrays[name] = Array(vector.detach().cpu().contiguous().numpy())
    return ArrayRecord(arrays)


def unpack(record: ArrayRecord) -> Tensors:
    """The vectors that were packed."""
    found = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    vectors = {name: v for name, v in found.items() if not name.endswith((HALF, SCALE))}
    for name, v in found.items():
        if name.endswith(HALF):
            plain = name.removesuffix(HALF)
            vectors[plain] = vectors["model"] + v.float() * found[plain + SCALE]
    return vectors


def payload(content: RecordDict) -> int:
    """Bytes of the arrays in a message: what grows with the model."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def flatten(arrays: ArrayRecord) -> Tensor:
    """All arrays of a model in one vector, (P,) float32."""
    parts = [array.numpy() for array in arrays.values()]
    if not parts:
        raise BadInput("the initial arrays are empty: pass ArrayRecord(model.state_dict())")
    if strange := next((p.dtype for p in parts if p.dtype != np.float32), None):
        raise BadInput(
            f"the initial arrays contain {strange}, but only float32 parameters can be averaged: "
            "use a model in float32 without running statistics (GroupNorm or LayerNorm instead of BatchNorm)"
        )
    return torch.from_numpy(np.concatenate([p.reshape(-1) for p in parts]))


def unflatten(vector: Tensor, like: ArrayRecord) -> ArrayRecord:
    """The vector as arrays with the names and shapes of another record."""
    arrays: dict[str, Array] = {}
    first = 0
    for name, array in like.items():
        size = int(np.prod(array.shape, dtype=np.int64))
        part = vector[first : first + size].detach().cpu().numpy()
        arrays[name] = Array(np.ascontiguousarray(part.reshape(array.shape)))
        first += size
    return ArrayRecord(arrays)


# -- work --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What the server asks of a node in a round: the algorithm as it is in that round, and the local work.

    client  the node's place among all clients: batches are drawn under (seed, round, client)
    """

    algorithm: Algorithm
    local: Local
    seed: int
    round: int
    client: int

    def pack(self) -> ConfigRecord:
        """As plain values with dotted names; what is None is left out."""
        flat: dict[str, Any] = {"algorithm": type(self.algorithm).__name__}
        flat |= {name: getattr(self, name) for name in ("seed", "round", "client")}
        for part in ("algorithm", "local"):
            whole = getattr(self, part)
            flat |= {f"{part}.{f.name}": getattr(whole, f.name) for f in fields(whole)}
        return ConfigRecord({key: value for key, value in flat.items() if value is not None})

    @classmethod
    def unpack(cls, record: ConfigRecord) -> "Order":
        """Build the algorithm and the local work again."""
        kinds = {kind.__name__: kind for kind in family()}
        name = str(record["algorithm"])
        if name not in kinds:
            raise BadInput(f"this node knows no algorithm '{name}'{nearest(name, kinds)}: import it in the client app")
        parts: list[Any] = []
        for part, kind in (("algorithm", kinds[name]), ("local", Local)):
            # What was left out was None.
            values: dict[str, Any] = {f.name: record.get(f"{part}.{f.name}") for f in fields(kind)}
            parts.append(kind(**values))
        numbers: dict[str, Any] = {key: record[key] for key in ("seed", "round", "client")}
        return cls(*parts, **numbers)


def family(root: type[Algorithm] = Algorithm) -> Iterator[type[Algorithm]]:
    """All algorithms that have been defined, the user's own among them."""
    for kind in root.__subclasses__():
        yield kind
        yield from family(kind)


# -- checks ------------------------------------------------------------------------------------------------------------


class Refused(ValueError):  # noqa: N818 - reads as what it is
    """What a node sent cannot be used; the message says why."""


def checked_vectors(content: RecordDict, expected: Iterable[str], model: Tensor, max_norm: float | None) -> Tensors:
    """The vectors of a reply, or `Refused`: names, shape, dtype, finite values, ‖w − w̄‖ ≤ max_norm."""
    record = content.array_records.get(VECTORS)
    if record is None or set(record) != set(expected):
        sent = "nothing" if record is None else ", ".join(sorted(record)) or "nothing"
        raise Refused(f"sent {sent} instead of {', '.join(sorted(expected))}")
    vectors: Tensors = {}
    for name, array in record.items():
        found = _decoded(array, name)
        if found.dtype != np.float32:
            raise Refused(f"{name} has dtype {found.dtype} instead of float32")
        if found.shape != tuple(model.shape):
            raise Refused(f"{name} has shape {found.shape} instead of {tuple(model.shape)}")
        if not np.isfinite(found).all():
            raise Refused(f"{name} contains NaN or infinite values")
        vectors[name] = torch.from_numpy(found.copy())
    if max_norm is not None and "model" in vectors:
        norm = float(torch.linalg.vector_norm(vectors["model"].double() - model.double()))
        if norm > max_norm:
            raise Refused(f"the model lies {norm:.3g} from the global one, more than max_norm = {max_norm:g}")
    return vectors


def checked_message(content: RecordDict, features: int | None) -> NDArray[np.float64]:
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


def _decoded(array: Array, name: str) -> NDArray[Any]:
    try:
        return np.asarray(array.numpy())
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise Refused(f"{name} cannot be read ({error})") from None
