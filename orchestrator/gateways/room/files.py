"""One text file of the room: read within bounds, with the line of each key, and with everything that is wrong in it.

The TOML parser names a line only in syntax errors; a reader needs it for every fault. So the file is split into
statements (a header, or a key with its value, over as many lines as it takes), and tomllib reads their names. A key
inside an inline table has the line of that table; a key that is not in the file, the line of its table, or the first.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import text_files

KeyPath = tuple[str | int, ...]  # a number counts the tables of a list: ("plugins", 1, "use")
Stamp = tuple[int, int, int]
Stamps = dict[Path, Stamp | None]

MOST_FAULTS = 100  # of one file
_SYNTAX_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")
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


def stamp_of(path: Path) -> Stamp | None:
    """What changes with the file, without reading it. None for a missing file, so that its return is a change."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the name may hold anything
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file as it was read; `name` is what messages call it. Faults are collected, to be mended in one go."""

    name: str
    text: str
    _faults: list[tuple[int, str]] = field(default_factory=list)  # with their lines
    _places: set[KeyPath] = field(default_factory=set)

    def complain(self, path: KeyPath, why: str, *, item: str | None = None) -> None:
        """`item`: the string in the list at `path` that is at fault."""
        self._places.add(path)
        if len(self._faults) < MOST_FAULTS:
            line = self.line_of(path) if item is None else self.line_of_item(path, item)
            self._faults.append((line, f"{self.name}:{line}: {dotted(path)}: {why}"))
        elif len(self._faults) == MOST_FAULTS:
            self._faults.append((1, f"{self.name}:1: there is more wrong than these {MOST_FAULTS}: mend them first"))

    def is_wrong(self, path: KeyPath) -> bool:
        return path in self._places

    @property
    def faults(self) -> list[str]:
        """In the order of their lines, and of their discovery within one line."""
        lines = sorted(self._faults[:MOST_FAULTS], key=lambda fault: fault[0])
        return [text for _line, text in [*lines, *self._faults[MOST_FAULTS:]]]

    @property
    def error(self) -> RoomError | None:
        return RoomError("\n".join(self.faults)) if self._faults else None

    def beside(self) -> Source:
        """The same file with a list of faults of its own."""
        return Source(name=self.name, text=self.text)

    def line_of(self, path: KeyPath) -> int:
        return line_of(self.text, path)

    def line_of_item(self, path: KeyPath, item: str) -> int:
        return line_of_item(self.text, path, item)

    def place(self, path: KeyPath) -> str:
        return f"{self.name}:{self.line_of(path)}: {dotted(path)}"


def dotted(path: KeyPath) -> str:
    return ".".join(name for name in path if isinstance(name, str))


def load_toml(name: str, path: Path) -> tuple[Source, dict[str, Any]]:
    """Raises RoomError with file and line."""
    try:
        source = Source(name=name, text=text_files.read(path))
    except UnicodeDecodeError as error:
        raise RoomError(f"{name}:1: cannot be read: {error}; make it a UTF-8 text file") from error
    except OSError as error:
        raise RoomError(f"{name}:1: cannot be read: {error}; put a text file there that can be read") from error
    try:
        return source, bounds.loads_toml(source.text)
    except tomllib.TOMLDecodeError as error:
        raise RoomError(syntax_fault(source, error)) from error


def syntax_fault(source: Source, error: tomllib.TOMLDecodeError) -> str:
    """The parser gives the place in words; a file that ends too early is at fault in its last line."""
    place = _SYNTAX_PLACE.search(str(error))
    line = (place and place["line"]) or max(1, len(source.text.splitlines()))
    column = f", column {place['column']}" if place and place["column"] else ""
    return f"{source.name}:{line}: this is not TOML: {_SYNTAX_PLACE.sub('', str(error))}{column}"


def line_of(text: str, path: KeyPath) -> int:
    """The line of the key, or else of the nearest table around it."""
    lines = _lines(text)
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def line_of_item(text: str, path: KeyPath, item: str) -> int:
    """The line of a string in the list under that key."""
    start = line_of(text, path)
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if f'"{item}"' in line or f"'{item}'" in line:
            return number
    return start


@lru_cache(maxsize=4)
def _lines(text: str) -> dict[KeyPath, int]:
    """Cached, so that a file with many faults is split once."""
    return dict(_keys(text))


def _keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    table: KeyPath = ()
    counts: Counter[KeyPath] = Counter()  # of the tables in each list of tables
    for number, statement in _statements(text):
        if not statement.startswith("["):
            name = statement[: _equals_sign(statement)]
            yield (*table, *_names(tomllib.loads(f"{name} = 0"))), number
            continue
        table = ()
        names = _names(tomllib.loads(statement))
        for position, name in enumerate(names, 1):
            table = (*table, name)
            if position == len(names) and statement.startswith("[["):
                if table not in counts:
                    yield table, number
                counts[table] += 1
            if table in counts:
                table = (*table, counts[table] - 1)
        yield table, number


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each with its first line; blank lines and comments are left out."""
    start = depth = 0
    for piece in _PIECES.finditer(f"{text}\n"):
        match piece[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "\n" if depth <= 0:
                statement = text[start : piece.start()].strip()
                if statement and not statement.startswith("#"):
                    yield text.count("\n", 0, start) + 1, statement
                start = piece.end()


def _equals_sign(statement: str) -> int:
    return next(piece.start() for piece in _PIECES.finditer(statement) if piece[0] == "=")


def _names(values: dict[str, Any]) -> tuple[str, ...]:
    """Those of a single header or key, from what tomllib made of it."""
    names: list[str] = []
    inner: Any = values
    while isinstance(inner, dict | list) and inner:
        if isinstance(inner, dict):
            names.append(next(iter(inner)))
        inner = inner[names[-1]] if isinstance(inner, dict) else inner[0]
    return tuple(names)
