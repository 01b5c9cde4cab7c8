"""A long text in parts, the same each time: at the last line end or blank of the second half, else wherever it must."""

from __future__ import annotations


def split(text: str, longest: int) -> list[str]:
    """Parts of at most `longest` UTF-16 units, none of them blank. Nothing but blanks at the cuts gets lost."""
    parts: list[str] = []
    rest = text
    while _units(rest) > longest:
        cut = _cut(rest, _fitting(rest, longest))
        parts.append(rest[:cut])
        rest = rest[cut:]
    return [part.strip() for part in [*parts, rest] if part.strip()]


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _fitting(text: str, longest: int) -> int:
    """How many characters that is: one outside the basic plane is two units."""
    units = 0
    for place, character in enumerate(text):
        units += 2 if ord(character) > 0xFFFF else 1
        if units > longest:
            return place
    return len(text)


def _cut(text: str, most: int) -> int:
    for mark in ("\n", " "):
        if (found := text.rfind(mark, most // 2, most)) >= 0:
            return found + 1
    return most
