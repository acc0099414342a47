"""On what machine, and with which versions, numbers were measured."""

import os
import platform
import re
from pathlib import Path

import torch

import fedkin


def machine() -> str:
    """Processor, cores, system and versions in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = found[1] if found else platform.processor() or platform.machine()
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, fedkin {fedkin.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, {versions}"
