"""Numba's compiler, whose cache on disk is checked before it is loaded.

Numba stores a compiled function in two kinds of files, an index (.nbi) and machine code (.nbc), beside the module or in
the user's cache. It loads them unchecked: a damaged file raises an error of any kind, or is executed. And it compiles a
function again only if the file of its module has changed, although code of other modules is compiled into ours. So
there is a third file for each function, with a digest of the others and of the sources they were compiled from. Files
that do not match their digest are removed, and the function is compiled again.

Several processes may compile at the same time. All files are replaced as a whole, so in the worst case digests of one
process stand beside files of another, and the next process compiles again.
"""

import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any

from numba import config, njit

from fedkin.files import write_atomically

if config.DISABLE_JIT:  # type: ignore[attr-defined] # it is set at run time
    raise ImportError("compiled steps are switched off by NUMBA_DISABLE_JIT")

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
SPACES = (
    *("kernels", "inner_loops", "primal_kernels", "primal_loops", "program_kernels", "batchwise_kernels"),
    *("recipe", "program", "batchwise", "scoring"),
)
COMPILED_SOURCES = (
    *(f"engine/spaces/{name}.py" for name in SPACES),
    *("models/layer_kernels.py", "compiler/vectors.py", "compiler/compilation.py"),
)


def compiled(signature: str) -> Callable[[Any], Any]:
    """Compile for arguments of these types, once: the result is stored on disk if possible."""

    def made(function: Any) -> Any:
        try:
            found = njit(cache=True, **OPTIONS)(function)
            files = CodeFiles(Path(found.stats.cache_path), function)
            files.check()
        except Exception:  # whatever the search for a folder raises
            warn_not_stored("no folder can be written to")
            return njit(signature, **OPTIONS)(function)
        try:
            if not files.paths():
                say_compiling()
            found.compile(signature)
            files.seal()
        except Exception as error:  # whatever reading or writing the files raises
            with contextlib.suppress(OSError):
                files.remove()
            if not found.signatures:  # it failed before the function was compiled
                found = njit(signature, **OPTIONS)(function)
            warn_not_stored(f"{files.folder}: {getattr(error, 'strerror', None) or type(error).__name__}")
        found.disable_compile()
        return found

    return made


@cache
def say_compiling() -> None:
    """Say why the first round begins later than others; the command shows it."""
    logging.getLogger(__name__).info("compiling the local steps, once on this machine (about 20 s) …")


@cache  # once, not for every function
def warn_not_stored(reason: str) -> None:
    """Say that the next process will have to compile again."""
    way_out = "set NUMBA_CACHE_DIR to a folder with free space"
    warnings.warn(f"compiled code cannot be stored ({reason}), so every process compiles it: {way_out}", stacklevel=3)


class CodeFiles:
    """The files in which Numba stores a function: an index, and machine code for each processor and Python version."""

    def __init__(self, folder: Path, function: Any) -> None:
        self.folder, self.stem = folder, f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}"
        self.digests = folder / f"{self.stem}.digests"

    def paths(self) -> list[Path]:
        """Those that there are; of former versions too, whose line numbers in the names differ."""
        return [path for path in self.folder.glob(f"{self.stem}-*") if path.suffix in (".nbi", ".nbc")]

    def check(self) -> None:
        """Remove the files unless all of them are as they were sealed."""
        paths = self.paths()
        try:
            sealed = json.loads(self.digests.read_bytes())
            sound = all(sealed[path.name] == code_digest(path) for path in paths)
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            sound = False
        if not sound:
            self.remove()

    def seal(self) -> None:
        """Write down the digests of the files."""
        text = json.dumps({path.name: code_digest(path) for path in sorted(self.paths())}).encode()
        if not self.digests.is_file() or self.digests.read_bytes() != text:
            write_atomically(self.digests, text)

    def remove(self) -> None:
        """Remove the files and their digests."""
        for path in (*self.paths(), self.digests):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def code_digest(path: Path) -> str:
    """A digest of a file and of the sources it was compiled from."""
    return blake2b(path.read_bytes(), key=sources_digest(), digest_size=16).hexdigest()


@cache
def sources_digest() -> bytes:
    """A digest of everything that is compiled."""
    found = blake2b()
    for name in COMPILED_SOURCES:
        found.update((resources.files("fedkin") / name).read_bytes())
    return found.digest()
