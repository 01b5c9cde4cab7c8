r"""One line of a permission list: `tool`, or `tool(argument=glob, other=glob)`.

Tool and globs are shell patterns: * is any text, ? one character, [ab] one of these. A glob with a comma, a bracket or
a blank at its edge stands in double quotes, in which \" is a quote and \\ a backslash. A text is compared as it is,
anything else as JSON. A rule speaks of a call only when every argument it names is there and fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_RULE = re.compile(r"\s*(?P<tool>[^\s()=,\"]+)\s*(?:\((?P<conditions>.*)\))?\s*", re.DOTALL)
_CONDITION = re.compile(
    r'\s*(?P<name>[^\W\d]\w*)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^",()\s](?:[^",()]*[^",()\s])?))\s*(?:,|$)',
    re.DOTALL,
)
_SPECIAL = re.compile(r"([*?[])")


@dataclass(frozen=True, slots=True)
class Rule:
    tool: str
    conditions: tuple[tuple[str, str], ...] = ()

    @property
    def is_unconditional(self) -> bool:
        return not self.conditions

    def names(self, tool: str) -> bool:
        return fnmatchcase(tool, self.tool)

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        return self.names(tool) and all(
            name in arguments and fnmatchcase(_as_text(arguments[name]), glob) for name, glob in self.conditions
        )

    def for_tool(self, tool: str) -> Rule:
        """The same for this one tool, whatever pattern the rule has for it."""
        return Rule(_SPECIAL.sub(r"[\1]", tool), self.conditions)

    def __str__(self) -> str:
        conditions = ", ".join(f"{name}={_quoted(glob)}" for name, glob in self.conditions)
        return f"{self.tool}({conditions})" if conditions else self.tool


def parsed(text: str) -> Rule:
    """ValueError says what a rule has to look like."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(_wrong(text))
    if found["conditions"] is None:
        return Rule(found["tool"])
    return Rule(found["tool"], _conditions(found["conditions"], text))


def _conditions(inside: str, text: str) -> tuple[tuple[str, str], ...]:
    conditions: list[tuple[str, str]] = []
    at = 0
    while at < len(inside):
        found = _CONDITION.match(inside, at)
        if found is None:
            raise ValueError(_wrong(text))
        conditions.append((found["name"], _unquoted(found["quoted"]) if found["bare"] is None else found["bare"]))
        at = found.end()
    if not conditions:
        raise ValueError(_wrong(text))
    return tuple(conditions)


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _wrong(text: str) -> str:
    return f"{text!r} is no rule; write `tool` or `tool(argument=glob, ...)`, with quotes around a glob that needs them"
