"""The page of a folder while its runs go on, from a server that only this machine can reach."""

import hashlib
import json
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedkin.errors import BadInput
from fedkin.markup import tag
from fedkin.reports.page.document import HOW, Live, can_make_page, page_of
from fedkin.reports.run import Run
from fedkin.reports.runs import collect

LOOPBACK = "127.0.0.1"
_FILES = ("config.json", "rounds.jsonl", "summary.json", "plan.json")
# A page is made anew at most so often, and not more than a fifth of the time is spent on it.
PATIENCE, SHARE = 2.0, 5.0
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WatchedFolder:
    """The newest page of a folder, made when it is asked for and files have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._version, self._page = "", ""
        self._looked, self._wait = -1e9, PATIENCE

    def version(self) -> str:
        """A digest of the files that the page depends on."""
        with self._lock:
            return self._current()

    def page(self) -> tuple[str, str]:
        """The page and its version."""
        with self._lock:
            version = self._current()
            if not self._page:
                began = time.monotonic()
                self._page = self._made(version)
                self._wait = max(PATIENCE, SHARE * (time.monotonic() - began))
                self._looked = time.monotonic()
            return self._page, version

    def _current(self) -> str:
        now = time.monotonic()
        if now - self._looked >= self._wait:
            self._looked = now
            if (found := self._digest()) != self._version:
                self._version, self._page = found, ""
        return self._version

    def _digest(self) -> str:
        known = hashlib.sha256()
        for path in sorted(path for name in _FILES for path in self.folder.rglob(name)):
            try:
                stat = path.stat()
            except OSError:  # removed in the meantime
                continue
            known.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "backslashreplace"))
        return known.hexdigest()[:16]

    def _made(self, version: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a run whose files are being written is left out
                runs = collect(self.folder)
        except BadInput:
            words = f"There are no runs in {self.folder} yet. This page looks again every two seconds."
            return f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="2">{tag("p", words)}'
        return page_of(runs, Live(version, state_text(runs, self.folder)))


def state_text(runs: list[Run], folder: Path) -> str:
    """How many runs are running, have finished, and remain: `3 running, 12 finished, 20 remaining; …`."""
    states = Counter(run.status for run in runs)
    planned = planned_runs(folder)
    begun = {(run.folder.parent, run.folder.name) for run in runs}
    remaining = sum((place, name) not in begun for place, names in planned.items() for name in names)
    words = [f"{states['running']} running", f"{states['finished']} finished"]
    words += [f"{states['diverged']} diverged"] if states["diverged"] else []
    words += [f"{remaining} remaining"] if planned else []
    going = [run for run in runs if run.status == "running"]
    tail = "; ".join(f"{run.label}: {run.state.removeprefix('running, ')}" for run in going[:3])
    more = f" and {len(going) - 3} more" if len(going) > 3 else ""
    return ", ".join(words) + (f" ({tail}{more})" if tail else "")


def planned_runs(folder: Path) -> dict[Path, list[str]]:
    """The runs that the last command was to carry out, by the folder of their experiment."""
    found = {}
    for path in [*folder.absolute().rglob("plan.json"), folder.absolute().parent / "plan.json"]:
        try:
            names = json.loads(path.read_text(encoding="utf-8"))["runs"]
            found[path.parent] = [str(name) for name in names]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {place: names for place, names in found.items() if place.is_relative_to(folder.absolute())}


class PageServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/version` on the loopback address."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        if not can_make_page():
            raise BadInput(HOW)
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder: give the one that 'fedkin run' writes to, such as results")
        self.watched = WatchedFolder(folder)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
            raise BadInput(f"cannot listen on port {port} ({reason}): choose another one with --port") from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        # A page of another site could reach this server under a name that it points to 127.0.0.1.
        if self.headers.get("Host", "") not in {f"{name}:{port}" for name in (LOOPBACK, "localhost")}:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"this server is for http://{LOOPBACK}:{port}/ only\n")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.watched.page()[0])
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, "application/json", json.dumps({"version": self.server.watched.version()}))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only the page, at /\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "backslashreplace")
        try:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:  # the reader has left
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def serve_until_stopped(server: PageServer, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C."""
    say(f"The page of {server.watched.folder} is at {server.address} and follows its runs. Ctrl-C ends it.")
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("The page has ended; runs go on. `fedkin report` writes it to a file.")
    finally:
        server.server_close()
