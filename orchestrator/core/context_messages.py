"""Which context messages are due: one that was shown a moment ago is not shown again, unless it says something new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from chordage.orchestrator.core.verdicts import AddContextMessage, Given


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """When a message was last in a prompt of this run, and what it said."""

    step: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    texts: tuple[str, ...]
    shown: dict[str, Shown]  # the book as it is once they have been shown


def due(given: Iterable[Given], shown: Mapping[str, Shown], step: int) -> Due:
    """Messages of several plugins add up; one plugin's messages of the same key are one message, the last of them."""
    now = {f"{plugin}/{verdict.key}": verdict for plugin, verdict in given if isinstance(verdict, AddContextMessage)}
    chosen = {name: message for name, message in now.items() if _is_due(message, shown.get(name), step)}
    marks = {name: Shown(step=step, digest=_digest(message.text)) for name, message in chosen.items()}
    return Due(texts=tuple(message.text for message in chosen.values()), shown={**shown, **marks})


def _is_due(message: AddContextMessage, last: Shown | None, step: int) -> bool:
    if last is None or message.cooldown == 0 or last.digest != _digest(message.text):
        return True
    return step - last.step > message.cooldown


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
