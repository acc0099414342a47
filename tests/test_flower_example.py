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
import torch
from flwr.app import Context, RecordDict
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    """At most 25 lines added and removed; the page shows just this diff."""
    changed = [line for line in diff() if re.match(r"[+-](?![+-]{2} )", line)]
    assert 0 < len(changed) <= 25
    page = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    assert "\n".join(diff()) in page


def app(side: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of one of the two apps."""
    monkeypatch.syspath_prepend(str(EXAMPLES / side))
    for name in [n for n in sys.modules if n.split(".")[0] == "pictures"]:
        del sys.modules[name]
    return {part: importlib.import_module(f"pictures.{part}") for part in ("client_app", "server_app", "task")}


@pytest.mark.parametrize("side", ["before", "after"])
def test_both_run(side: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four rounds with three nodes classify the pictures; chance would classify a tenth.

    Steps of 0.02 end above 95 % from each of eight random starts. Longer ones diverge from some of them, and shorter
    ones have not left the start yet.
    """
    modules = app(side, monkeypatch)
    monkeypatch.chdir(tmp_path)
    grid = Direct(modules["client_app"].app, range(3))
    config: dict[str, Any] = {"num-server-rounds": 4, "local-epochs": 3, "learning-rate": 0.02, "batch-size": 16}
    config["fraction-evaluate"] = 0.5
    for context in grid.nodes.values():
        context.run_config = config
    torch.manual_seed(0)
    modules["server_app"].app(grid, Context(1, 1, {}, RecordDict(), config))
    task = modules["task"]
    net = task.Net()
    net.load_state_dict(torch.load(tmp_path / "final_model.pt"))
    _, accuracy = task.test(net, task.load_centralized_dataset(), torch.device("cpu"))
    assert accuracy > 0.8


def test_the_apps_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server app of docs/flower.md with both client apps; `mine` has a linear model and random data."""
    mine, x, y = ModuleType("mine"), torch.randn(4, 40, 20), torch.randint(3, (4, 40))

    def load_data(context: Context) -> DataLoader[Any]:
        partition = int(context.node_config["partition-id"])
        return DataLoader(TensorDataset(x[partition], y[partition]), batch_size=8)

    mine.__dict__.update(Net=lambda: nn.Linear(20, 3), load_data=load_data)
    monkeypatch.setitem(sys.modules, "mine", mine)
    monkeypatch.chdir(tmp_path)
    server, *clients = [block.text for block in blocks(ROOT / "docs" / "flower.md") if block.language == "python"]
    assert len(clients) == 2
    for number, client in enumerate(clients):
        names: list[dict[str, Any]] = [{}, {}]
        out = f"results/{number}"
        text = server.replace("num_rounds=20", "num_rounds=2").replace("results/flower/fedkin", out)
        exec(text.replace("Local(epochs=5)", "own_loops=True") if "Work(" in client else text, names[0])
        exec(client, names[1])
        names[0]["app"](Direct(names[1]["app"], range(4)), Context(1, 1, {}, RecordDict(), {}))
        records = (tmp_path / out / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["replies"] for line in records] == [4, 4]
