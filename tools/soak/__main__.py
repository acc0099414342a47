"""Kill runs at random moments, again and again: they must end with the bits of an undisturbed run.

python -m soak --kills 200 --seed 1
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from soak.grids import EXPERIMENT, GRIDS, Grid
from soak.processes import server, started

THREADS = (1, 1, 1, 2)  # to choose from; each number has sums in an order of its own, and so bits of its own
UNLIKE = ("seconds", "spaces", "check")  # what differs from one execution to the next


class Soak:
    """Kills of the runs of one grid."""

    def __init__(self, name: str, grid: Grid, scratch: Path, rng: random.Random) -> None:
        self.name, self.grid, self.rng, self.context = name, grid, rng, server()
        self.file, self.out = scratch / "soak.toml", scratch / "out"
        self.file.write_text(EXPERIMENT)
        self.whole: dict[int, dict[str, Any]] = {}
        began = time.monotonic()
        self.expected(1)
        self.seconds = time.monotonic() - began

    def expected(self, threads: int) -> dict[str, Any]:
        """What an undisturbed run leaves behind."""
        if threads not in self.whole:
            out = self.out.with_name("whole")
            shutil.rmtree(out, ignore_errors=True)
            self._run(out, threads)
            self.whole[threads] = contents(out)
        return self.whole[threads]

    def _run(self, out: Path, threads: int, seconds: float | None = None) -> bool:
        """Carry out the experiment, killed after some seconds; whether it came to its end."""
        process = started(self.context, self.grid, self.file, out, threads)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        if process.exitcode not in (0, -9):
            raise RuntimeError(f"{self.name}: {out.with_suffix('.log').read_text().strip()}")
        return process.exitcode == 0

    def kills(self, count: int) -> Iterator[str | None]:
        """So many kills: None for each, and for each file that is different in the end a sentence."""
        killed = 0
        while killed < count:
            shutil.rmtree(self.out, ignore_errors=True)
            threads = self.rng.choice(THREADS)
            while killed < count and not self._run(self.out, threads, self.rng.uniform(0, 0.7 * self.seconds)):
                killed += 1
                self._leave_half_a_line()
                yield None
            self._run(self.out, threads)
            found, expected = contents(self.out), self.expected(threads)
            for path in sorted({*found, *expected}):
                if found.get(path) != expected.get(path):
                    yield f"{self.name}: {path} is different, with {threads} threads"

    def _leave_half_a_line(self) -> None:
        """As if the process had been killed while it was writing; that is too short a moment to be met often."""
        files = sorted(self.out.rglob("rounds.jsonl"))
        if files and self.rng.random() < 0.5:
            with self.rng.choice(files).open("a") as file:
                file.write('{"round": 7, "train_loss": 1.2345678, "test'[: self.rng.randrange(1, 40)])


def contents(root: Path) -> dict[str, Any]:
    """All files below a folder, without what differs from one execution to the next."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in (".lock", "config.json"):
            content: Any = path.read_bytes()
            if path.suffix == ".safetensors":  # whose metadata are in any order
                content = {name: array.tobytes() for name, array in load_file(path).items()}
            elif path.suffix in (".json", ".jsonl"):
                lines = content.splitlines() if path.suffix == ".jsonl" else [content]
                content = [{key: v for key, v in json.loads(line).items() if key not in UNLIKE} for line in lines]
            found[str(path.relative_to(root))] = content
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="in all, over ten kinds of grids")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="of the random moments; none: by the clock")
    given = parser.parse_args()
    seed = time.time_ns() % 10**6 if given.seed is None else given.seed
    print(f"{given.kills} kills over {len(GRIDS)} kinds of grids, seed {seed}", flush=True)
    began, done, different = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="fedkin-soak-") as scratch:
        for place, (name, grid) in enumerate(GRIDS.items()):
            soak = Soak(name, grid, Path(scratch), random.Random(f"{seed} {name}"))
            for problem in soak.kills((place + 1) * given.kills // len(GRIDS) - done):
                if problem is None:
                    done += 1
                else:
                    different += 1
                    print(problem, flush=True)
            runs = sum(path.endswith("summary.json") for path in soak.expected(1))
            print(f"{done:4} kills, {time.monotonic() - began:4.0f} s: {name} ({runs} runs)", flush=True)
    result = "all ended with the same bits" if not different else f"{different} files were different"
    print(f"{done} kills in {time.monotonic() - began:.0f} s: {result}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
