"""What comes from outside, made fit for every database: PostgreSQL stores no NUL, and UTF-8 has no half surrogate pair.

A reply or a result is never thrown away for a character. What cannot be kept is replaced, where a person sees it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chordage.orchestrator.core.model import Reply, ToolAsk

NAME_MAX = 200  # as wide as the columns


def text(raw: str) -> str:
    return raw.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def json(value: Any) -> Any:
    match value:
        case str():
            return text(value)
        case dict():
            return {text(str(key)): json(member) for key, member in value.items()}
        case list() | tuple():
            return [json(member) for member in value]
        case _:
            return value


def reply(raw: Reply) -> Reply:
    return replace(raw, text=text(raw.text), asks=tuple(_ask(ask) for ask in raw.asks), extra=json(raw.extra))


def _ask(raw: ToolAsk) -> ToolAsk:
    return ToolAsk(
        id=text(raw.id)[:NAME_MAX],
        name=text(raw.name)[:NAME_MAX],
        arguments=None if raw.arguments is None else json(raw.arguments),
        raw=text(raw.raw),
    )
