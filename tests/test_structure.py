"""The architecture as the folder tree shows it: imports in one direction, one name for one thing, short files."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedkin"

# A room imports from those before it only. Nothing imports the last ones: they are leaves.
ORDER = [
    {"errors", "types"},
    {"files", "buffers", "output", "imports", "memory", "markup", "cores", "threads"},
    {"compiler"},
    {"data"},
    {"graph"},
    {"models"},
    {"algorithms"},
    {"engine"},
    {"experiments"},
    {"reports"},
    {"flower", "paper", "bench", "arena"},
    {"options"},
    {"cli", "__init__"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(statement: ast.stmt) -> list[str]:
    """The rooms that a statement imports from."""
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("fedkin"):
        parts = (statement.module or "").split(".")
        return [parts[1]] if len(parts) > 1 else [alias.name for alias in statement.names]
    if isinstance(statement, ast.Import):
        names = [alias.name.split(".") for alias in statement.names]
        return [parts[1] for parts in names if parts[0] == "fedkin" and len(parts) > 1]
    return []


def test_imports_go_one_way() -> None:
    """At module level; a function may import what is slow to import, or optional."""
    wrong = []
    for path, tree in modules():
        here = room_of(path)
        wrong += [
            f"{path.relative_to(PACKAGE)} imports {other}"
            for statement in tree.body
            for other in imported(statement)
            if other != here and LEVEL[other] >= LEVEL[here]
        ]
    assert wrong == []


def test_every_room_says_what_it_offers() -> None:
    for folder in (path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE):
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert len(said) > 30, folder
        if folder.name != "flower":  # its docstring shows how it is used
            files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
            assert files == {name for name in files if name in said}, f"{folder.name}: not all modules are described"


def test_public_names_are_unique() -> None:
    """Of classes, functions and constants; the commands are called like the functions that carry them out."""
    found = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            names = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            if path.name != "cli.py":
                for name in names:
                    found[name].append(str(path.relative_to(PACKAGE)))
    alike = {name: places for name, places in found.items() if len(places) > 1 and not name.startswith("_")}
    assert alike == {}


def test_files_are_read_in_one_sitting() -> None:
    folders = ["src", "tests", "tools", "examples"]
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert long == {}


def test_the_readme_shows_the_folder_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    for folder in (path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE):
        assert f"{folder.name}/" in readme, folder


def test_contributing_shows_the_algorithm_of_the_example() -> None:
    code = (ROOT / "examples" / "own_algorithm" / "scaffold.py").read_text().split("\n\n\n", 1)[1].rstrip()
    assert f"```python\n{code}\n```" in (ROOT / "CONTRIBUTING.md").read_text()
