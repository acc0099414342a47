"""Writing files so that a crash leaves the old content or the new one, never a part."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.errors import BadInput


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place whole, or not at all."""
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
    """A folder that files can be put into, made if need be: said before the work, not after it."""
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
    """JSON in which a number that is not finite is null."""
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, **layout)


def finite(value: Any) -> Any:
    """The same with None for every number that is not finite, as JSON has no word for those."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list) else value
