"""On which line of a TOML file a key stands: the parser tells it only for syntax errors, a reader needs it for all.

The file is split into statements (a header, or a key with its value, over as many lines as it takes), and tomllib
reads the names. A key inside an inline table is found only as the line of that table; a key that is not in the file, as
the line of its table, or as the first line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

Path = tuple[str, ...]

# What may hide a bracket, a line end or an equals sign, or is one of these.
_PIECES = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|[\[\]{}\n=]",
    re.DOTALL,
)


def line_of(text: str, path: Path) -> int:
    """The line of the key, or else of the nearest table around it."""
    lines = _lines(text)
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def line_of_item(text: str, path: Path, item: str) -> int:
    """The line on which a string stands in the list under that key."""
    start = line_of(text, path)
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if f'"{item}"' in line or f"'{item}'" in line:
            return number
    return start


@lru_cache(maxsize=4)
def _lines(text: str) -> dict[Path, int]:
    """A file with many faults is gone through once."""
    return dict(_keys(text))


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    table: Path = ()
    for number, statement in _statements(text):
        if statement.startswith("["):
            table = _path(tomllib.loads(statement))
            yield table, number
        else:
            name = statement[: _equals_sign(statement)]
            yield (*table, *_path(tomllib.loads(f"{name} = 0"))), number


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each with its first line."""
    start = depth = 0
    for piece in _PIECES.finditer(f"{text}\n"):
        match piece[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "\n" if depth <= 0:
                yield from _stripped(text, start, piece.start())
                start = piece.end()


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Nothing, for a blank line or a comment."""
    statement = text[start:end].strip()
    if statement and not statement.startswith("#"):
        yield text.count("\n", 0, start) + 1, statement


def _equals_sign(statement: str) -> int:
    return next(piece.start() for piece in _PIECES.finditer(statement) if piece[0] == "=")


def _path(read: dict[str, Any]) -> Path:
    """The one way down into what tomllib made of a header or a key."""
    names: list[str] = []
    inner: Any = read
    while isinstance(inner, dict | list) and inner:
        if isinstance(inner, dict):
            names.append(next(iter(inner)))
        inner = inner[names[-1]] if isinstance(inner, dict) else inner[0]
    return tuple(names)
