"""The cores that this process may use, and threads that wait for work without keeping them busy.

PyTorch's threads wait in a loop for the next operation by default. Beside other processes they take the cores from
those who have work, and everything slows down.
"""

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
# How threads wait: as OpenMP calls it, and in GNU's and LLVM's own words.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def share_cores(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads sleep while they wait, and have no more of them than the container may use.

    Libraries read these settings when they are loaded: it has no effect once PyTorch is imported. What the user has
    set is kept.
    """
    if not any(name in environment for name in WAITING):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    if "OMP_NUM_THREADS" not in environment and (usable := usable_cores()) < affine_cores():
        environment["OMP_NUM_THREADS"] = str(usable)  # else PyTorch's own choice, one thread for each real core


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, and no more than its container's limit."""
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:
        return affine_cores()
    return within_limit(affine_cores(), container_limit(groups, CGROUPS))


def affine_cores() -> int:
    """Cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def within_limit(cores: int, limit: float) -> int:
    """At least one of the cores, and no more than the limit, rounded up.

    >>> within_limit(8, 2.5), within_limit(2, math.inf), within_limit(4, 0.2)
    (3, 2, 1)
    """
    return min(cores, max(1, math.ceil(min(limit, cores))))


def container_limit(groups: str, root: Path) -> float:
    """Processor time per time that the control groups of a process allow: its own, and all above it.

    groups  the content of /proc/self/cgroup, with lines `id:controllers:path`
    root    the folder of all control groups

    Version 2 has `quota period` or `max period` in cpu.max; version 1 has two files, and a quota of −1 for none. In a
    container the path may be that of the host, which is not there: then the groups above count, the root at last.
    """
    limits = [math.inf]
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folders = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            folders = [root / controllers, root / "cpu"]
        else:
            continue
        limits += [limit for folder in folders for limit in _limits(folder, path)]
    return min(limits)


def _limits(folder: Path, path: str) -> Iterator[float]:
    own = PurePosixPath(path.lstrip("/"))
    for group in (own, *own.parents):
        words = _words(folder / group / "cpu.max") or [
            *_words(folder / group / "cpu.cfs_quota_us"),
            *_words(folder / group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # neither max nor −1
            yield int(words[0]) / int(words[1])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []
