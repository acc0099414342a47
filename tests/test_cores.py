"""Cores that a process may use, and threads that wait without keeping them busy."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin import cores
from fedkin.cores import container_limit, share_cores, usable_cores, within_limit


def written(root: Path, **files: str) -> Path:
    """Files of control groups; `__` in a name is a folder, `_` of the kernel's names stays."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__")[:-1], name.split("__")[-1].replace("cpu_max", "cpu.max"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2_has_a_quota_and_a_period(tmp_path: Path) -> None:
    assert container_limit("0::/\n", written(tmp_path, cpu_max="150000 100000\n")) == 1.5
    assert container_limit("0::/\n", written(tmp_path, cpu_max="max 100000\n")) == math.inf


def test_the_lowest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = written(tmp_path, a__cpu_max="200000 100000", a__b__cpu_max="max 100000", a__b__c__cpu_max="400000 100000")
    assert container_limit("0::/a/b/c\n", root) == 2.0
    assert container_limit("0::/elsewhere\n", root) == math.inf


def test_version_1_has_two_files(tmp_path: Path) -> None:
    group = tmp_path / "cpu,cpuacct" / "docker"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    lines = "11:memory:/docker\n4:cpu,cpuacct:/docker\n"
    assert container_limit(lines, tmp_path) == 0.5
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert container_limit(lines, tmp_path) == math.inf


def test_in_a_container_the_path_may_be_that_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert container_limit("4:cpu,cpuacct:/docker/0123\n", tmp_path) == 3.0


@pytest.mark.parametrize("text", ["", "100000", "x y", "1 0", "-5 100000", "1 2 3"])
def test_what_cannot_be_read_limits_nothing(text: str, tmp_path: Path) -> None:
    assert container_limit("0::/\nnonsense\n", written(tmp_path, cpu_max=text)) == math.inf


def test_at_least_one_core_and_no_more_than_there_are() -> None:
    assert [within_limit(4, limit) for limit in (0.1, 1.0, 1.2, 9.0, math.inf)] == [1, 1, 2, 4, 4]
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_the_affinity_counts() -> None:
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import fedkin.cores as c; "
    script += "print(c.usable_cores())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "affine_cores", lambda: 8)
    monkeypatch.setattr(cores, "container_limit", lambda *_: 2.0)
    given: dict[str, str] = {}
    share_cores(given)
    assert given == {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}
    for own in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "1"}):
        given = {**own, "OMP_NUM_THREADS": "5"}
        share_cores(given)
        assert given == {**own, "OMP_NUM_THREADS": "5"}


def test_without_a_limit_pytorch_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "container_limit", lambda *_: math.inf)
    given: dict[str, str] = {}
    share_cores(given)
    assert given == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_the_command_waits_passively_and_the_library_leaves_the_process_alone() -> None:
    script = (
        "import os, sys, fedkin; assert 'OMP_WAIT_POLICY' not in os.environ; sys.argv[1:] = ['--version']; "
        "import fedkin.__main__ as m\ntry: m.start()\nexcept SystemExit: pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    clean = {key: value for key, value in os.environ.items() if key not in cores.WAITING}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=clean, check=True)
    assert done.stdout.splitlines()[-1] == "PASSIVE False", done.stdout
