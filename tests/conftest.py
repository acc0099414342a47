"""Small federations made in memory, and one core for each process of the tests."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported, here and in the processes that tests start

import numpy as np
import pytest
import torch

from command_line import Command, Refusal
from fedkin.algorithms import ClientRows
from fedkin.data.federation import Federation, from_rows
from fedkin.engine import cohorts
from fedkin.engine.simulation import State
from fedkin.types import Tensors


def pytest_configure() -> None:
    """SIGINT and SIGHUP do what they usually do, whoever has started the tests.

    A shell starts jobs in the background with SIGINT ignored, and `nohup` ignores SIGHUP. Processes that tests start
    would inherit that: tests of interrupts would fail, or wait for an end by other means.
    """
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are marked `first` are the first ones of both workers, so that none is left alone with a long one.

    Each of two workers begins with half of the list, and takes tests from the end of the other's when it has none left.
    """
    first = [item for item in items if item.get_closest_marker("first")]
    others = [item for item in items if not item.get_closest_marker("first")]
    one, other = first[::2], first[1::2]
    middle = max(0, len(items) // 2 - len(one))
    items[:] = [*one, *others[:middle], *other, *others[middle:]]


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests need not survive a power failure, and a disk takes milliseconds to say that each would."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def calls_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small clients are in sample space in any order of their samples, as large ones are."""
    monkeypatch.setattr(cohorts, "STEP_CALLS", 0.0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Clients one after the other, in the order of their numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command within this process."""
    return Command(monkeypatch, capsys)


@pytest.fixture
def refused(invoke: Command) -> Refusal:
    """The command within this process, for input that it refuses."""
    return Refusal(invoke)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data directory, and an empty cache in place of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)


def tensors_of(state: State) -> Tensors:
    """The server's state and the clients' memory as tensors, by name."""
    values = {**state.server, **{f"memory {name}": rows for name, rows in state.memory.items()}}
    return {name: value.values if isinstance(value, ClientRows) else value for name, value in values.items()}


def small_federation(
    sizes: Sequence[int] = (7, 4, 9, 3, 6), features: int = 5, classes: int = 3, seed: int = 0
) -> Federation:
    """Clients of different sizes whose samples differ in mean; two testing clients."""
    rng = np.random.default_rng(seed)
    total = int(np.sum(sizes))
    means = np.repeat(rng.uniform(0, 1, (len(sizes), features)), sizes, axis=0)
    x = torch.tensor(means + 0.3 * rng.uniform(0, 1, (total, features)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, classes, total))
    test = from_rows(x[:6].clone(), y[:6].clone(), np.array([2, 4]))
    train = from_rows(x, y, np.array(sizes))
    return Federation(train, test, classes, (features,), torch.zeros(features), torch.ones(features))
