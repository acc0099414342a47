"""The state of a run as named tensors, for a file."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.algorithms import ClientRows
from fedkin.engine.simulation import State
from fedkin.types import Tensors

ROWS_OF = " of clients: "  # separates the name of a `ClientRows` from the name of its tensor


def state_tensors(state: State) -> Tensors:
    """Server state and the clients' memory as named tensors."""
    return {**_flat(state.server, "server"), **_flat(state.memory, "memory")}


def _flat(values: Mapping[str, Any], part: str) -> Tensors:
    flat: Tensors = {}
    for name, value in values.items():
        if isinstance(value, ClientRows):
            flat |= {f"{part}.{name}{ROWS_OF}{piece}": tensor for piece, tensor in value.tensors().items()}
        else:
            flat[f"{part}.{name}"] = value
    return flat


def state_of(tensors: Mapping[str, Tensor], round: int, device: torch.device | str = "cpu") -> State:
    """The state after so many rounds: the inverse of `state_tensors`."""
    parts: dict[str, Any] = {"server": {}, "memory": {}}
    rows: dict[tuple[str, str], Tensors] = {}
    for key, tensor in tensors.items():
        (part, _, name), tensor = key.partition("."), tensor.to(device)
        if ROWS_OF in name:
            name, _, piece = name.partition(ROWS_OF)
            rows.setdefault((part, name), {})[piece] = tensor
        else:
            parts[part][name] = tensor
    for (part, name), pieces in rows.items():
        parts[part][name] = ClientRows.from_tensors(pieces)
    return State(parts["server"], parts["memory"], round)
