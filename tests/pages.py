"""Code blocks and commands of the Markdown pages, with the comments that say how they are tested.

The line before a block may be one of these comments:

    <!-- quick: run --set rounds=2; bench --quick -->   options that are appended to these commands of the block
    <!-- quick: rounds=40 -> rounds=2 -->               what is replaced in a Python block
    <!-- file: mine.toml -->                            the block is this file, for the commands of the page
    <!-- tested by tests/test_x.py::test_y -->          executed there; here commands are only parsed
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "RESULTS.md", *(ROOT / "docs").glob("*.md")])
COMMENT = re.compile(r"<!-- (quick:|file:|tested by) (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the comments before it by their kind: `quick`, `file`, `tested by`."""

    page: Path
    line: int
    language: str
    text: str
    comments: dict[str, str]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} ({self.language or 'no language'})"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments, each on one line."""
        joined = self.text.replace("\\\n", " ")
        return [words for line in joined.splitlines() if (words := shlex.join(shlex.split(line, comments=True)))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        if opening := re.match(r"( *)(```+)(\w*)", lines[number]):
            indent, fence, language = opening.groups()
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == fence)
            comments, above = {}, number - 1
            while above >= 0 and (comment := COMMENT.fullmatch(lines[above].strip())):
                comments[comment[1].rstrip(":")] = comment[2]
                above -= 1
            text = "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end]) + "\n"
            found.append(Block(page, number + 1, language, text, comments))
            number = end
        number += 1
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^( *)(```+)\w*\n.*?^ *\2$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def inline_commands(page: Path) -> list[str]:
    """Commands `fedkin …` in the prose."""
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))
    return [command for span in spans if (command := " ".join(span.split())).startswith("fedkin ")]


def unfenced_commands(page: Path) -> list[str]:
    """Indented lines that are commands and should be in a fenced block."""
    return re.findall(r"^ {4,}((?:\$ |fedkin|make|pip|python|pytest|flwr|cd) .*)$", prose(page), flags=re.MULTILINE)
