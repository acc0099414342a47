"""Help, version and completion of the command: at once, which is without PyTorch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedkin as package
from command_line import environment, fedkin

SLOW = ("torch", "numpy", "scipy", "matplotlib", "pydantic", "fedkin.experiments")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["report", "--help"]])
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    program = f"""
import sys
sys.argv = ["fedkin", *{arguments}]
from fedkin.__main__ import start
try:
    start()
except SystemExit as ended:
    print("slow:", [name for name in {SLOW} if name in sys.modules], ended.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.endswith("slow: [] 0\n"), done.stdout + done.stderr


def test_the_package_has_all_its_public_names() -> None:
    """In three lists: for type checkers, for `import *`, and where they are imported from."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (checked,) = [statement for statement in tree.body if isinstance(statement, ast.If)]
    typed = {
        alias.name: statement.module
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == {name: f"fedkin.{module}" for name, module in package._MODULES.items()}
    assert sorted(typed) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__name__ == {"Softmax": "Linear"}.get(name, name), "one has two names"
        assert name in dir(package)
    with pytest.raises(AttributeError, match="module 'fedkin' has no attribute 'FedKim'"):
        package.FedKim  # noqa: B018


def test_folders_of_the_package_need_no_import_of_their_own() -> None:
    program = "import fedkin; print(fedkin.data.in_kinds.__name__, fedkin.FedKin.__name__, fedkin.models.MLP.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout == "in_kinds FedKin MLP\n", done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run", "An experiment as TOML; or data: a folder with a file for each client, a table,"),
        ("theory", "Experiment as TOML; none: the embedded default."),
        ("report", "A folder with results."),
        ("kin", "The folder of a run or of an experiment."),
        ("bench", "None: the speed of all workloads."),
        ("reproduce", "What to reproduce; none: list what there is."),
    ],
)
def test_help_explains_the_arguments(command: str, says: str, tmp_path: Path) -> None:
    shown = fedkin(command, "--help", cwd=tmp_path, COLUMNS="160", TERMINAL_WIDTH="160").stdout
    assert says in re.sub(r"\s+", " ", shown)


def test_version(tmp_path: Path) -> None:
    assert fedkin("--version", cwd=tmp_path).stdout == f"fedkin {package.__version__}\n"
    assert f'version = "{package.__version__}"' in (Path(__file__).parents[1] / "pyproject.toml").read_text()


def test_completion(tmp_path: Path) -> None:
    """As bash asks for it, after `fedkin re` and `fedkin run --f`."""
    for words, expected in (("fedkin re", ["report", "reproduce"]), ("fedkin run --f", ["--fresh"])):
        done = fedkin(
            cwd=tmp_path, _FEDKIN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
        )
        assert done.stdout.split() == expected, done.stderr
    assert "--install-completion" in fedkin("--help", cwd=tmp_path).stdout
