"""Start a federation on loopback, run an app on it, show the result, stop all processes."""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from fedkin.errors import BadInput
from fedkin.experiments import progress
from fedkin.output import console
from fedkin.reports.report import table
from fedkin.reports.runs import collect
from loopback.federation import Loopback


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loopback", description=__doc__)
    parser.add_argument("app", type=Path, help="the folder of a Flower app that takes `nodes`, `rounds` and `out`")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--algorithms", default="fedavg fedprox fedkin")
    parser.add_argument("--out", type=Path, default=Path("results/flower"), help="folder for the results")
    parser.add_argument("--secure", action="store_true", help="TLS, and only nodes whose keys are registered")
    parser.add_argument("--cold", action="store_true", help="start apps as new processes, as on separate machines")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that have finished")
    given = parser.parse_args()
    # On SIGTERM, end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _show(given)
    except KeyboardInterrupt:
        Console(stderr=True).print("\nstopped; the same command continues")
        sys.exit(130)
    except (RuntimeError, BadInput) as error:
        Console(stderr=True).print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


def _show(given: argparse.Namespace) -> None:
    """Run, with progress on the screen."""
    out: Path = given.out.absolute()
    names = given.algorithms.split()
    if given.fresh:
        for name in names:
            shutil.rmtree(out / name, ignore_errors=True)
    screen = console()
    with tempfile.TemporaryDirectory(prefix="fedkin-") as scratch, contextlib.ExitStack() as stack:
        screen.print(f"starting a SuperLink and {given.nodes} SuperNodes on loopback …")
        federation = Loopback(Path(scratch), secure=given.secure, warm=not given.cold, nodes=given.nodes)
        stack.enter_context(federation)
        for partition in range(given.nodes):
            if given.secure:
                federation.register(partition)
            federation.start_node(partition)
        settings = {"nodes": given.nodes, "rounds": given.rounds, "algorithms": given.algorithms, "out": out}
        run = federation.run(given.app, settings)
        listener = stack.enter_context(progress.shown(screen))
        listener.grid(len(names))
        for name in names:
            kept = (out / name / "summary.json").exists()
            for record in federation.records(run, out / name):
                if record["round"] == 0:
                    listener.begin(name, given.rounds, 0)
                listener.round(name, record)
            listener.end(name, json.loads((out / name / "summary.json").read_text(encoding="utf-8")), kept)
    screen.print(table([run for run in collect(out) if run.name in names]).rich())
    screen.print(f"All processes are stopped. Results are in {given.out}.", soft_wrap=True)


if __name__ == "__main__":
    main()
