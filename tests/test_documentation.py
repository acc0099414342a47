"""Every command and code block of the pages: executed, or executed by the test that the page names.

How a page says that is described in `pages.py` and CONTRIBUTING.md.
"""

import ast
import itertools
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import matplotlib as mpl
import pytest
import torch
import typer.main
from typer.testing import CliRunner

from fedkin import cli
from fedkin.experiments.grid import plans
from fedkin.reports.page.server import PageServer
from pages import PAGES, ROOT, Block, blocks, inline_commands, unfenced_commands

MOST_ROUNDS = ["--set", "rounds=2"]  # appended to `fedkin run` where the page says nothing else
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing but the examples, and nothing of the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, value in (("HOME", tmp_path), ("XDG_CACHE_HOME", tmp_path / "cache"), ("HF_HUB_OFFLINE", 1)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    monkeypatch.setattr(PageServer, "serve_forever", interrupted)  # `fedkin watch` has no other end
    return tmp_path


def interrupted(*_: object, **__: object) -> None:
    """Ctrl-C at once."""
    raise KeyboardInterrupt


# -- a block -----------------------------------------------------------------------------------------------------------


def is_a_test(name: str) -> bool:
    file, _, function = name.partition("::")
    if not (ROOT / file).is_file():
        return False
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def check_tests(block: Block) -> None:
    for name in re.split(r",\s*|\s+and\s+", block.comments["tested by"]):
        assert is_a_test(name), f"{block}: there is no test {name}"


def parse(words: list[str], where: object) -> None:
    """Check a command `fedkin …` without executing any of it.

    Options before the command are only looked up, because parsing them has effects: `--install-completion` writes to
    the user's folder. The settings of `fedkin run` without a file are resolved.
    """
    group = typer.main.get_command(cli.app)
    assert isinstance(group, cli.Commands)
    context, (name, *rest) = click.Context(group, info_name="fedkin"), words[1:]
    if name.startswith("-"):
        known = {option for parameter in group.get_params(context) for option in parameter.opts}
        assert name in known, f"{where}: there is no option {name}"
        return
    command = group.get_command(context, name)
    assert command is not None, f"{where}: there is no command {name}"
    if rest:  # else only its name is mentioned
        parsed = command.make_context(name, rest, parent=context)
        if name == "run" and parsed.params["file"] is None:
            plans(None, parsed.params["settings"])


def quick_options(block: Block, command: str) -> list[str]:
    """What the page, or else this file, appends to a command."""
    for part in block.comments.get("quick", "").split(";"):
        name, *options = shlex.split(part) or [""]
        if name == command:
            return options
    return MOST_ROUNDS if command == "run" else []


def run_fedkin(words: list[str], block: Block) -> None:
    parse(words, block)
    assert not words[1].startswith("-"), f"{block}: options before the command belong into the prose"
    options = quick_options(block, words[1])
    threads = torch.get_num_threads()
    done = CliRunner().invoke(cli.app, [*words[1:], *options])
    torch.set_num_threads(threads)
    assert done.exit_code == 0, f"{block}: {shlex.join([*words, *options])}\n{done.output}"


def run_make(words: list[str], block: Block) -> None:
    """What `make` would do: its targets exist, and what they call is in the tests."""
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}: {done.stderr}"


def run_pip(words: list[str], block: Block) -> None:
    """The extras that are installed exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for package in words[2:]:
        if extras := re.fullmatch(r"(?:fedkin|\.)\[(.+)\]", package):
            assert set(extras[1].split(",")) <= known.keys(), f"{block}: {package}"


def run_pytest(words: list[str], block: Block) -> None:
    """The files are there, so they are run with all tests."""
    assert all((ROOT / file).is_file() for file in words[1:]), f"{block}: {words}"


PROGRAMS: dict[str, Callable[[list[str], Block], None]] = {
    "fedkin": run_fedkin,
    "make": run_make,
    "pip": run_pip,
    "pytest": run_pytest,
}


def run_shell(block: Block) -> None:
    for command in block.commands:
        words = shlex.split(command)
        assert words[0] in PROGRAMS, f"{block}: nothing here runs '{words[0]}': name the test, <!-- tested by … -->"
        PROGRAMS[words[0]](words, block)


def run_python(block: Block) -> None:
    text = block.text
    for change in filter(None, block.comments.get("quick", "").split(";")):
        old, new = (part.strip() for part in change.split("->"))
        assert old in text, f"{block}: there is no {old}"
        text = text.replace(old, new)
    with mpl.rc_context():
        exec(compile(text, str(block), "exec"), {"__name__": "__main__"})


def run_toml(block: Block) -> None:
    plans(tomllib.loads(block.text))


RUN: dict[str, Callable[[Block], None]] = {"sh": run_shell, "python": run_python, "toml": run_toml}


# -- the pages ---------------------------------------------------------------------------------------------------------


@by_page
def test_blocks_are_executed(page: Path, here: Path) -> None:
    found = blocks(page)
    for block in found:
        if "file" in block.comments:
            (here / block.comments["file"]).write_text(block.text, encoding="utf-8")
    for block in found:
        if "tested by" in block.comments:
            check_tests(block)
            for command in block.commands if block.language == "sh" else []:
                if command.startswith("fedkin "):
                    parse(shlex.split(command), block)
        elif block.language != "text":
            assert block.language in RUN, f"{block}: give it a language (sh, python, toml, text), or name its test"
            RUN[block.language](block)


@by_page
def test_commands_in_the_prose_are_understood(page: Path) -> None:
    for command in inline_commands(page):
        parse(shlex.split(command.replace("…", "")), f"{page.name}: {command}")


@by_page
def test_commands_are_in_fenced_blocks(page: Path) -> None:
    assert unfenced_commands(page) == []


# -- this file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nfedkin run --set ronds=1\n```\n", "unknown key 'ronds'"),
        ("```sh\nfedkin rum\n```\n", "there is no command rum"),
        ("```sh\nfedkin --install-completion\n```\n", "options before the command"),
        ("```sh\nrm -r /\n```\n", "nothing here runs 'rm'"),
        ("```sh\nmake nonsense\n```\n", "nonsense"),
        ("```sh\npip install 'fedkin[nonsense]'\n```\n", "nonsense"),
        ("```sh\nfedkin report nowhere\n```\n", "nowhere"),
        ("```toml\nronds = 3\n```\n", "ronds"),
        ("```python\nimport fedkin\nfedkin.nonsense\n```\n", "nonsense"),
        ("<!-- quick: 40 -> 2 -->\n```python\nrounds = 4\n```\n", "there is no 40"),
        ("```\nfedkin run\n```\n", "give it a language"),
        ("<!-- tested by tests/test_cli.py::test_none -->\n```sh\nflwr run\n```\n", "there is no test"),
        ("<!-- tested by tests/test_cli.py::test_graph -->\n```sh\nfedkin graph --nonsense\n```\n", "nonsense"),
    ],
)
def test_a_wrong_block_fails(text: str, complaint: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.ROOT", here)
    page = here / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match=re.escape(complaint)):
        test_blocks_are_executed(page, here)


def test_commands_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Try `fedkin\nrun --set a=1` or `x`:\n\n    fedkin run\n    f(x) = 1\n\n```sh\na \\\n  b  # c\n\nd\n```\n"
    )
    assert inline_commands(page) == ["fedkin run --set a=1"]
    assert unfenced_commands(page) == ["fedkin run"]
    assert list(itertools.chain(*(block.commands for block in blocks(page)))) == ["a b", "d"]
