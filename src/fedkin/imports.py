"""Objects of the user's own modules, by their import path."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from fedkin.errors import BadInput, in_short

_folders: list[Path] = []  # in which modules are looked for first, the innermost block last


@contextmanager
def modules_beside(folder: Path | None) -> Iterator[None]:
    """Inside the block, modules are looked for in this folder first: that of an experiment's TOML file."""
    if folder is None:
        yield
        return
    _folders.append(folder.absolute())
    try:
        yield
    finally:
        _folders.pop()


def imported_object(path: str, what: str, beside: Path | None = None) -> Any:
    """What `package.module:name` names, such as the class of a model. A module that cannot be imported is bad input.

    beside  a folder in which the module is looked for first (default: that of the innermost `modules_beside`)
    """
    where, _, name = path.partition(":")
    folder = beside.absolute() if beside is not None else _folders[-1] if _folders else None
    try:
        return attrgetter(name)(_module_of(where, folder))
    except (Exception, SystemExit) as error:  # whatever the module raises
        raise BadInput(
            f"the {what} '{path}' cannot be imported ({in_short(error)}): put its module beside the TOML file, or "
            "check the path and PYTHONPATH"
        ) from error


def _module_of(name: str, folder: Path | None) -> ModuleType:
    top = name.partition(".")[0]
    if folder is None or not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return importlib.import_module(name)
    known = sys.modules.get(top)
    if known is not None and not _is_in(known, folder):
        if not _is_beside_another(known):
            return importlib.import_module(name)  # an installed package of this name, which others may use
        for other in [other for other in sys.modules if other.partition(".")[0] == top]:
            del sys.modules[other]  # of the same name, beside the file of another experiment
    importlib.invalidate_caches()  # the file may have been written a moment ago
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
    if _is_in(module, folder):
        _imported.add(str(folder))
    return module


_imported: set[str] = set()  # folders from which modules were imported


def _is_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).absolute().is_relative_to(folder)


def _is_beside_another(module: ModuleType) -> bool:
    return any(_is_in(module, Path(folder)) for folder in _imported)
