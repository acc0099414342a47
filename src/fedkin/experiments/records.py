"""The folder of a run: its files are written during the run and read to continue it.

    config.json      the full resolved configuration
    origin.json      digest of the data, and the names of the runs of its group
    rounds.jsonl     one object per round, appended, each with a seal (`fedkin.experiments.seals`)
    summary.json     the result, written at the end
    encoding.json    how rows of a table become features, if the clients' data are tables
    checkpoint-*.safetensors   the newest two states; only the last is kept when all runs of the group have ended
    clients.jsonl    one object per client: the scores of the global model and of its own on its testing samples
    kin.safetensors            the kin of each client and their weights after the last round, if the algorithm has kin
    model.safetensors          the final global model and the preprocessing (`fedkin.experiments.model_files`)
    own.safetensors            the clients' own models, if the algorithm has them

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.data.card import DataCard
from fedkin.data.encoding import Encoding
from fedkin.data.measure import measure_in
from fedkin.engine.metrics import has_diverged
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.experiments.config import FORMER_NAMES, IMMATERIAL
from fedkin.experiments.model_files import MODEL_FILE, OWN_FILE, is_kept, write_model, write_own
from fedkin.experiments.seals import (
    KEY,
    differences,
    filled,
    is_sealed,
    origin_of,
    renamed,
    sealed_line,
    sealed_record,
    sound_lines,
    unusual,
)
from fedkin.experiments.state_files import state_of, state_tensors
from fedkin.experiments.tensor_files import read_tensors, write_tensors
from fedkin.files import as_json, errors_at, finite, json_object, object_in, write_atomically
from fedkin.types import Integers, Record

ENCODING = "encoding.json"


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
        grows: bool = False,
    ) -> Iterator[None]:
        """Create and lock the folder for a run with this configuration on data with this digest.

        usual  default settings, for those that are missing in a folder written by an earlier version
        grows  whether a run may continue with more rounds than it was begun with
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
            self._claim(json.loads(as_json(config)), json.loads(as_json(usual or {})), data, grows)
            yield
        finally:
            self._lock.close()

    def _clear(self) -> None:
        for entry in self.path.iterdir():
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _claim(self, new: Mapping[str, Any], usual: Mapping[str, Any], data: str, grows: bool) -> None:
        """Write configuration and digests, or raise if the folder has a run with other ones."""
        self._origin = self._seal = self._origin_for(new, usual, data, grows)
        for entry in self.path.iterdir():
            if re.fullmatch(r".*\.(json|jsonl|safetensors)", entry.name) and entry.is_dir():
                raise BadInput(f"{entry} is a folder where a file should be: remove it, or run again with --fresh")
        file, origin = self.path / "config.json", self.origin()
        begun = {entry.name for entry in self.path.iterdir()} - {".lock", file.name, "origin.json", ENCODING}
        if begun and file.exists():
            try:
                old = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                raise BadInput(f"{file} is damaged: run again with --fresh, or choose another --out") from None
            ignored = IMMATERIAL | ({"rounds"} if grows else set())
            if differing := differences(filled(renamed(old, FORMER_NAMES), usual), new, ignored):
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
        if begun and grows and (done := self._known_rounds()) > new["rounds"]:
            raise BadInput(
                f"{self.path} contains {done} rounds of this run, more than rounds = {new['rounds']}: "
                "choose another --out, or run with --fresh to replace them"
            )
        if not begun or origin.get("data") != data:
            self._note({"data": data})
        if (text := as_json(new, indent=2).encode()) != (file.read_bytes() if file.exists() else None):
            write_atomically(file, text)

    def _origin_for(self, settings: Mapping[str, Any], usual: Mapping[str, Any], data: str, grows: bool) -> str:
        """The first link of the chain for these settings.

        A run that may grow is the same run with any number of rounds. Earlier versions counted `rounds` among the
        settings: what they have sealed stays valid as long as it does not change.
        """
        material = {key: value for key, value in settings.items() if key not in IMMATERIAL}
        with_rounds = origin_of(unusual(material, usual), data)
        if not grows:
            return with_rounds
        origin = origin_of(unusual({k: v for k, v in material.items() if k != "rounds"}, usual), data)
        first = self._lines()[:1]
        was_sealed_before = first and not sound_lines(first, origin)[0] and sound_lines(first, with_rounds)[0]
        return with_rounds if was_sealed_before else origin

    def _known_rounds(self) -> int:
        """Number of rounds in rounds.jsonl, by any version."""
        lines = self._lines()
        return len(self.records()) if any(map(is_sealed, lines)) else len(lines)

    def origin(self) -> Record:
        """The content of origin.json; empty if the file is missing."""
        return json_object(self.path / "origin.json") or {}

    def _note(self, more: Record) -> None:
        write_atomically(self.path / "origin.json", as_json({**self.origin(), **more}, indent=2).encode())

    def lanes(self) -> tuple[str, ...]:
        """The runs that this one is computed with, itself among them; nothing if it has not begun, or by damage."""
        names = self.origin().get("lanes")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return ()
        return tuple(names) if len(set(names)) == len(names) and self.path.name in names else ()

    def keep_encoding(self, encoding: Encoding) -> None:
        """Write how rows of a table become features."""
        path, text = self.path / ENCODING, encoding.to_json().encode()
        if not path.exists() or path.read_bytes() != text:
            write_atomically(path, text)

    def begin(self, lanes: Sequence[str], beside: Path | None = None) -> Record:
        """Begin or continue the run, which has no result from now on. Returns the summary of a former result.

        origin.json gets the names of the runs of the group, in their order, and the folder of the TOML file, beside
        which the modules of models are found again.
        """
        more = {"lanes": list(lanes), **({"beside": str(beside)} if beside is not None else {})}
        if any(self.origin().get(key) != value for key, value in more.items()):
            self._note(more)
        before = json_object(self.path / "summary.json") or {}
        for name in ("summary.json", "clients.jsonl", "kin.safetensors", MODEL_FILE, OWN_FILE):
            (self.path / name).unlink(missing_ok=True)
        return before

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
        about = {"round": str(state.round), "origin": self._origin}
        write_tensors(self._checkpoint(state.round), state_tensors(state), about)
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
        return state_of(self._read(round) or {}, round, device)

    # -- the end --------------------------------------------------------------------------------------------------

    def recall(self, config: Mapping[str, Any], usual: Sequence[Mapping[str, Any]]) -> None:
        """Prepare to read a run without locking its folder: find the first link of the chain of its records.

        config  content of config.json
        usual   default settings, one of which the run was sealed with
        """
        lines, data = self._lines()[:1], str(self.origin().get("data", ""))
        for defaults in (json.loads(as_json(one)) for one in usual):
            settings = filled(renamed(dict(config), FORMER_NAMES), defaults)
            for grows in (True, False):
                self._origin = self._origin_for(settings, defaults, data, grows)
                if sound_lines(lines, self._origin)[0]:
                    return

    def result(self) -> tuple[Record, list[Record], Tensor] | None:
        """Summary, records and final model, if the run has ended and all files are intact."""
        summary, lines, model = json_object(self.path / "summary.json"), self._lines(), self._model()
        if summary is None or "status" not in summary or model is None:
            return None
        if lines and not any(map(is_sealed, lines)) and KEY not in summary:  # written by a version without seals
            done = [record for line in lines if (record := object_in(line)) is not None]
        else:
            done, last = sound_lines(lines, self._origin)
            if summary != json.loads(as_json(sealed_record(summary, last))):
                return None
            if self._lock is not None:
                self.keep_records(done)  # without what follows them: rubbish, as the summary seals the last
        if len(done) != summary.get("rounds"):
            return None
        return {key: value for key, value in summary.items() if key != KEY}, done, model

    def _model(self) -> Tensor | None:
        saved = read_tensors(self.path / "model.safetensors")
        return saved[0].get("model") if saved and saved[1].get("origin", self._origin) == self._origin else None

    def finish(
        self,
        summary: Record,
        model: Tensor,
        clients: Sequence[Record] = (),
        kin: csr_array | None = None,
        card: DataCard | None = None,
    ) -> None:
        """Write the result, the final model with the card of its data, and what is known of the clients."""
        if clients:
            text = "".join(as_json(client) + "\n" for client in clients)
            write_atomically(self.path / "clients.jsonl", text.encode())
        if kin is not None:
            rows = {"offsets": kin.indptr, "clients": kin.indices, "weights": kin.data}
            tensors = {name: torch.from_numpy(values) for name, values in rows.items()}
            write_tensors(self.path / "kin.safetensors", tensors, {"origin": self._origin})
        write_model(self.path, model, card, self._origin)
        write_atomically(self.path / "summary.json", as_json(sealed_record(summary, self._seal), indent=2).encode())

    def write_own(self, blocks: Iterable[tuple[Integers, Tensor]], clients: int, size: int) -> None:
        """Write the clients' own models, given as client numbers (m,) and models (m, P)."""
        write_own(self.path, blocks, clients, size, self._origin)

    def is_tidy(self, keep: str) -> bool:
        """Whether there are no more checkpoints than are kept."""
        return len(self._checkpoints()) <= (0 if keep == "model" else 1)

    def tidy(self, keep: str) -> None:
        """Remove checkpoints once all runs of the group have ended, but the last one if it is to be kept."""
        known = len(self.records())
        for round, path in self._checkpoints().items():
            if round != known or not is_kept(keep, path.stat().st_size // 4):
                path.unlink(missing_ok=True)


def write_plan(folder: Path, runs: Sequence[str]) -> None:
    """Write the names of the runs that a command is to carry out, so that others can say what remains."""
    with contextlib.suppress(OSError):  # what cannot be written is said when a run begins
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "plan.json", as_json({"runs": list(runs)}, indent=2).encode())


def exchanged(records: list[Record]) -> Record:
    """Bytes between the server and all clients in all rounds; nothing if a record lacks them (earlier versions)."""
    keys = ("bytes_down", "bytes_up")
    if not all(key in record for record in records for key in (*keys, "sampled")):
        return {}
    totals = {key: sum(r[key] * r["sampled"] + r.get(f"asked_{key}", 0) for r in records) for key in keys}
    return {f"total_{key}": total for key, total in totals.items()}


def summarise(records: list[Record], threshold: float | None, spaces: Mapping[str, int] | None = None) -> Record:
    """The summary of a run: final and best value of its main measure, rounds to the threshold, seconds, spaces.

    threshold  None if there is none
    spaces     number of sampled clients of the last round per space
    """
    measure = measure_in(records[-1])
    key = f"test_{measure.name}"
    values = [math.nan if (value := r.get(key)) is None else float(value) for r in records]
    diverged = has_diverged(records[-1])
    summary = {
        "status": "diverged" if diverged else "finished",
        **({"diverged_at": records[-1]["round"]} if diverged else {}),
        "rounds": len(records),
        "threshold": threshold,
        "rounds_to_threshold": measure.rounds_to(threshold, values),
        f"final_{key}": values[-1],
        f"best_{key}": measure.best(values),
        "final_test_loss": records[-1].get("test_loss"),
        "worst_decile": records[-1].get("worst_decile"),
        **{
            f"final_{key}": value
            for key, value in records[-1].items()
            if key.startswith(("own_", "tuned_", "validation_", "newcomer_"))
        },
        **exchanged(records),
        "seconds": round(sum(r["seconds"] for r in records), 3),
        **({"spaces": dict(spaces)} if spaces else {}),
        **next(({"warning": r["warning"]} for r in records if "warning" in r), {}),
    }
    return {key: finite(value) for key, value in summary.items()}
