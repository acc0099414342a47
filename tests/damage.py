"""Random damage to the folders of runs, as disks, people and synchronising programs do it."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

RUBBISH = [b"\0" * 64, b"\xff\xfe", b"{}\n", b'{"round": 3, "check": "0123456789ab"}\n', b"\n", b"[" * 5000, b"null"]


class Damage:
    """Damage to the files below a folder; `others` are files of other runs that may get among them."""

    def __init__(self, root: Path, others: Path, rng: random.Random) -> None:
        self.root, self.others, self.rng = root, others, rng

    def apply(self, times: int) -> list[str]:
        """So much damage of random kinds: what was done."""
        done = []
        for _ in range(times):
            kind = self.rng.choice(KINDS)
            if files := sorted(path for path in self.root.rglob("*") if path.is_file() and path.name != ".lock"):
                path = self.rng.choice(files)
                kind(self, path)
                done.append(f"{kind.__name__} {path.relative_to(self.root)}")
        return done

    def _another(self, root: Path, like: Path) -> Path:
        """A file below a folder, most often one of the same name."""
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
        same = [path for path in files if path.name == like.name]
        return self.rng.choice(same if same and self.rng.random() < 0.7 else files)

    def flip(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(content)

    def flip_in_header(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[self.rng.randrange(min(len(content), 300))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(content)

    def cut(self, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: self.rng.choice([0, 1, len(content) // 2, len(content) - 1, len(content) - 5])])

    def delete(self, path: Path) -> None:
        path.unlink()

    def append(self, path: Path) -> None:
        path.write_bytes(path.read_bytes() + self.rng.choice(RUBBISH))

    def overwrite(self, path: Path) -> None:
        path.write_bytes(self.rng.choice(RUBBISH))

    def change_digit(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        digits = [place for place, byte in enumerate(content) if 48 <= byte < 58]
        if digits:
            content[self.rng.choice(digits)] = self.rng.randrange(48, 58)
        path.write_bytes(content)

    def repeat_line(self, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        lines.insert(self.rng.randrange(len(lines) + 1), self.rng.choice(lines or [b"\n"]))
        path.write_bytes(b"".join(lines))

    def lose_line(self, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line for place, line in enumerate(lines) if place != self.rng.randrange(len(lines))))

    def copy(self, path: Path) -> None:
        names = [f"{path.stem} (copy){path.suffix}", f"{path.name}.bak", f".{path.name}.1.tmp", f"Copy of {path.name}"]
        shutil.copy(path, path.with_name(self.rng.choice(names)))

    def later(self, path: Path) -> None:
        """A checkpoint under the number of another round, beyond the last one too."""
        name = f"checkpoint-{self.rng.choice([0, 1, 3, 5, 99, 1234567]):06d}.safetensors"
        shutil.copy(path, path.with_name(name))

    def become_directory(self, path: Path) -> None:
        path.unlink()
        path.mkdir()
        if self.rng.random() < 0.5:
            (path / "file").write_bytes(b"")

    def become_link(self, path: Path) -> None:
        """Of which nothing is at the other end."""
        path.unlink()
        path.symlink_to(self.rng.choice([path.name, "nowhere"]))

    def swap(self, path: Path) -> None:
        other = self._another(self.root, path)
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)

    def mistake(self, path: Path) -> None:
        """A file of another run in its place."""
        path.write_bytes(self._another(self.others, path).read_bytes())

    def lose_folder(self, path: Path) -> None:
        shutil.rmtree(path.parent)

    def swap_folders(self, path: Path) -> None:
        other, aside = self._another(self.root, path).parent, self.root / "aside"
        if other != path.parent and path.parent not in other.parents and other not in path.parent.parents:
            path.parent.rename(aside)
            other.rename(path.parent)
            aside.rename(other)

    def folder_becomes_file(self, path: Path) -> None:
        shutil.rmtree(path.parent)
        path.parent.write_bytes(b"")


KINDS: list[Callable[[Damage, Path], None]] = [
    *[Damage.flip, Damage.flip_in_header, Damage.cut, Damage.delete, Damage.append, Damage.overwrite] * 2,
    *[Damage.change_digit, Damage.swap, Damage.mistake, Damage.repeat_line, Damage.lose_line] * 2,
    *[Damage.copy, Damage.later, Damage.become_directory, Damage.become_link, Damage.lose_folder, Damage.swap_folders],
    Damage.folder_becomes_file,
]
