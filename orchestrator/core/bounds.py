"""How large and how deep text from outside may be, checked before it is parsed.

Parsers recurse for each level of nesting. At some thousand levels, which are as many characters, those in Python raise
an unexpected RecursionError, and those in C may end the process. So text is checked here first, in a few passes and
without recursion. Text that is too large or too deep raises the parser's own error for bad text, so that it is reported
like any other fault of a file, with its line.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

DEEPEST = 100  # levels of nested lists and tables
TEXT_BYTES = 1024 * 1024  # of a file of the room
SCHEMA_BYTES = 256 * 1024  # of the JSON Schema of one foreign tool
SCHEDULE_CHARS = 1000  # of a cron expression or a recurrence rule

TOO_DEEP = f"lists and tables are nested more than {DEEPEST} deep"
_JSON_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TOML_STRINGS = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*+"'
    r"|'[^'\n]*+'"
    r"|\#[^\n]*+",
    re.DOTALL,
)
_ALIKE = str.maketrans("{}", "[]")  # the parser checks which bracket closes which
_NO_BRACKET = re.compile(r"[^\[\]{}]+")


class TooDeep(json.JSONDecodeError):
    def __init__(self, text: str) -> None:
        super().__init__(TOO_DEEP, text, 0)


def is_too_deep(body: bytes) -> bool:
    """For JSON that a library parses."""
    return _is_too_deep(body.decode(json.detect_encoding(body), "replace"), _JSON_STRINGS)


def loads_json(text: str | bytes, **how: Any) -> Any:
    """Raises ValueError, TooDeep among them."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if _is_too_deep(text, _JSON_STRINGS):
        raise TooDeep(text)
    return json.loads(text, **how)


def loads_toml(text: str) -> dict[str, Any]:
    """Raises TOMLDecodeError, which names the line."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > TEXT_BYTES:
        raise tomllib.TOMLDecodeError(f"it has {size} bytes, the limit is {TEXT_BYTES} (at line 1, column 1)")
    if _is_too_deep(text, _TOML_STRINGS):
        raise tomllib.TOMLDecodeError(f"{TOO_DEEP} (at line {_deepest_line(text)}, column 1)")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number that is longer than Python reads
        raise tomllib.TOMLDecodeError(f"{error} (at line {_longest_number(text)}, column 1)") from error
    if depth_of(values) > DEEPEST:  # a name with too many dots
        raise tomllib.TOMLDecodeError(f"{TOO_DEEP} (at line {_most_dots(text)}, column 1)")
    return values


def check_yaml(text: str, loader: Any) -> None:
    """Raises MarkedYAMLError, which names the line. The parser of single events does not recurse."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=mark)


def depth_of(value: Any) -> int:
    """The number of nested levels, counted up to one more than is allowed."""
    level, inside = 0, [value]
    while level <= DEEPEST and (inside := [value for value in inside if isinstance(value, dict | list | tuple)]):
        level += 1
        inside = [inner for outer in inside for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return level


def fault_of_value(value: Any, *, most_bytes: int) -> str | None:
    """The problem of a value that a library has parsed."""
    if depth_of(value) > DEEPEST:
        return f"is too deep: {TOO_DEEP}"
    size = len(json.dumps(value, default=str))
    return f"has {size} bytes, the limit is {most_bytes}" if size > most_bytes else None


def _is_too_deep(text: str, strings: re.Pattern[str]) -> bool:
    """Empty pairs of brackets are removed, level by level. Many unpaired brackets that remain are too deep as well; of
    a few, the parser reports what is wrong.
    """
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    left = _NO_BRACKET.sub("", strings.sub("", text)).translate(_ALIKE)
    for _ in range(DEEPEST):
        before, left = len(left), left.replace("[]", "")
        if len(left) == before:
            break
    return len(left) > DEEPEST or "[]" in left


def _deepest_line(text: str) -> int:
    """Roughly: the first line on which too many brackets are open."""
    depth = 0
    for piece in re.finditer(rf"{_TOML_STRINGS.pattern}|[\[\]{{}}]", text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece[0], 0)
        if depth > DEEPEST:
            return text.count("\n", 0, piece.start()) + 1
    return 1


def _longest_number(text: str) -> int:
    return _line_with_most(text, lambda line: max(map(len, re.findall(r"\d[\d_]*", line)), default=0))


def _most_dots(text: str) -> int:
    return _line_with_most(text, lambda line: line.count("."))


def _line_with_most(text: str, weight: Any) -> int:
    lines = text.splitlines() or [""]
    return max(range(len(lines)), key=lambda number: (weight(lines[number]), -number)) + 1
