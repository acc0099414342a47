"""The page on models: its blocks are executed, in their order and in one folder."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedkin.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def test_the_blocks_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known: dict[str, Any] = {}
    said = ""
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if name := re.match(r"# (\w+\.\w+)\n", block):
            (tmp_path / name[1]).write_text(block)
        elif kind == "sh":
            for line in block.splitlines():
                done = CliRunner().invoke(app, shlex.split(line)[1:])
                assert done.exit_code == 0, done.output
                said += done.output
        else:
            exec(block, known)
    assert "finetuned: continues after round 2" in said
    run, images = known["run"], known["x"]
    assert len(run.rounds) == 6
    expected = run.predict(images.reshape(-1, 64), client="3", output="scores")
    for variable in ("scores", "scores_pt"):
        torch.testing.assert_close(known[variable], torch.as_tensor(expected), rtol=1e-5, atol=1e-5)
    average = known["fedkin"].load_run("results/mine/fedavg")
    np.testing.assert_allclose(
        known["scores_onnx"], average.predict(images.reshape(-1, 64), output="scores"), rtol=1e-5, atol=1e-5
    )
    assert (tmp_path / "client-3.safetensors").exists()
    for line in PAGE.read_text().split("three.safetensors")[2].splitlines()[1:4]:  # what the command has printed
        assert line.strip() in said
