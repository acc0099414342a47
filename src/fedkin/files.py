"""Atomic writing of files, and JSON without NaN."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.errors import BadInput


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def writable_folder(path: Path) -> Path:
    """Create the folder if necessary and raise `BadInput` unless files can be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot write to {path} ({reason}): choose another folder with --out") from None
    return path


def as_json(value: Mapping[str, Any], **layout: Any) -> str:
    """JSON text, with null for numbers that are not finite."""
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, **layout)


def finite(value: Any) -> Any:
    """The same value with None for numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list) else value
