"""The page while runs go on: a server for this machine only."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import NO_BROWSER, chromium, drawn, launched, opened, until
from fedkin.errors import BadInput
from fedkin.reports.page import server as serving
from fedkin.reports.page.server import PageServer, state_text
from fedkin.reports.runs import collect
from page_runs import write_comparison_of
from run_folders import FEDAVG, FEDKIN, write_run


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(serving, "PATIENCE", 0.0)
    monkeypatch.setattr(serving, "SHARE", 0.0)
    made = PageServer(tmp_path)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def asked(server: PageServer, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, str]:
    port = int(server.server_address[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_follows_the_folder(server: PageServer, tmp_path: Path) -> None:
    assert "There are no runs" in asked(server)[1]
    write_run(tmp_path, "a", FEDAVG, summary=False, rounds=3)
    status, page = asked(server)
    assert status == 200
    assert "1 running, 0 finished" in page
    version = json.loads(asked(server, "/version")[1])["version"]
    assert f'data-version="{version}"' in page
    assert "connect-src 'self'" in page
    write_run(tmp_path, "b", FEDKIN)
    assert json.loads(asked(server, "/version")[1])["version"] != version
    assert "1 running, 1 finished" in asked(server)[1]


def test_only_this_machine_is_served(server: PageServer) -> None:
    """Another site can have its name point to 127.0.0.1, but not change the header in which the browser sends it."""
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert asked(server, host="evil.example")[0] == 403
    assert asked(server, host=f"evil.example:{port}")[0] == 403
    assert asked(server, host="")[0] == 403
    assert asked(server, host=f"localhost:{port}")[0] == 200
    assert asked(server, "/../../etc/passwd")[0] == 404
    assert asked(server, method="POST")[0] == 501
    with urllib.request.urlopen(server.address) as answer:
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"


def test_what_remains_is_known_from_the_plan(tmp_path: Path) -> None:
    write_run(tmp_path, "a", FEDAVG)
    write_run(tmp_path, "b", FEDKIN, summary=False, rounds=3)
    write_run(tmp_path, "c", FEDKIN | {"beta": 0.1}, status="diverged", diverged_at=3)
    folder = tmp_path / "demo"
    assert state_text(collect(folder), folder) == ("1 running, 1 finished, 1 diverged (FedKin β=0.5: round 2 of 30)")
    (folder / "plan.json").write_text(json.dumps({"runs": ["a", "b", "c", "d", "e"]}))
    assert "1 diverged, 2 remaining (" in state_text(collect(folder), folder)
    assert "2 remaining" in state_text(collect(tmp_path), tmp_path)
    (folder / "plan.json").write_text("{")
    assert "remaining" not in state_text(collect(folder), folder)


def test_bad_folders_and_ports(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a folder: give the one that 'fedkin run' writes to"):
        PageServer(tmp_path / "none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="choose another one with --port"):
            PageServer(tmp_path, taken.getsockname()[1])
    with pytest.raises(BadInput, match="choose another one with --port"):
        PageServer(tmp_path, 99_999)


def test_the_command_ends_with_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "a", FEDAVG)
    command = [sys.executable, "-c", "from fedkin.cli import main; main()", "watch", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert address is not None, first
        with urllib.request.urlopen(address[0]) as answer:
            assert "Only one method has finished" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=30)
    assert "The page has ended; runs go on." in said
    assert errors == ""
    assert process.returncode == 0


@pytest.mark.skipif(chromium() is None, reason=NO_BROWSER)
def test_the_page_renews_itself_and_keeps_choices(server: PageServer, tmp_path: Path) -> None:
    write_comparison_of(tmp_path)
    with launched() as browser, opened(browser, server.address) as page:
        page.get_by_label("FedAvg", exact=True).uncheck()
        write_run(tmp_path, "new", FEDKIN, summary=False, rounds=4)
        until(page, "document.body.innerText.includes('1 running')")
        drawn(page)
        assert not page.get_by_label("FedAvg", exact=True).is_checked()
        assert page.get_by_label("Kin", exact=True).is_checked()
        server.shutdown()
        server.server_close()
        until(page, "document.body.innerText.includes('The server has ended')")
        assert {said for said in page.said if not said.startswith("http")} == {
            "error: Failed to load resource: net::ERR_CONNECTION_REFUSED"
        }
