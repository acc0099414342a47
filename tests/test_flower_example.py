"""Migrating an ordinary Flower app to FedKin: the size of the change, and that both versions run."""

import difflib
import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flower_grid import Direct
from pages import blocks

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "flower"


def diff() -> list[str]:
    """From before to after, as `diff -u` writes it."""
    lines: list[str] = []
    names = sorted(str(p.relative_to(EXAMPLES / "before")) for p in (EXAMPLES / "before").rglob("*.*") if p.is_file())
    for name in [n for n in names if n.endswith((".py", ".toml"))]:
        old, new = ((EXAMPLES / side / name).read_text().splitlines() for side in ("before", "after"))
        lines += difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm="")
    return lines


def test_the_diff_is_short_and_in_the_docs() -> None:
    """Under 25 lines added and removed; the page shows just this diff."""
    changed = [line for line in diff() if re.match(r"[+-](?![+-]{2} )", line)]
    assert 0 < len(changed) < 25
    page = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    assert "\n".join(diff()) in page


def app(side: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of one of the two apps."""
    monkeypatch.syspath_prepend(str(EXAMPLES / side))
    for name in [n for n in sys.modules if n.split(".")[0] == "blobs"]:
        del sys.modules[name]
    return {part: importlib.import_module(f"blobs.{part}") for part in ("client_app", "server_app")}


@pytest.mark.parametrize("side", ["before", "after"])
def test_both_run(side: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight rounds with four nodes: well above chance."""
    modules = app(side, monkeypatch)
    grid = Direct(modules["client_app"].app, range(4))
    config: dict[str, Any] = {"num-server-rounds": 8, "local-epochs": 2, "lr": 0.05}
    for context in grid.nodes.values():
        context.run_config = config
    modules["server_app"].app(grid, Context(1, 1, {}, RecordDict(), config))
    accuracy = [float(word) for word in capsys.readouterr().out.split("accuracy")[-1].split()]
    assert len(accuracy) == 8
    assert accuracy[-1] > 0.6


def test_the_apps_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server app of docs/flower.md with both client apps; `mine` has the net and data of `after`."""
    app("after", monkeypatch)
    task, mine = importlib.import_module("blobs.task"), ModuleType("mine")
    mine.__dict__.update(Net=task.Net, load_data=lambda context: task.load_data(context.node_config["partition-id"])[0])
    monkeypatch.setitem(sys.modules, "mine", mine)
    monkeypatch.chdir(tmp_path)
    server, *clients = [block.text for block in blocks(ROOT / "docs" / "flower.md") if block.language == "python"]
    assert len(clients) == 2
    for number, client in enumerate(clients):
        names: list[dict[str, Any]] = [{}, {}]
        out = f"results/{number}"
        exec(server.replace("num_rounds=20", "num_rounds=2").replace("results/flower/fedkin", out), names[0])
        exec(client, names[1])
        names[0]["app"](Direct(names[1]["app"], range(4)), Context(1, 1, {}, RecordDict(), {}))
        records = (tmp_path / out / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["replies"] for line in records] == [4, 4]
