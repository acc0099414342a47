"""Files of named tensors with a digest of their contents, which detects any damage."""

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
    """Write a safetensors file with a digest of its contents."""
    plain: Tensors = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        # The format rejects tensors that share memory, such as an initial model and a client state equal to it.
        shared = any(flat.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in plain.values())
        plain[name] = flat.clone() if shared else flat
    write_atomically(path, save(plain, {**metadata, "digest": _digest(plain, metadata)}))


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]] | None:
    """Tensors and metadata of a file of `write_tensors`; None if it is missing, truncated or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            # Copies: products of matrices may be summed in another order where a tensor begins in the middle of a
            # cache line, as it does in a file, and a continued run must have the bits of an uninterrupted one.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (OSError, SafetensorError, ValueError, RuntimeError):
        return None
    digest = metadata.pop("digest", None)
    return (tensors, metadata) if digest == _digest(tensors, metadata) else None


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Digest of names, shapes, contents and metadata."""
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(np.ascontiguousarray(tensors[name].numpy()).data)
    return digest.hexdigest()
