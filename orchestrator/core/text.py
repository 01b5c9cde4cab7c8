"""What comes from outside, made fit for every database: PostgreSQL stores no NUL, and UTF-8 has no half surrogate pair.

A reply or a result is never thrown away for a character. What cannot be kept is replaced, where a person sees it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.model import Reply, ToolAsk

NAME_MAX = 200  # as wide as the columns


def clean_text(raw: str) -> str:
    return raw.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): clean_json(member) for key, member in value.items()}
        case list() | tuple():
            return [clean_json(member) for member in value]
        case _:
            return value


def clean_reply(raw: Reply) -> Reply:
    return replace(
        raw, text=clean_text(raw.text), asks=tuple(_ask(ask) for ask in raw.asks), extra=clean_json(raw.extra)
    )


def _ask(raw: ToolAsk) -> ToolAsk:
    return ToolAsk(
        id=clean_text(raw.id)[:NAME_MAX],
        name=clean_text(raw.name)[:NAME_MAX],
        arguments=None if raw.arguments is None else clean_json(raw.arguments),
        raw=clean_text(raw.raw),
    )


# Values that JSON has: how they are read, how two are compared, and how many become one list.


def loads_json(text: str | bytes, **how: Any) -> Any:
    """Raises ValueError, also for what lies too deep. Python reads more than JSON has, and PostgreSQL would refuse the
    row later on: NaN, infinity, and numbers that become infinite.
    """
    return bounds.loads_json(text, parse_constant=_refuse, parse_float=_finite, **how)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def canonical(value: Any) -> str:
    """The same for the same JSON, however it is written down; 1 and true are not the same."""
    return json.dumps(value, sort_keys=True, default=repr)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def each_once(members: Iterable[Any]) -> list[Any]:
    """In an order of their own, so that it does not matter who came first."""
    found = {canonical(member): member for member in members}
    return [found[key] for key in sorted(found)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# What a value must be, said as a ValueError to whoever has written it.

E = TypeVar("E", bound=StrEnum)


def must(fits: object, why: str) -> None:
    if not fits:
        raise ValueError(why)


def one_of(kind: type[E], given: str, name: str) -> E:
    must(given in set(kind), f"{name} must be one of {', '.join(kind)}; got {given!r}")
    return kind(given)


def must_be_json(value: Any, name: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be something JSON has ({error}); got {value!r}") from error
