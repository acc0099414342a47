"""The folder of a run: its files are written during the run and read to continue it.

    config.json      the full resolved configuration
    origin.json      digest of the data, and the names of the runs of its group
    rounds.jsonl     one object per round, appended, each with a seal (`fedkin.experiments.seals`)
    summary.json     the result, written at the end
    checkpoint-*.safetensors   the newest two states; removed when all runs of the group have ended
    clients.jsonl    one object per client: the accuracy of the global model and of its own on its testing samples
    kin.safetensors            the kin of each client and their weights after the last round, if the algorithm has kin
    model.safetensors          the final global model

All files but `rounds.jsonl` are written atomically. Of `rounds.jsonl`, only lines with valid seals up to an intact
checkpoint are used.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.algorithms import ClientRows
from fedkin.engine.metrics import rounds_to
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.experiments.config import IMMATERIAL
from fedkin.experiments.seals import KEY, is_sealed, origin_of, sealed_line, sealed_record, sound_lines, unusual
from fedkin.experiments.tensor_files import read_tensors, write_tensors
from fedkin.files import as_json, errors_at, finite, write_atomically
from fedkin.types import Record


class RunFolder:
    """The folder of one run, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._origin = ""  # the first link of the chain of seals
        self._seal = ""  # the last seal

    @contextlib.contextmanager
    def opened(
        self,
        config: Mapping[str, Any],
        *,
        data: str = "",
        fresh: bool = False,
        usual: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Create and lock the folder for a run with this configuration on data with this digest.

        `usual` are default settings, for those that are missing in a folder written by an earlier version.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("wb")
        except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"cannot write to {self.path} ({reason}): choose another folder with --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BadInput(f"another process is running {self.path}: wait for it, or choose another --out") from None
        try:
            if fresh:
                self._clear()
            for left in self.path.glob(".*.*.tmp"):  # by a process that was killed while it wrote
                if re.fullmatch(r"\..+\.\d+\.tmp", left.name) and not left.is_dir():
                    left.unlink()
            self._claim(json.loads(as_json(config)), json.loads(as_json(usual or {})), data)
            yield
        finally:
            self._lock.close()

    def _clear(self) -> None:
        for entry in self.path.iterdir():
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _claim(self, new: Mapping[str, Any], usual: Mapping[str, Any], data: str) -> None:
        """Write configuration and digests, or raise if the folder has a run with other ones."""
        settings = {key: value for key, value in new.items() if key not in IMMATERIAL}
        self._origin = self._seal = origin_of(unusual(settings, usual), data)
        for entry in self.path.iterdir():
            if re.fullmatch(r".*\.(json|jsonl|safetensors)", entry.name) and entry.is_dir():
                raise BadInput(f"{entry} is a folder where a file should be: remove it, or run again with --fresh")
        file, origin = self.path / "config.json", self.origin()
        begun = {entry.name for entry in self.path.iterdir()} - {".lock", file.name, "origin.json"}
        if begun and file.exists():
            try:
                old = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                raise BadInput(f"{file} is damaged: run again with --fresh, or choose another --out") from None
            if differing := _differences(_filled(old, usual), new):
                key, before, now = differing[0]
                raise BadInput(
                    f"{self.path} contains a run with other settings ({key} was {before}, now {now}): "
                    "choose another --out or name, or run with --fresh to replace it"
                )
        if begun and origin.get("data", data) != data:
            raise BadInput(
                f"{self.path} contains a run on other data than is loaded now: "
                "choose another --out, or run with --fresh to replace it"
            )
        if begun and not (file.exists() and origin) and self._is_of_others():
            raise BadInput(
                f"{self.path} contains rounds of other settings or other data: "
                "choose another --out, or run with --fresh to replace them"
            )
        if not begun or origin.get("data") != data:
            self._note({"data": data})
        if (text := as_json(new, indent=2).encode()) != (file.read_bytes() if file.exists() else None):
            write_atomically(file, text)

    def origin(self) -> Record:
        """The content of origin.json; empty if the file is missing."""
        return _json_object(self.path / "origin.json") or {}

    def _note(self, more: Record) -> None:
        write_atomically(self.path / "origin.json", as_json({**self.origin(), **more}, indent=2).encode())

    def lanes(self) -> tuple[str, ...]:
        """The runs that this one is computed with, itself among them; nothing if it has not begun, or by damage."""
        names = self.origin().get("lanes")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return ()
        return tuple(names) if len(set(names)) == len(names) and self.path.name in names else ()

    def begin(self, lanes: Sequence[str]) -> None:
        """Write the names of the runs of the group, in their order, to origin.json."""
        if self.origin().get("lanes") != list(lanes):
            self._note({"lanes": list(lanes)})

    # -- records --------------------------------------------------------------------------------------------------

    def _rounds(self) -> bytes:
        """The content of rounds.jsonl; nothing if there is none."""
        try:
            return (self.path / "rounds.jsonl").read_bytes()
        except OSError:
            return b""

    def _lines(self) -> list[bytes]:
        """The complete lines of rounds.jsonl."""
        return self._rounds().split(b"\n")[:-1]

    def _is_of_others(self) -> bool:
        """Whether the first round has the seal of a run with other settings or data."""
        lines = self._lines()
        return bool(lines) and is_sealed(lines[0]) and not sound_lines(lines[:1], self._origin)[0]

    def records(self) -> list[Record]:
        """The records of rounds.jsonl from round 0 up to the first damaged or misplaced line."""
        return sound_lines(self._lines(), self._origin)[0]

    def keep_records(self, records: list[Record]) -> None:
        """Replace the content of rounds.jsonl."""
        text, self._seal = "", self._origin
        for record in records:
            line, self._seal = sealed_line(record, self._seal)
            text += line
        if not text or text.encode() != self._rounds():
            write_atomically(self.path / "rounds.jsonl", text.encode())

    def append(self, record: Record) -> None:
        """Append a record. The file is not kept open, as a group may have hundreds of runs."""
        line, self._seal = sealed_line(record, self._seal)
        path = self.path / "rounds.jsonl"
        with errors_at(path), path.open("a", encoding="utf-8") as file:
            file.write(line)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, state: State) -> None:
        """Write a checkpoint, and remove all but the newest two: should one be damaged, the other is there."""
        path = self.path / "rounds.jsonl"
        with errors_at(path), path.open("rb") as rounds:
            os.fsync(rounds.fileno())
        tensors = {**_flat(state.server, "server"), **_flat(state.memory, "memory")}
        about = {"round": str(state.round), "origin": self._origin}
        write_tensors(self._checkpoint(state.round), tensors, about)
        for old in list(self._checkpoints().values())[2:]:
            old.unlink(missing_ok=True)

    def _checkpoint(self, round: int) -> Path:
        return self.path / f"checkpoint-{round:06d}.safetensors"

    def _checkpoints(self) -> dict[int, Path]:
        """Checkpoints by round, the newest first; files with other names are ignored."""
        found = {}
        for path in self.path.glob("checkpoint-*.safetensors"):
            if re.fullmatch(r"checkpoint-\d{6,}", path.stem) and path.is_file():
                found[int(path.stem.partition("-")[2])] = path
        return dict(sorted(found.items(), reverse=True))

    def sound_rounds(self) -> set[int]:
        """Numbers of rounds after which the run can continue: those of intact checkpoints with all their records."""
        known = len(self.records())
        return {round for round in self._checkpoints() if round <= known and self._read(round) is not None}

    def _read(self, round: int) -> dict[str, Tensor] | None:
        loaded = read_tensors(self._checkpoint(round))
        about = {"round": str(round), "origin": self._origin}
        return loaded[0] if loaded and loaded[1] == about else None

    def load(self, round: int, device: torch.device | str = "cpu") -> State:
        """The state after one of the `sound_rounds`."""
        parts: dict[str, Any] = {"server": {}, "memory": {}}
        rows: dict[tuple[str, str], dict[str, Tensor]] = {}
        for key, tensor in (self._read(round) or {}).items():
            (part, _, name), tensor = key.partition("."), tensor.to(device)
            if ROWS_OF in name:
                name, _, piece = name.partition(ROWS_OF)
                rows.setdefault((part, name), {})[piece] = tensor
            else:
                parts[part][name] = tensor
        for (part, name), pieces in rows.items():
            parts[part][name] = ClientRows.from_tensors(pieces)
        return State(parts["server"], parts["memory"], round)

    # -- the end --------------------------------------------------------------------------------------------------

    def result(self) -> tuple[Record, list[Record], Tensor] | None:
        """Summary, records and final model, if the run has ended and all files are intact."""
        summary, lines, model = _json_object(self.path / "summary.json"), self._lines(), self._model()
        if summary is None or "status" not in summary or model is None:
            return None
        if lines and not any(map(is_sealed, lines)) and KEY not in summary:  # written by a version without seals
            done = [record for line in lines if (record := _object_in(line)) is not None]
        else:
            done, last = sound_lines(lines, self._origin)
            if summary != json.loads(as_json(sealed_record(summary, last))):
                return None
            self.keep_records(done)  # without what follows them: rubbish, as the summary seals the last
        if len(done) != summary.get("rounds"):
            return None
        return {key: value for key, value in summary.items() if key != KEY}, done, model

    def _model(self) -> Tensor | None:
        saved = read_tensors(self.path / "model.safetensors")
        return saved[0].get("model") if saved and saved[1].get("origin", self._origin) == self._origin else None

    def finish(
        self, summary: Record, model: Tensor, clients: Sequence[Record] = (), kin: csr_array | None = None
    ) -> None:
        """Write the result, the final model, and what is known of the clients."""
        if clients:
            text = "".join(as_json(client) + "\n" for client in clients)
            write_atomically(self.path / "clients.jsonl", text.encode())
        if kin is not None:
            rows = {"offsets": kin.indptr, "clients": kin.indices, "weights": kin.data}
            tensors = {name: torch.from_numpy(values) for name, values in rows.items()}
            write_tensors(self.path / "kin.safetensors", tensors, {"origin": self._origin})
        write_tensors(self.path / "model.safetensors", {"model": model}, {"origin": self._origin})
        write_atomically(self.path / "summary.json", as_json(sealed_record(summary, self._seal), indent=2).encode())

    def has_checkpoints(self) -> bool:
        """Whether the folder has checkpoints."""
        return bool(self._checkpoints())

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints, once all runs of the group have ended."""
        for path in self._checkpoints().values():
            path.unlink(missing_ok=True)


def _json_object(path: Path) -> Record | None:
    """The JSON object in a file; None if the file is missing or damaged."""
    try:
        return _object_in(path.read_bytes())
    except OSError:
        return None


def _object_in(text: bytes) -> Record | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


ROWS_OF = " of clients: "  # separates the name of a `ClientRows` from the name of its tensor


def _flat(values: Mapping[str, Any], part: str) -> dict[str, Tensor]:
    """A part of a state as named tensors, for a file."""
    flat: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, ClientRows):
            flat |= {f"{part}.{name}{ROWS_OF}{piece}": tensor for piece, tensor in value.tensors().items()}
        else:
            flat[f"{part}.{name}"] = value
    return flat


def _filled(old: Any, usual: Mapping[str, Any]) -> Any:
    """Settings with defaults for missing ones, in every section."""
    if not isinstance(old, dict):
        return old
    sections = {key: _filled(old.get(key, {}), below) for key, below in usual.items() if isinstance(below, dict)}
    return {**usual, **old, **sections}


def _differences(old: Any, new: Any, at: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in {**old, **new} if at or k not in IMMATERIAL]
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{at}.{k}" if at else k)]
    return [] if old == new else [(at, old, new)]


def summarise(records: list[Record], threshold: float, spaces: Mapping[str, int] | None = None) -> Record:
    """The summary of a run: final and best accuracy, rounds to the threshold, seconds, spaces.

    spaces  number of sampled clients of the last round per space
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
        **{
            f"final_{key}": value
            for key, value in records[-1].items()
            if key.startswith(("own_", "validation_", "newcomer_"))
        },
        "seconds": round(sum(r["seconds"] for r in records), 3),
        **({"spaces": dict(spaces)} if spaces else {}),
    }
    return {key: finite(value) for key, value in summary.items()}
