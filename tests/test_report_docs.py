"""The code in docs/report.md runs, in the order of the page, and its example of a terminal is what the program says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "report.md").read_text()


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
    said = capsys.readouterr().out
    assert "fedavg: " in said
    assert "test_accuracy  test_loss" in said
    assert len(names["losses"]) == 5  # type: ignore[arg-type]
