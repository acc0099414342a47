"""Runs in processes of this machine, one core each.

Runs that do not share products keep one core busy at best if their federation is small; side by side they keep all of
them busy. A process is a new interpreter, so that scripts and notebooks need no guard. It writes to run folders as
this process would, reports rounds as they end, and ends with this process, however that ends: its standard input is a
lifeline, and run folders are sound whenever it is cut.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from fedkin.cores import share_cores
from fedkin.errors import BadInput
from fedkin.experiments.grid import Plan
from fedkin.experiments.preparation import Preparation
from fedkin.memory import available_memory

COPIES = 4  # of the data in a process: as loaded, divided among clients, products, and some room
LEAST_MEMORY = 1 << 30  # bytes of a process: libraries and models
SCRIPT = "__main__:"  # the import path of what the user's script or notebook has
START = "from fedkin.experiments.processes import serve; serve()"


class Processes:
    """Carry out runs in several processes. They start when they are needed, and end with the context.

    cores  number of cores (None: those that PyTorch would use)
    """

    def __init__(self, cores: int | None = None) -> None:
        self._cores = cores
        self._workers: list[_Worker] = []
        self._messages: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def carry_out(
        self, units: Sequence[Sequence[Plan]], out: Path, preparation: Preparation, fresh: bool = False
    ) -> list[str]:
        """The runs of each unit in one process, units side by side. Returns the names of runs that were reported.

        With one process only, and for classes of a script, which other processes do not have, this process is left
        to do it.
        """
        there = [unit for unit in units if not any(SCRIPT in repr(plan.config) for plan in unit)]
        listener, waiting = preparation.listener, deque(there)
        count = self._number(there, preparation)
        if count < 2:
            return []
        while len(self._workers) < count:
            threads = max(1, self._available // count)
            self._workers.append(_Worker(threads, self._messages))
        idle, busy = self._workers[:count], 0
        while waiting or busy:
            while waiting and idle:
                idle.pop().give((list(waiting.popleft()), out, preparation.data, fresh))
                busy += 1
            worker, (what, *content) = self._messages.get()
            if what == "event":
                getattr(listener, content[0])(*content[1:])
            elif what == "warning":
                message, category = content
                warnings.warn(message, category, stacklevel=2)
            elif what == "failed":
                raise content[0]
            elif what == "ended":
                raise BadInput(
                    f"a process that carried out runs has ended (exit code {worker.code}): the same command continues; "
                    "with less memory to spare, OMP_NUM_THREADS=1 uses one process"
                )
            else:
                idle.append(worker)
                busy -= 1
        return [plan.name for unit in there for plan in unit]

    @property
    def _available(self) -> int:
        import torch

        return self._cores or torch.get_num_threads()

    def _number(self, units: Sequence[Sequence[Plan]], preparation: Preparation) -> int:
        """How many processes: by cores, by memory, and one if each would use a graphics card or several threads."""
        configs = [unit[0].config for unit in units]
        if any(config.device != "cpu" for config in configs):
            return 1
        threads = max((config.threads or 1 for config in configs), default=1)
        needed = COPIES * 4 * max((preparation.numbers(config) for config in configs[:1]), default=0) + LEAST_MEMORY
        fitting = max(1, available_memory() // needed)
        return min(len(units), max(1, self._available // threads), fitting)


class _Worker:
    """A process that carries out units of runs, one after the other."""

    def __init__(self, threads: int, messages: "queue.SimpleQueue[tuple[_Worker, Any]]") -> None:
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths}
        share_cores(environment)
        # A session of its own: Ctrl-C is for this process alone, which then ends that one.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START],
            env=environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()

    @property
    def code(self) -> int:
        """Its exit code."""
        return self.process.wait()

    def give(self, task: Any) -> None:
        """Let it carry out a task. A process that has ended says so by its last message."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            _write(self.process.stdin, task)

    def end(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def _listen(self, messages: "queue.SimpleQueue[tuple[_Worker, Any]]") -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(EOFError, pickle.UnpicklingError), self.process.stdout as stream:
            while True:
                messages.put((self, pickle.load(stream)))
        messages.put((self, ("ended",)))


def _write(stream: IO[bytes], message: Any) -> None:
    stream.write(pickle.dumps(message))
    stream.flush()


# -- in the process ----------------------------------------------------------------------------------------------------


class _Reports:
    """A listener that sends what it hears."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return lambda *content: _write(self._stream, ("event", name, *content))

    def grid(self, runs: int) -> None:
        """The other process knows."""


def serve() -> None:
    """Carry out the tasks that come through standard input; with its end the process ends, whatever it does."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what modules print is no answer
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(tasks,), daemon=True).start()

    from fedkin.experiments.run import carry_out

    preparations: dict[Path | None, Preparation] = {}  # consecutive units share data
    warnings.showwarning = lambda message, category, *_, **__: _write(answers, ("warning", str(message), category))
    while True:
        unit, out, data, fresh = tasks.get()
        preparation = preparations.setdefault(data, Preparation(data, _Reports(answers)))
        try:
            carry_out(unit, out, preparation, fresh)
        except BaseException as error:
            _write(answers, ("failed", _sent(error)))
        else:
            _write(answers, ("done",))


def _receive(tasks: "queue.SimpleQueue[Any]") -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _sent(error: BaseException) -> BaseException:
    """An error that can be sent; of those that are nobody's input, the stack is shown here."""
    if not isinstance(error, BadInput | OSError | MemoryError):
        traceback.print_exception(error)
    with contextlib.suppress(Exception):
        if isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    return RuntimeError(str(error))
