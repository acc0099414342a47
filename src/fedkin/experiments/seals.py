"""Seals: a checksum on every record, in a chain, which detects any change of the records.

The seal of a line is a digest of the line and of the previous seal. The first one continues a digest of settings and
data (`origin_of`), so that records of other settings or data are detected as well.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedkin.files import as_json
from fedkin.types import Record

KEY = "check"  # key of the seal in a record


def digest(*texts: str) -> str:
    """A digest of texts: twelve hexadecimal digits."""
    return hashlib.blake2b("\0".join(texts).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def origin_of(settings: Mapping[str, Any], data: str) -> str:
    """The first link of the chain: a digest of the settings that are not defaults and of the data's digest."""
    return digest(json.dumps(settings, sort_keys=True), data)


def unusual(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> Record:
    """Settings that differ from the defaults `usual`, so that settings added later do not change a run's origin.

    >>> unusual({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 0, "d": 3}})
    {'b': {'c': 2}}
    """
    found: Record = {}
    for key, value in settings.items():
        default = usual.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = unusual(value, default) or default
        if key not in usual or value != default:
            found[key] = value
    return found


def filled(old: Any, usual: Mapping[str, Any]) -> Any:
    """Settings with defaults for missing ones, in every section."""
    if not isinstance(old, dict):
        return old
    sections = {key: filled(old.get(key, {}), below) for key, below in usual.items() if isinstance(below, dict)}
    return {**usual, **old, **sections}


def renamed(settings: Any, names: Mapping[str, Any]) -> Any:
    """Settings with the present names of values.

    >>> renamed({"a": {"b": "old"}, "c": "old"}, {"a": {"b": {"old": "new"}}})
    {'a': {'b': 'new'}, 'c': 'old'}
    """
    if not isinstance(settings, dict):
        return names.get(settings, settings) if isinstance(settings, str) else settings
    return {key: renamed(value, names[key]) if key in names else value for key, value in settings.items()}


def differences(old: Any, new: Any, ignored: Collection[str] = (), at: str = "") -> list[tuple[str, Any, Any]]:
    """Settings that differ, by their dotted names, with the old and the new value; but for ignored sections.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"c": 4}}, {"a"})
    [('b.c', 2, 4)]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in {**old, **new} if at or k not in ignored]
        return [d for k in keys for d in differences(old.get(k), new.get(k), (), f"{at}.{k}" if at else k)]
    return [] if old == new else [(at, old, new)]


def sealed_line(record: Record, before: str) -> tuple[str, str]:
    """A record as a line with its seal, and the seal."""
    text = as_json({key: value for key, value in record.items() if key != KEY})
    seal = digest(before, text)
    return f'{text[:-1]}, "{KEY}": "{seal}"}}\n', seal


def sound_lines(lines: Iterable[bytes], origin: str) -> tuple[list[Record], str]:
    """The records of lines from round 0 up to the first damaged or misplaced one, and the last valid seal."""
    sound: list[Record] = []
    before = origin
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict) or record.get("round") != len(sound):
            break
        text, seal = sealed_line(record, before)
        if text.encode() != line.rstrip(b"\n") + b"\n":
            break
        sound.append({key: value for key, value in record.items() if key != KEY})
        before = seal
    return sound, before


def is_sealed(line: bytes) -> bool:
    """Whether a line has a seal, valid or not; earlier versions wrote none."""
    return f'"{KEY}": "'.encode() in line


def sealed_record(record: Record, before: str) -> Record:
    """A record with its seal. The summary's seal continues the chain of the rounds."""
    content = {key: value for key, value in record.items() if key != KEY}
    return {**content, KEY: digest(before, as_json(content))}
