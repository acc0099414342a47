"""Runs as tasks on Ray, on the cores of a cluster.

Tasks fill run folders, and what is missing afterwards is carried out here. A folder travels as an archive, so that the
machines need no common disk; data files and own modules must be at the same paths on all of them.
"""

import io
import os
import re
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkin.cores import usable_cores
from fedkin.errors import BadInput, in_short
from fedkin.experiments.grid import Plan
from fedkin.experiments.preparation import Preparation
from fedkin.files import json_object

OWN = "ray"  # the address of a Ray that is started on this machine


class Cluster:
    """Carry out runs as tasks on Ray, and put their folders where they would be otherwise.

    address  `ray`, or that of a cluster, such as `auto` or `ray://head:10001`
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._ray: Any = None  # once it is connected

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray:
            self._ray.shutdown()

    def carry_out(
        self, units: Sequence[Sequence[Plan]], out: Path, preparation: Preparation, fresh: bool = False
    ) -> list[str]:
        """A task for each unit. Returns the names of runs that have ended."""
        self._ray = self._ray or _connected(self.address)
        return _ended_tasks(self._ray, units, out, preparation, fresh)


def _ended_tasks(
    ray: Any, units: Sequence[Sequence[Plan]], out: Path, preparation: Preparation, fresh: bool
) -> list[str]:
    data, listener = preparation.data, preparation.listener
    task = ray.remote(num_cpus=1)(run_in_task)
    waiting = {}
    for unit in units:
        before = packed(out, [] if fresh else [f"{plan.config.name}/{plan.name}" for plan in unit])
        waiting[task.remote(list(unit), data and str(data.absolute()), before)] = unit
    total, ended = len(waiting), []
    listener.doing(f"{total} tasks on Ray")
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        unit = waiting.pop(done)
        try:
            archive = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (
                cause
                if isinstance(cause, BadInput)
                else BadInput(f"a task on Ray failed ({in_short(cause)}): run without --on to see where")
            ) from None
        restore(archive, out)
        for plan in unit:
            if summary := json_object(out / plan.config.name / plan.name / "summary.json"):
                listener.end(plan.name, summary, True)
                ended.append(plan.name)
        listener.doing(f"{total - len(waiting)} of {total} tasks on Ray are done")
    return ended


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the way it will be, without a warning
    try:
        import ray
    except ImportError:
        raise BadInput("--on needs Ray: pip install 'fedkin[cluster]', or leave it out") from None
    if (found := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address)) is not None:
        try:  # Ray itself would wait for minutes
            socket.create_connection((found[1], int(found[2])), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise BadInput(f"nothing answers at '{address}' ({in_short(error)}): check it, or leave out --on") from None
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address == OWN:
            ray.init(num_cpus=usable_cores(), include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # whatever Ray raises
        raise BadInput(
            f"there is no Ray at '{address}' ({in_short(error)}): check the address, or leave out --on"
        ) from None
    return ray


def run_in_task(plans: list[Plan], data: str | None, before: bytes) -> bytes:
    """A task: the runs of plans in a folder of their own, on one core. Returns their folders."""
    import torch

    from fedkin.experiments.run import run_plans

    torch.set_num_threads(1)
    out = Path(tempfile.mkdtemp(prefix="fedkin-task-"))
    try:
        restore(before, out)
        run_plans(plans, out=out, data=data)
        return packed(out, [f"{plan.config.name}/{plan.name}" for plan in plans])
    finally:
        shutil.rmtree(out, ignore_errors=True)


def packed(out: Path, names: Sequence[str]) -> bytes:
    """Those of these folders that exist, as an archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in names:
            if (out / name).is_dir():
                archive.add(out / name, arcname=name)
    return content.getvalue()


def restore(content: bytes, out: Path) -> None:
    """Put the folders of an archive in their places; each replaces what was there at once."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".arrived-") as aside:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(aside, filter="data")
        for folder in Path(aside).glob("*/*"):
            place = out / folder.parent.name / folder.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                shutil.rmtree(place)
            folder.rename(place)
