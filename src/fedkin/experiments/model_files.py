"""The models of a run in its folder.

model.safetensors   `model`: the global model, flat; `shift`, `scale` and the metadata `card`: the preprocessing
own.safetensors     `models`: the model of every client, a row each, in the order of their numbers; `digests`: of rows
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkin.data.card import DataCard
from fedkin.errors import BadInput
from fedkin.experiments.tensor_files import read_tensors, write_tensors
from fedkin.files import as_json
from fedkin.memory import check_memory
from fedkin.types import Integers

MODEL_FILE, OWN_FILE = "model.safetensors", "own.safetensors"

# With `keep = "auto"`, checkpoints and the clients' own models stay if they have at most so many numbers (256 MiB).
MOST_KEPT = 1 << 26


def is_kept(keep: str, numbers: int) -> bool:
    """Whether a file with so many float32 numbers stays after the last round."""
    return keep in ("all", "state") or (keep == "auto" and numbers <= MOST_KEPT)


def write_model(folder: Path, model: Tensor, card: DataCard | None, origin: str) -> None:
    """Write the global model (P,), and the card of its data if there is one."""
    about, tensors = card.to_parts() if card is not None else ({}, {})
    metadata = {"origin": origin, **({"card": as_json(about)} if card is not None else {})}
    write_tensors(folder / MODEL_FILE, {"model": model, **tensors}, metadata)


def read_card(folder: Path) -> tuple[Tensor, DataCard]:
    """The global model and the card of its data."""
    saved = read_tensors(folder / MODEL_FILE)
    if saved is None:
        raise BadInput(f"{folder / MODEL_FILE} is missing or damaged: run the experiment again")
    tensors, metadata = saved
    try:
        return tensors["model"], DataCard.from_parts(json.loads(metadata["card"]), tensors)
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            f"{folder / MODEL_FILE} has no preprocessing, as an earlier version wrote it: run again with --fresh"
        ) from None


def write_own(folder: Path, blocks: Iterable[tuple[Integers, Tensor]], clients: int, size: int, origin: str) -> None:
    """Write the clients' own models, given as client numbers (m,) and models (m, P)."""
    check_memory(2 * clients * size)  # the models, and the file
    models = torch.empty(clients, size)
    for who, block in blocks:
        models[torch.from_numpy(who)] = block.cpu()
    digests = np.frombuffer(b"".join(_digest_of(row) for row in models), dtype=np.uint8).reshape(clients, -1)
    tensors = {"models": models, "digests": torch.from_numpy(digests.copy())}
    write_tensors(folder / OWN_FILE, tensors, {"origin": origin})


def own_size(folder: Path) -> int | None:
    """Number of parameters of a client's own model; None if the file is missing or damaged."""
    try:
        with safe_open(folder / OWN_FILE, framework="pt") as file:
            return int(file.get_slice("models").get_shape()[1])
    except (OSError, SafetensorError, IndexError):
        return None


def read_own(folder: Path, client: int) -> Tensor:
    """The model of one client, (P,), without reading those of the others."""
    path = folder / OWN_FILE
    try:
        with safe_open(path, framework="pt") as file:
            row: Tensor = file.get_slice("models")[client : client + 1][0].clone()
            digest = bytes(file.get_slice("digests")[client : client + 1][0].tolist())
    except FileNotFoundError:
        raise BadInput(
            f"{folder} has no models of its clients: set keep = 'all' and run the experiment again"
        ) from None
    except (OSError, SafetensorError, ValueError, RuntimeError, IndexError):
        digest, row = b"", torch.zeros(0)
    if digest != _digest_of(row):
        raise BadInput(f"{path} is damaged: remove it, set keep = 'all' and run the experiment again")
    return row


def _digest_of(row: Tensor) -> bytes:
    return hashlib.blake2b(row.numpy().tobytes(), digest_size=16).digest()
