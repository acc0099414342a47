"""A federation on loopback from start to end, with its nodes and rounds on the screen."""

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedkin.experiments import progress
from fedkin.files import json_object, writable_folder
from fedkin.output import console
from fedkin.reports.report import table
from fedkin.reports.runs import collect
from loopback.federation import Loopback
from loopback.following import Run

FEWEST = 2  # nodes without which there is no round


def show(given: argparse.Namespace) -> None:
    """Start the federation, run the algorithms on it at the same time, and show the table of results."""
    out, names = writable_folder(given.out.absolute()), given.algorithms.split()
    if given.fresh:
        for name in names:
            shutil.rmtree(out / name, ignore_errors=True)
    screen = console()
    screen.print(f"starting a SuperLink and {given.nodes} SuperNodes on loopback …")
    with _folder(out) as folder, contextlib.ExitStack() as stack:
        federation = Loopback(folder, secure=given.secure, warm=not given.cold, nodes=given.nodes)
        stack.enter_context(federation)
        for partition in range(given.nodes):
            if given.secure:
                federation.register(partition)
            federation.start_node(partition)
        listener = stack.enter_context(progress.shown(screen))
        listener.grid(len(names))
        before = {name: json_object(out / name / "summary.json") for name in names}
        settings = {"nodes": given.nodes, "rounds": given.rounds, "out": out}
        settings |= {"identity": "key"} if given.secure else {}
        ids = {name: federation.run(given.app, {**settings, "algorithms": name}) for name in names}
        runs = {name: Run(federation, run, out / name, federation.began[run]) for name, run in ids.items()}
        Session(federation, listener, given.nodes, given.rounds, runs, before).watch()
    screen.print(table([run for run in collect(out) if run.name in names]))
    screen.print(f"All processes are stopped. Results are in {given.out}.", soft_wrap=True)


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder for the files of the processes. If the federation fails, the logs are moved to the results."""
    folder, is_kept = Path(tempfile.mkdtemp(prefix="fedkin-")), False
    try:
        yield folder
    except (RuntimeError, ValueError, OSError) as error:
        logs = out / "logs"
        try:
            shutil.rmtree(logs, ignore_errors=True)
            shutil.copytree(folder, logs, ignore=lambda _, names: [name for name in names if not name.endswith(".log")])
        except OSError:  # on a full disk they stay where they are
            logs, is_kept = folder, True
        raise RuntimeError(f"{error} (logs are in {logs})") from None
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


class Session:
    """The runs of a federation on the screen: rounds as they end, and what happens to nodes.

    before  the summaries of runs that had ended before
    """

    def __init__(
        self,
        federation: Loopback,
        listener: progress.Listener,
        nodes: int,
        rounds: int,
        runs: dict[str, Run],
        before: dict[str, Any],
    ) -> None:
        self.federation, self.listener, self.nodes, self.rounds = federation, listener, nodes, rounds
        self.runs, self.before = runs, before
        self.connected = -1
        self._ended: set[str] = set()  # nodes that are known to have ended
        self._trouble: dict[str, str] = {}  # what was last said of each node

    def watch(self) -> None:
        """Follow the runs until all are done; raises with the reason if one fails."""
        going = dict(self.runs)
        while going:
            self._look_at_nodes()
            for name, run in list(going.items()):
                try:
                    records = run.new()
                except RuntimeError as error:
                    raise RuntimeError(f"{name} failed in round {run.seen + 1}: {error}") from None
                for record in records:
                    self._show(name, record)
                if run.is_done:
                    summary = json_object(run.out / "summary.json") or {}
                    self.listener.end(name, summary, summary == self.before.get(name))
                    del going[name]
            time.sleep(0.2)

    def _show(self, name: str, record: dict[str, Any]) -> None:
        """A round, and which nodes have failed in it."""
        self.listener.round(name, record)
        for node, why in record.get("refused", {}).items():
            if self._trouble.get(node) != why:
                self.listener.warn(name, f"round {record['round'] + 1} without client {node}: {why}")
            self._trouble[node] = why

    def _look_at_nodes(self) -> None:
        """Say how many nodes are connected, until all are, and which have ended."""
        if self.connected < self.nodes:
            now = self.federation.connected()
            if now != self.connected:
                self.connected = now
                self.listener.doing(f"{now} of {self.nodes} nodes are connected")
            if now == self.nodes:
                for name, run in self.runs.items():
                    self.listener.begin(name, self.rounds, run.done)
        for name, code in self.federation.ended().items():
            if name.startswith("node-") and name not in self._ended:
                self._ended.add(name)
                sentence = f"has ended with code {code}: {self.federation.last_word(name)}"
                if self.connected < self.nodes or self.nodes - len(self._ended) < FEWEST:
                    raise RuntimeError(f"{name} {sentence}")
                self.listener.warn(name, sentence)
