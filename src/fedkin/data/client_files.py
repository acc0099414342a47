"""Clients in memory as files: what is compared on them continues after an interruption, and in other processes."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.client_sources import is_frame, pairs_of
from fedkin.data.tables import arrow_table, parquet_of
from fedkin.errors import BadInput
from fedkin.files import write_atomically

ENDINGS = (".npz", ".parquet")


def write_clients(clients: Mapping[str, Any], folder: Path) -> Path:
    """Write a folder with a file for each client, as `fedkin.from_folder` reads it.

    clients  by name: a pair (features, labels) each, which become npz files, or a data frame each, which become Parquet

    Files of other clients from an earlier call are removed; the folder is for nothing else.
    """
    names = [_file_name(name) for name in clients]
    if all(map(is_frame, clients.values())):
        contents = [parquet_of(arrow_table(frame, f"client '{name}'")) for name, frame in clients.items()]
        ending = ".parquet"
    else:
        samples = pairs_of(clients)
        contents, ending = [_npz(x, y) for x, y in zip(samples.x, samples.y, strict=True)], ".npz"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"{name}{ending}": content for name, content in zip(names, contents, strict=True)}
    for path in folder.iterdir():
        if path.suffix in ENDINGS and path.name not in wanted:
            path.unlink()
    for name, content in wanted.items():
        write_atomically(folder / name, content)
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
