"""A complete Flower federation on this machine: a SuperLink and SuperNodes on loopback, started and stopped together.

    python -m loopback examples/flower/digits --nodes 5

Every process has a keeper (`loopback.keeper`), so that none outlives the one that uses this module, however that ends.
Nothing leaves the machine: telemetry, update checks and the installation of dependencies at run time are off.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from fedkin.flower import keys
from loopback import keeper, warm
from loopback.following import Run

Config = Mapping[str, Any]

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
QUICK = {
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds until an app is started; Flower's default is 1
    "OMP_NUM_THREADS": "1",  # all nodes share this machine's cores
}
START_TIMEOUT = 60.0  # seconds until the SuperLink must answer


class Loopback:
    """A SuperLink and its SuperNodes, as a context manager.

    folder      logs, keys, Flower's settings and the SuperLink's database
    nodes       how many SuperNodes there will be, or are simulated
    secure      TLS, and only nodes whose keys are registered
    simulation  no SuperNodes: the SuperLink simulates them
    warm        start apps by fork instead of as new processes: see `loopback.warm`
    """

    def __init__(
        self, folder: Path, *, nodes: int = 5, secure: bool = False, simulation: bool = False, warm: bool = False
    ) -> None:
        self.folder, self.nodes = folder.absolute(), nodes
        self.secure, self.simulation, self.warm = secure, simulation, warm
        self.aside = Path(tempfile.mkdtemp(prefix="fedkin-"))  # a short path, as the path of a socket has to be
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.began: dict[str, int] = {}  # nanoseconds at which each run was started
        paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        self.environment = {
            **os.environ,
            **OFFLINE,
            **QUICK,
            "FLWR_HOME": str(self.folder / "flwr"),
            # The processes have another working directory, and import this package.
            "PYTHONPATH": os.pathsep.join([*map(os.path.abspath, paths), str(Path(__file__).parents[1])]),
            # Flower starts its parts by name.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }

    @property
    def _place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self.environment}

    @property
    def keys(self) -> Path:
        """The folder of certificates and node keys."""
        return self.folder / "keys"

    def __enter__(self) -> Self:
        (self.folder / "flwr").mkdir(parents=True, exist_ok=True)
        connection = f'address = "127.0.0.1:{self.port}"\n'
        connection += f'root-certificates = "{self.keys / "ca.pem"}"\n' if self.secure else "insecure = true\n"
        settings = f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n{connection}'
        (self.folder / "flwr" / "config.toml").write_text(settings, encoding="utf-8")
        try:
            if self.secure and not self.keys.exists():
                keys.make(self.keys, self.nodes)
            if self.warm:
                self.environment["PATH"] = f"{warm.commands(self.aside)}{os.pathsep}{self.environment['PATH']}"
                self.start("warm", [sys.executable, "-m", warm.__name__, str(self.aside)])
            self.start_link()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop_all()

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers. Its database is kept when it is stopped."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        if self.secure:
            command += ["--ssl-ca-certfile", str(self.keys / "ca.pem"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(self.keys / "superlink.pem")]
            command += ["--ssl-keyfile", str(self.keys / "superlink.key")]
        else:
            command += ["--insecure"]
        self.start("superlink", [*command, *(["--simulation"] if self.simulation else [])])
        verify: Any = str(self.keys / "ca.pem") if self.secure else True
        address = f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}/health"
        deadline = time.monotonic() + START_TIMEOUT
        with httpx.Client(verify=_verifier(verify), timeout=2) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(address).is_success:
                        return
                if self.processes["superlink"].poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the SuperLink did not start: {self.last_word('superlink')}")
                time.sleep(0.1)

    def start_node(self, partition: int, name: str = "", options: Sequence[str] = ()) -> str:
        """Start the SuperNode of a partition; its name. With `secure`, its key must have been registered."""
        name = name or f"node-{partition}"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        memory = self.folder / "memory" / name
        command += ["--node-config", f'partition-id={partition} num-partitions={self.nodes} memory-folder="{memory}"']
        if not options and self.secure:
            options = ["--root-certificates", str(self.keys / "ca.pem")]
            options += ["--auth-supernode-private-key", str(self.keys / f"node-{partition}")]
        self.start(name, [*command, *(options or ["--insecure"])])
        return name

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process that writes to a log of its own."""
        with self._log_file(name).open("ab") as log:
            self.processes[name] = keeper.kept(command, stdout=log, stderr=subprocess.STDOUT, **self._place)

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process, and what it has started."""
        process = self.processes.pop(name)
        if process.poll() is None:
            if how == signal.SIGKILL:
                keeper.kill([process.pid, *keeper.descendants([process.pid])])
            else:
                process.send_signal(how)
        with process:  # closes the pipe, and waits
            pass

    def stop_all(self) -> None:
        """End all processes, the nodes first. All are signalled before any is waited for."""
        last = ("superlink", "warm")
        for name, process in self.processes.items():
            if process.poll() is None and name not in last:
                process.terminate()
        for name in sorted(self.processes, key=lambda name: (name in last, name)):
            self.stop(name)
        shutil.rmtree(self.aside, ignore_errors=True)

    def ended(self) -> dict[str, int]:
        """The processes that have ended by themselves, with their exit codes."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    # -- Flower's commands ---------------------------------------------------------------------------------------------

    def flwr(self, *words: str) -> dict[str, Any]:
        """Run a `flwr` command; its output in JSON."""
        command = ["flwr", *words, "--format", "json"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            with keeper.kept(command, stdout=out, stderr=errors, **self._place) as process:
                process.wait()
            for file in (out, errors):
                file.seek(0)
            printed, more = (file.read().decode(errors="replace") for file in (out, errors))
        with contextlib.suppress(ValueError):
            answer: dict[str, Any] = json.loads(printed[printed.index("{") :])
            if answer.get("success", True):
                return answer
        raise RuntimeError(f"{shlex.join(command)} failed: {_last_line(more) or _last_line(printed)}")

    def register(self, partition: int) -> None:
        """Register the public key of a node with the SuperLink."""
        self.flwr("supernode", "register", str(self.keys / f"node-{partition}.pub"), "loopback")

    def run(self, app: Path, config: Config) -> str:
        """Start a run of an app; its id."""
        words = ["run", str(app.absolute()), "loopback", "--run-config", " ".join(map(_setting, config.items()))]
        if self.simulation:
            words += ["--federation-config", f"num-supernodes={self.nodes} client-resources-num-cpus=1"]
        began = time.time_ns()
        run = str(self.flwr(*words)["run-id"])
        self.began[run] = began
        return run

    def status(self, run: str) -> tuple[str, str]:
        """The status of a run (pending, starting, running, finished:completed, …), and why it has failed."""
        found = self.flwr("list", "loopback", "--run-id", run)["runs"][0]
        return str(found["status"]), str(found["status-details"])

    def log(self, name: str, last: int = 30) -> str:
        """The end of a process's log."""
        file = self._log_file(name)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
        return "\n".join(lines[-last:])

    def connected(self) -> int:
        """How many SuperNodes the SuperLink has accepted so far, by their logs."""
        return sum("SuperNode ID" in self.log(name, 100_000) for name in self.processes if name.startswith("node-"))

    def last_word(self, name: str) -> str:
        """The last line of a process's log: of an error, what it says."""
        return _last_line(self.log(name)) or "without a word"

    def failures(self) -> int:
        """How often a server app has failed so far, by the logs."""
        return sum(self.log(name, 100_000).count("ServerApp raised an exception") for name in ("superlink", "warm"))

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def records(self, run: str, out: Path, timeout: float = 600.0) -> Iterator[dict[str, Any]]:
        """The records of a run's rounds as they are written, until its summary is there; raises if it ends before.

        timeout  the longest that a round may take
        """
        followed = Run(self, run, out, self.began.get(run, 0), timeout)
        while True:
            yield from followed.new()
            if followed.is_done:
                return
            time.sleep(0.2)


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _last_line(text: str) -> str:
    """The last line that says something, without Flower's frame around messages."""
    lines = [line.strip(" │╭╮╰╯─\t") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _setting(item: tuple[str, Any]) -> str:
    """A setting as TOML."""
    key, value = item
    return f"{key}={json.dumps(str(value) if isinstance(value, Path) else value)}"


def _verifier(verify: Any) -> Any:
    import ssl

    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
