"""How much memory there is, so that work that cannot fit is refused before it slows the machine down."""

import os
import re
from pathlib import Path

from fedkin.errors import TOO_LARGE, BadInput

MEMORY_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available_memory() -> int:
    """Bytes that can still be used: of the machine, and at most as many as a container may have."""
    meminfo = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s*(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    machine = int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [Path(name).read_text().strip() for name in MEMORY_FILES if Path(name).is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])


def check_memory(numbers: int) -> None:
    """Refuse work that needs more numbers (4 bytes each) at once than fit into memory."""
    if numbers > 1 << 26 and 4 * numbers > available_memory():
        raise BadInput(f"the parameters of all models take {4 * numbers / 2**30:.0f} GiB, and {TOO_LARGE}")
