"""What a value must be, said as a ValueError to whoever has written it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, TypeVar

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
