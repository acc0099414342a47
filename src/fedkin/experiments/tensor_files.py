"""Files of named tensors with a digest of their contents: a flipped bit anywhere shows."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.files import write_atomically
from fedkin.types import Tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with a digest of its contents."""
    plain: Tensors = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        # The format refuses tensors that share memory, as a first model and a memory that starts as it.
        shared = any(flat.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in plain.values())
        plain[name] = flat.clone() if shared else flat
    write_atomically(path, save(plain, {**metadata, "digest": _digest(plain, metadata)}))


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]] | None:
    """What `write_tensors` wrote, or None if the file is missing, truncated or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (OSError, SafetensorError, ValueError, RuntimeError):
        return None
    digest = metadata.pop("digest", None)
    return (tensors, metadata) if digest == _digest(tensors, metadata) else None


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of names, shapes, contents and metadata."""
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(np.ascontiguousarray(tensors[name].numpy()).data)
    return digest.hexdigest()
