"""A Markdown file in two parts: YAML between two lines `---`, and the body. Keys are read and changed in place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import RoomError

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads ten times faster, where it is there
_FENCE = re.compile(r"\ufeff?---[ \t]*\r?\n")
_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    value: Any
    plain: str | None  # as it is written, where it is one word or line
    line: int  # of its key, in the file
    start: int  # where in the text the value begins
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    keys: Mapping[str, Key]
    body: str
    fence: int | None  # where the first line of the front matter begins; None: there is no front matter
    values: dict[str, Any] = field(default_factory=dict)  # of the keys

    def line(self, key: str) -> int:
        return self.keys[key].line if key in self.keys else 1


def fault(path: str, line: int, why: str) -> RoomError:
    return RoomError(f"{path}:{line}: {why}")


def parts_of(text: str, path: str) -> Parts:
    """Raises RoomError with file and line."""
    opening = _FENCE.match(text)
    if opening is None:
        return Parts(keys={}, body=text.removeprefix("\ufeff"), fence=None)
    closing = _END.search(text, opening.end())
    if closing is None:
        raise fault(path, 1, "the front matter does not end: put a line --- below the keys, or take the first one away")
    keys = _keys(text[opening.end() : closing.start()], opening.end(), path)
    values = {name: key.value for name, key in keys.items()}
    return Parts(keys=keys, body=text[closing.end() :], fence=opening.end(), values=values)


def _keys(matter: str, offset: int, path: str) -> dict[str, Key]:
    try:
        bounds.check_yaml(matter, LOADER)
        loader = LOADER(matter)
        try:
            return _read(loader, matter, offset, path)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 2 + (mark.line if mark else 0)
        raise fault(
            path, line, f"this is not YAML: {error.problem or error.context}; write `key: value` lines"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise fault(path, 2, f"this is not YAML: {error}; write `key: value` lines") from error


def _read(loader: Any, matter: str, offset: int, path: str) -> dict[str, Key]:
    if "&" in matter or "*" in matter:
        _refuse_anchors(matter, path)
    node = loader.get_single_node()
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise fault(path, 2, "the front matter must be `key: value` lines")
    starts = _line_starts(matter)
    keys: dict[str, Key] = {}
    for key, value in node.value:
        line = key.start_mark.line + 2
        if not isinstance(key, yaml.ScalarNode):
            raise fault(path, line, "a key must be a word")
        if key.value in keys:
            raise fault(path, line, f"{key.value!r} is listed twice: keep one of the two")
        keys[key.value] = Key(
            value=loader.construct_object(value, deep=True),
            plain=value.value if isinstance(value, yaml.ScalarNode) else None,
            line=line,
            start=offset + _place(starts, value.start_mark),
            end=offset + _place(starts, value.end_mark),
        )
    return keys


def _refuse_anchors(matter: str, path: str) -> None:
    """A few lines of them could expand to more than any machine holds."""
    for token in yaml.scan(matter, Loader=LOADER):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            line = token.start_mark.line + 2
            raise fault(path, line, "anchors and aliases (& and *) are not read here: write the value out, or quote it")


def _line_starts(text: str) -> list[int]:
    return [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n|\x85|\u2028|\u2029", text))]


def _place(starts: list[int], mark: Any) -> int:
    return (starts[mark.line] if mark.line < len(starts) else starts[-1]) + int(mark.column)


def with_key(text: str, path: str, key: str, value: str) -> str:
    """The text with that value in place of the old one, or with a new line for it."""
    parts = parts_of(text, path)
    if (old := parts.keys.get(key)) is not None:
        return f"{text[: old.start]}{value}{text[old.end :]}"
    newline = _newline(text)
    line = f"{key}: {value}{newline}"
    if parts.fence is None:
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        return f"{mark}---{newline}{line}---{newline}{text.removeprefix(mark)}"
    return f"{text[: parts.fence]}{line}{text[parts.fence :]}"


def with_body(text: str, path: str, body: str) -> str:
    newline = _newline(text)
    head = text[: len(text) - len(parts_of(text, path).body)]
    return head + body.strip().replace("\r\n", "\n").replace("\n", newline) + newline


def with_comment(text: str, path: str, comment: str) -> str:
    body = parts_of(text, path).body.strip()
    return with_body(text, path, f"{body}\n\n{comment}" if body else comment)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
