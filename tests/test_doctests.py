"""Examples in docstrings give the results they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedkin

SOURCE = Path(fedkin.__file__).parent
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_examples(file: Path) -> None:
    name = ".".join(["fedkin", *file.relative_to(SOURCE).with_suffix("").parts])
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
