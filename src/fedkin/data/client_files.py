"""Clients in memory as files: what is compared on them continues after an interruption, and in other processes."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.client_sources import is_frame, pairs_of
from fedkin.data.tables import arrow_table, parquet_of
from fedkin.errors import BadInput
from fedkin.files import as_json, json_object, write_atomically

LIST = ".written.json"  # the files of a folder that are ours


def write_clients(clients: Mapping[str, Any], folder: Path) -> Path:
    """Write a folder with a file for each client, as `fedkin.from_folder` reads it.

    clients  by name: a pair (features, labels) each, which become npz files, or a data frame each, which become Parquet

    Files of other clients that an earlier call has written are removed. A folder with anything else in it is refused.
    """
    names = [_file_name(name) for name in clients]
    if all(map(is_frame, clients.values())):
        contents = [parquet_of(arrow_table(frame, f"client '{name}'")) for name, frame in clients.items()]
        ending = ".parquet"
    else:
        samples = pairs_of(clients)
        contents, ending = [_npz(x, y) for x, y in zip(samples.x, samples.y, strict=True)], ".npz"
    wanted = {f"{name}{ending}": content for name, content in zip(names, contents, strict=True)}
    written: list[str] = (json_object(folder / LIST) or {}).get("files", [])
    seen = [path.name for path in folder.glob("*") if not path.name.startswith(".")]
    if strange := sorted({*seen} - {*written}):
        raise BadInput(
            f"{folder} holds {strange[0]}, which no comparison has written: choose another name, or another out, or "
            "move it elsewhere"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # First the list, with old and new files: whenever this is cut off, all that is there is on it.
    write_atomically(folder / LIST, as_json({"files": sorted({*written, *wanted})}).encode())
    for name, content in wanted.items():
        write_atomically(folder / name, content)
    for name in set(written) - wanted.keys():
        (folder / name).unlink(missing_ok=True)
    write_atomically(folder / LIST, as_json({"files": sorted(wanted)}).encode())
    return folder


def _npz(x: Any, y: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, x=x, y=y)
    return file.getvalue()


def _file_name(client: str) -> str:
    name = str(client)
    if not name.strip() or name.startswith(".") or any(sign in name for sign in '/\\:*?"<>|\0'):
        raise BadInput(
            f"client '{name}' cannot have a file of its name, as it is empty, begins with a point or has one of "
            'the signs / \\ : * ? " < > |: give it another one'
        )
    return name
