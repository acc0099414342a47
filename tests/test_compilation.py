"""Numba's cache on disk: damaged, stale or not writable, it never changes a result."""

import errno
import importlib.util
import multiprocessing
import shutil
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

import numba
from numba.core import caching

from fedkin.compiler import compilation
from fedkin.engine import cohorts
from fedkin.output import Sentences

FACTOR, OTHER = 1234.5678, 4321.8765
SOURCE = f"""
from fedkin.compiler.compilation import compiled

@compiled("float64(float64)")
def scaled(x):
    return {FACTOR} * x
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """A module with one compiled function, imported anew by every call, as by a new process."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    for said in (compilation.warn_not_stored, compilation.say_compiling):
        said.cache_clear()
    path = tmp_path / "tiny.py"
    path.write_text(SOURCE)

    def imported() -> Any:
        spec = importlib.util.spec_from_file_location("tiny", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "tiny", module)  # as while a module is imported: Numba looks it up
        spec.loader.exec_module(module)
        return module.scaled

    yield imported
    compilation.warn_not_stored.cache_clear()


def test_compiling_is_said_the_first_time(
    tiny: Callable[[], Any], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO", logger="fedkin"):
        tiny()
        assert [record.getMessage() for record in caplog.records] == [
            "compiling the local steps, once on this machine (about 20 s) …"
        ]
        compilation.say_compiling.cache_clear()
        tiny()
        assert len(caplog.records) == 1
    Sentences().emit(caplog.records[0])
    assert capsys.readouterr().err.startswith("fedkin: compiling the local steps")


def stored(folder: Path, suffix: str) -> Path:
    (found,) = folder.rglob(f"*{suffix}")
    return found


def was_loaded(function: Any) -> bool:
    return bool(function.stats.cache_hits)


def with_another_factor(path: Path) -> None:
    """Machine code that computes something else."""
    code, before = path.read_bytes(), struct.pack("<d", FACTOR)
    assert before in code
    path.write_bytes(code.replace(before, struct.pack("<d", OTHER)))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def turn_into_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def nest_deeply(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def test_a_second_process_loads_what_the_first_compiled(tiny: Callable[[], Any]) -> None:
    assert not was_loaded(tiny())
    again = tiny()
    assert was_loaded(again)
    assert again(2.0) == 2 * FACTOR


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".nbc", with_another_factor),
        (".nbc", truncate),
        (".nbc", turn_into_folder),
        (".nbi", truncate),
        (".nbi", empty),
        (".nbi", turn_into_folder),
        (".digests", Path.unlink),
        (".digests", truncate),
        (".digests", turn_into_folder),
        (".digests", nest_deeply),
    ],
)
def test_damaged_files_are_compiled_again(
    suffix: str, damage: Callable[[Path], None], tiny: Callable[[], Any], tmp_path: Path
) -> None:
    tiny()
    damage(stored(tmp_path / "cache", suffix))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended, again = tiny(), tiny()
    assert not was_loaded(mended)
    assert mended(2.0) == 2 * FACTOR
    assert was_loaded(again)
    assert again(2.0) == 2 * FACTOR


def test_code_compiled_from_other_sources_is_not_used(
    tiny: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba itself would not notice: the code of `vectors` is part of functions in `kernels`."""
    package, copies = Path(compilation.__file__).parents[1], tmp_path / "package"
    for name in compilation.COMPILED_SOURCES:
        (copies / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, copies / name)
    monkeypatch.setattr("importlib.resources.files", lambda _: copies)
    try:
        for name in compilation.COMPILED_SOURCES:
            compilation.sources_digest.cache_clear()
            tiny()
            (copies / name).write_bytes((copies / name).read_bytes() + b"\n# changed")
            compilation.sources_digest.cache_clear()
            assert not was_loaded(tiny())
            assert was_loaded(tiny())
    finally:
        compilation.sources_digest.cache_clear()


def test_sources_are_all_modules_that_are_compiled() -> None:
    """Those with code for Numba, and what they import of this package."""
    package = Path(compilation.__file__).parents[1]
    users = [path for path in package.rglob("*.py") if "@compiled(" in path.read_text()]
    assert len(users) >= 6
    used = {str(path.relative_to(package)) for path in users}
    for path in users:
        for line in path.read_text().splitlines():
            if line.startswith(("from fedkin.engine.spaces.", "from fedkin.compiler.")):
                used.add("/".join(line.split()[1].split(".")[1:]) + ".py")
    assert used - {f"engine/spaces/{name}.py" for name in ("compiled", "primal", "script")} <= set(
        compilation.COMPILED_SOURCES
    )


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", [(caching.IndexDataCacheFile, "_open_for_write"), (compilation, "write_atomically")])
def test_a_full_disk_is_mentioned_once(
    where: tuple[Any, str], tiny: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all functions together; the next process with space stores them."""
    with monkeypatch.context() as patch:
        patch.setattr(*where, full)
        with pytest.warns(UserWarning, match="No space left on device.*set NUMBA_CACHE_DIR") as said:
            functions = [tiny(), tiny()]
    assert len(said) == 1
    assert [function(2.0) for function in functions] == [2 * FACTOR] * 2
    assert not was_loaded(tiny())
    assert was_loaded(tiny())


def test_without_a_folder_to_write_to(tiny: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.warns(UserWarning, match="no folder can be written to"):
        function = tiny()
    assert function(2.0) == 2 * FACTOR


def test_two_processes_may_compile_at_the_same_time(tiny: Callable[[], Any], tmp_path: Path) -> None:
    """Each has the right function, and what they leave behind is right as well."""
    process = multiprocessing.get_context("fork")
    for _ in range(3):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        together, results = process.Barrier(2), process.SimpleQueue()

        def compiles(together: Any = together, results: Any = results) -> None:
            together.wait()
            results.put(tiny()(2.0))

        both = [process.Process(target=compiles) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join(60)
        assert [one.exitcode for one in both] == [0, 0]
        assert [results.get(), results.get()] == [2 * FACTOR] * 2
        assert tiny()(2.0) == 2 * FACTOR
        assert was_loaded(tiny())


def test_a_cache_that_can_only_be_read_is_used(tiny: Callable[[], Any], read_only: Callable[[], None]) -> None:
    tiny()
    read_only()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = tiny()
    assert was_loaded(again)
    assert again(2.0) == 2 * FACTOR


def test_a_damaged_cache_that_can_only_be_read_is_not_used(
    tiny: Callable[[], Any], read_only: Callable[[], None], tmp_path: Path
) -> None:
    tiny()
    with_another_factor(stored(tmp_path, ".nbc"))
    read_only()
    with pytest.warns(UserWarning, match="compiled code cannot be stored.*NUMBA_CACHE_DIR"):
        function = tiny()
    assert function(2.0) == 2 * FACTOR


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, files can be read only; as an error of the system, which tests run by root would not get."""

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    def begin() -> None:
        monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", refused)
        monkeypatch.setattr(compilation, "write_atomically", refused)
        monkeypatch.setattr(Path, "unlink", refused)

    return begin


def test_a_compiler_that_fails_is_mentioned_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *others: Any) -> Any:
        if name == "fedkin.engine.spaces.compiled":
            raise RuntimeError("LLVM ERROR\nmore")
        return real(name, *others)

    real = __builtins__["__import__"]  # type: ignore[index]
    cohorts.compiled_spaces.cache_clear()
    monkeypatch.setitem(__builtins__, "__import__", broken)  # type: ignore[arg-type]
    try:
        with pytest.warns(UserWarning, match=r"cannot compile the local steps \(RuntimeError: LLVM ERROR\)"):
            assert cohorts.compiled_spaces() is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cohorts.compiled_spaces() is None
    finally:
        cohorts.compiled_spaces.cache_clear()
