"""What a docstring says of a function and of each parameter, in Google style ("Args:") or reST (":param x:")."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_SECTION = re.compile(r"(Args|Arguments|Params|Parameters):\s*$")
_GOOGLE_ENTRY = re.compile(r"(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_REST_ENTRY = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)")
_ANY_SECTION = re.compile(r"(Args|Arguments|Params|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read(docstring: str | None) -> Described:
    lines = inspect.cleandoc(docstring or "").splitlines()
    return Described(summary=_summary(lines), parameters={**_google(lines), **_rest(lines)})


def _summary(lines: list[str]) -> str:
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(":") or _ANY_SECTION.match(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _google(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    texts: list[str] = []
    entry_indent: int | None = None
    for line in _section(lines):
        indent = _indent(line)
        entry_indent = indent if entry_indent is None else entry_indent
        entry = _GOOGLE_ENTRY.match(line.strip()) if indent <= entry_indent else None
        if entry:
            texts = found.setdefault(entry["name"], [])
        texts.append(entry["text"] if entry else line.strip())
    return {name: " ".join(texts).strip() for name, texts in found.items()}


def _section(lines: list[str]) -> Iterator[str]:
    """The lines below "Args:" that are indented further than it, without the blank ones."""
    header: int | None = None
    for line in lines:
        if header is None:
            header = _indent(line) if _SECTION.match(line.strip()) else None
        elif line.strip() and _indent(line) <= header:
            return
        elif line.strip():
            yield line


def _rest(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    texts: list[str] = []
    for line in lines:
        entry = _REST_ENTRY.match(line.strip())
        if entry:
            texts = found.setdefault(entry["name"], [])
        elif not line.strip() or line.strip().startswith(":"):
            texts = []  # a blank line or another field ends the description
        texts.append(entry["text"] if entry else line.strip())
    return {name: " ".join(texts).strip() for name, texts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
