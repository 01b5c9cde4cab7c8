"""A reply as plain text, for channels that carry nothing else."""

from __future__ import annotations

from chordage.orchestrator.core.channels import Outgoing


def text_of(reply: Outgoing) -> str:
    """Its answer; of a turn without one, the reason: a person waits for it."""
    if reply.text is not None and reply.text.strip():
        return reply.text
    why = reply.body.get("code") or reply.body.get("reason") or "no answer was given"
    return f"(There is no answer: {why}. Turn {reply.turn_id})"


def split(text: str, longest: int) -> list[str]:
    """Parts of at most `longest` UTF-16 units, none blank, the same each time. Only blanks at the cuts are lost.

    A cut is at the last line end or blank in the second half of a part, or else at its end.
    """
    parts: list[str] = []
    rest = text
    while len(rest.encode("utf-16-le", "surrogatepass")) // 2 > longest:
        cut = _cut(rest, _fitting(rest, longest))
        parts.append(rest[:cut])
        rest = rest[cut:]
    return [part.strip() for part in [*parts, rest] if part.strip()]


def _fitting(text: str, longest: int) -> int:
    """How many characters fit: one outside the basic plane is two units."""
    units = 0
    for place, character in enumerate(text):
        units += 2 if ord(character) > 0xFFFF else 1
        if units > longest:
            return place
    return len(text)


def _cut(text: str, most: int) -> int:
    for mark in ("\n", " "):
        if (place := text.rfind(mark, most // 2, most)) >= 0:
            return place + 1
    return most
