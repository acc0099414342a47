"""The folder of a run: what is written as the run goes, and read again to continue it.

    config.json      the full resolved configuration
    rounds.jsonl     one object a round, appended
    summary.json     the result, when the run has ended
    checkpoint-*.safetensors   the state after some round, the newest two; gone when the run has ended
    model.safetensors          the final global model

Everything but `rounds.jsonl` is written whole to a temporary file that then takes the place of the old one, so a crash
leaves the old file or the new one. Of `rounds.jsonl` only the lines up to a sound checkpoint are believed.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.algorithms import ClientRows
from fedkin.engine.metrics import rounds_to
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.experiments.config import IMMATERIAL
from fedkin.files import as_json, finite, write_atomically
from fedkin.types import Record


class RunFolder:
    """The folder of one run, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds: IO[str] | None = None
        self._lock: IO[bytes] | None = None

    @contextlib.contextmanager
    def opened(
        self, config: Mapping[str, Any], *, fresh: bool = False, usual: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Hold the folder, made if need be, for a run with this configuration.

        `usual` are the settings' defaults: they stand for settings that the run in the folder does not know yet, as
        it was made by an earlier version.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("wb")
        except OSError as error:
            raise BadInput(
                f"cannot write to {self.path} ({error.strerror}): choose another folder with --out"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BadInput(f"another process is running {self.path}: wait for it, or choose another --out") from None
        try:
            if fresh:
                self._clear()
            self._claim(config, usual or {})
            yield
        finally:
            if self._rounds:
                self._rounds.close()
                self._rounds = None
            self._lock.close()

    def _clear(self) -> None:
        for entry in self.path.iterdir():
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _claim(self, config: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
        """Write the configuration, or make sure that the one in the folder is the same if it has been used."""
        file = self.path / "config.json"
        new = json.loads(as_json(config))
        begun = {entry.name for entry in self.path.iterdir()} - {".lock", file.name}
        if begun and file.exists():
            try:
                old = json.loads(file.read_text(encoding="utf-8"))
            except ValueError:
                raise BadInput(f"{file} is damaged: run again with --fresh, or choose another --out") from None
            if differing := _differences(_filled(old, json.loads(as_json(usual))), new):
                key, before, now = differing[0]
                raise BadInput(
                    f"{self.path} holds a run with other settings ({key} was {before}, now {now}): "
                    "choose another --out or name, or run with --fresh to replace it"
                )
        write_atomically(file, as_json(config, indent=2).encode())

    # -- records --------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """The sound lines of rounds.jsonl from round 0 on, up to the first that is damaged or out of place."""
        sound: list[Record] = []
        try:
            lines = (self.path / "rounds.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return sound
        for line in lines[:-1]:  # what follows the last line break is empty or was cut off
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict) or record.get("round") != len(sound):
                break
            sound.append(record)
        return sound

    def keep_records(self, records: list[Record]) -> None:
        """Make rounds.jsonl hold just these, and open it for more."""
        text = "".join(as_json(record) + "\n" for record in records)
        write_atomically(self.path / "rounds.jsonl", text.encode())
        self._rounds = (self.path / "rounds.jsonl").open("a", encoding="utf-8")

    def append(self, record: Record) -> None:
        """One more round."""
        assert self._rounds, "keep_records comes first"
        self._rounds.write(as_json(record) + "\n")
        self._rounds.flush()

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, state: State) -> None:
        """Write a checkpoint, and remove all but the newest two: should one be damaged, the other is there."""
        if self._rounds:
            os.fsync(self._rounds.fileno())
        tensors = {**_flat(state.server, "server"), **_flat(state.memory, "memory")}
        write_tensors(self._checkpoint(state.round), tensors, {"round": str(state.round)})
        for old in self._checkpoints()[2:]:
            old.unlink(missing_ok=True)

    def _checkpoint(self, round: int) -> Path:
        return self.path / f"checkpoint-{round:06d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*.safetensors"), reverse=True)

    def sound_rounds(self) -> set[int]:
        """After how many rounds the run can be continued: sound checkpoints whose rounds are all on record."""
        known = len(self.records())
        rounds = {int(path.stem.partition("-")[2]): path for path in self._checkpoints()}
        return {round for round, path in rounds.items() if round <= known and self._read(path, round) is not None}

    def _read(self, path: Path, round: int) -> dict[str, Tensor] | None:
        loaded = read_tensors(path)
        return loaded[0] if loaded and loaded[1].get("round") == str(round) else None

    def load(self, round: int, device: torch.device | str = "cpu") -> State:
        """The state after so many rounds, one of the sound ones."""
        parts: dict[str, Any] = {"server": {}, "memory": {}}
        rows: dict[tuple[str, str], dict[str, Tensor]] = {}
        for key, tensor in (self._read(self._checkpoint(round), round) or {}).items():
            (part, _, name), tensor = key.partition("."), tensor.to(device)
            if ROWS in name:
                name, _, piece = name.partition(ROWS)
                rows.setdefault((part, name), {})[piece] = tensor
            else:
                parts[part][name] = tensor
        for (part, name), pieces in rows.items():
            parts[part][name] = ClientRows.from_tensors(pieces)
        return State(parts["server"], parts["memory"], round)

    # -- the end --------------------------------------------------------------------------------------------------

    def summary(self) -> Record | None:
        """The result, if the run has ended and the file is sound."""
        try:
            found = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) and "status" in found else None

    def finish(self, summary: Record, model: Tensor) -> None:
        """Write the result and the final model; checkpoints are of no more use."""
        write_tensors(self.path / "model.safetensors", {"model": model}, {})
        write_atomically(self.path / "summary.json", as_json(summary, indent=2).encode())
        for path in self._checkpoints():
            path.unlink(missing_ok=True)


ROWS = " of clients: "  # between the name of rows kept for clients and that of a piece of them


def _flat(values: Mapping[str, Any], part: str) -> dict[str, Tensor]:
    """A part of a state as named tensors."""
    flat: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, ClientRows):
            flat |= {f"{part}.{name}{ROWS}{piece}": tensor for piece, tensor in value.tensors().items()}
        else:
            flat[f"{part}.{name}"] = value
    return flat


def _filled(old: Any, usual: Mapping[str, Any]) -> Any:
    """Settings with defaults for those that are missing, section by section."""
    if not isinstance(old, dict):
        return old
    sections = {key: _filled(old.get(key, {}), below) for key, below in usual.items() if isinstance(below, dict)}
    return {**usual, **old, **sections}


def _differences(old: Any, new: Any, at: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in {**old, **new} if at or k not in IMMATERIAL]
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{at}.{k}" if at else k)]
    return [] if old == new else [(at, old, new)]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with a digest of its contents."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_atomically(path, save(plain, {**metadata, "digest": _digest(plain, metadata)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """What `write_tensors` wrote, or None if the file is missing, cut off or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (OSError, SafetensorError, ValueError):
        return None
    digest = metadata.pop("digest", None)
    return (tensors, metadata) if digest == _digest(tensors, metadata) else None


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of names, shapes, contents and metadata: a flipped bit anywhere shows."""
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(np.ascontiguousarray(tensors[name].numpy()).data)
    return digest.hexdigest()


def summarise(records: list[Record], threshold: float, spaces: Mapping[str, int] | None = None) -> Record:
    """A run's result: final and best accuracy, rounds to the threshold, seconds, where steps were computed.

    spaces  how many clients worked in which space in the last round
    """
    accuracy = [math.nan if r["test_accuracy"] is None else float(r["test_accuracy"]) for r in records]
    known = [a for a in accuracy if not math.isnan(a)]
    diverged = records[-1]["train_loss"] is None
    summary = {
        "status": "diverged" if diverged else "finished",
        **({"diverged_at": records[-1]["round"]} if diverged else {}),
        "rounds": len(records),
        "threshold": threshold,
        "rounds_to_threshold": rounds_to(threshold, accuracy),
        "final_test_accuracy": accuracy[-1],
        "best_test_accuracy": max(known, default=math.nan),
        "final_test_loss": records[-1]["test_loss"],
        "worst_decile": records[-1].get("worst_decile"),
        **{f"final_{key}": value for key, value in records[-1].items() if key.startswith("own_")},
        "seconds": round(sum(r["seconds"] for r in records), 3),
        **({"spaces": dict(spaces)} if spaces else {}),
    }
    return {key: finite(value) for key, value in summary.items()}
