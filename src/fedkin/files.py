"""Atomic writing of files, and JSON without NaN."""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkin.errors import BadInput


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old or the new content. Devices are simply written to."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with errors_at(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def errors_at(path: Path) -> Iterator[None]:
    """Errors of the system name the path: those of writing, such as a full disk, name none by themselves."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def writable_folder(path: Path, option: str = "--out") -> Path:
    """Create the folder if necessary and raise `BadInput` unless files can be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, FileExistsError):
            reason = "it is not a folder"
        raise BadInput(f"cannot write to {path} ({reason}): choose another folder with {option}") from None
    return path


def writable_file(path: Path | None, option: str) -> None:
    """Check that a file, if one is given, can be written, in a folder made if need be: before the work, not after."""
    if path is None:
        return
    if path.is_dir():
        raise BadInput(f"cannot write to {path} (it is a folder): give the name of a file to {option}")
    if not path.exists() or path.is_file():
        writable_folder(path.parent, option)


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


def json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing or damaged."""
    try:
        return object_in(path.read_bytes())
    except OSError:
        return None


def object_in(text: bytes) -> dict[str, Any] | None:
    """The JSON object in a text; None if there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    entries: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and value
        entries |= dotted(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return entries
