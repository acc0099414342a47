"""Pages of results: written atomically, with sections that a command can replace, and the machine's description."""

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from fedkin.files import write_atomically


def write_pages(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    """Write texts to files of these names in a folder, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in pages]


def machine() -> str:
    """Processor, cores, system and versions in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = found[1] if found else platform.processor() or platform.machine()
    compiler = f"Numba {version('numba')}" if find_spec("numba") else "without Numba"
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, {compiler}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, {versions}, fedkin {version('fedkin')}"


def with_section(text: str, name: str, content: str, command: str = "bench") -> str:
    """A page with the content between `<!-- command name -->` and `<!-- end name -->` replaced, or appended."""
    begin, end = f"<!-- {command} {name} -->", f"<!-- end {name} -->"
    part = f"{begin}\n{content}\n{end}"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        return before + part + rest.partition(end)[2]
    return f"{text}\n{part}\n"


def written_section(text: str, name: str, command: str = "bench") -> str:
    """What a page has between `<!-- command name -->` and `<!-- end name -->`; nothing if it has no such section."""
    _, _, rest = text.partition(f"<!-- {command} {name} -->")
    content, end, _ = rest.partition(f"<!-- end {name} -->")
    return content if end else ""
