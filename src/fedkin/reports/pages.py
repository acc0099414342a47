"""What pages with measured numbers need: where the numbers come from, and a place that a command can rewrite."""

import os
import platform
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch


def machine() -> str:
    """Processor, cores, system and versions in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = found[1] if found else platform.processor() or platform.machine()
    compiler = f"Numba {version('numba')}" if find_spec("numba") else "without Numba"
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, {compiler}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, {versions}, fedkin {version('fedkin')}"


def with_section(text: str, name: str, content: str, command: str = "bench") -> str:
    """A page with what stands between the marks of that name replaced, or added at its end."""
    begin, end = f"<!-- {command} {name} -->", f"<!-- end {name} -->"
    part = f"{begin}\n{content}\n{end}"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        return before + part + rest.partition(end)[2]
    return f"{text}\n{part}\n"
