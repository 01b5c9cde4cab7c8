"""What `@tool(...)` may say, checked while the module is imported: a typo there must not wait for the first call."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    name: str
    effect: Effect
    timeout: float
    retries: int
    retry_on: tuple[type[Exception], ...]
    result_limit: int
    reconcile: Callable[..., Any] | None


def checked(
    place: str,
    *,
    name: str,
    effect: str,
    timeout: float,
    retries: int,
    retry_on: Any,
    result_limit: int,
    reconcile: Callable[..., Any] | None,
) -> Options:
    """The options as they were meant. Raises RoomError with the place of the function and what to write instead."""
    kind = _effect(place, effect)
    _check_reconcile(place, kind, reconcile)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(place, "name", "1 to 64 letters, digits, _ or -", name)
    if not _is_number(timeout) or not 0 < timeout < math.inf:
        raise _wrong(place, "timeout", "a number of seconds, more than 0", timeout)
    if not _is_whole(retries) or retries < 0:
        raise _wrong(place, "retries", "a whole number, 0 or more", retries)
    if not _is_whole(result_limit) or result_limit < 1:
        raise _wrong(place, "result_limit", "a whole number of characters, 1 or more", result_limit)
    return Options(
        name=name,
        effect=kind,
        timeout=float(timeout),
        retries=retries,
        retry_on=_retry_on(place, retry_on, retries),
        result_limit=result_limit,
        reconcile=reconcile,
    )


def _effect(place: str, effect: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise _wrong(place, "effect", f"one of {', '.join(Effect)}", effect) from None


def _retry_on(place: str, given: Any, retries: int) -> tuple[type[Exception], ...]:
    if given is None:
        return (Exception,)
    kinds = given if isinstance(given, tuple) else (given,)
    if not kinds or not all(inspect.isclass(kind) and issubclass(kind, Exception) for kind in kinds):
        raise _wrong(place, "retry_on", "an exception class, or a tuple of them", given)
    if not retries:
        raise RoomError(f"{place}: retry_on does nothing without retries; add retries=2, or leave retry_on out")
    return kinds


def _check_reconcile(place: str, effect: Effect, reconcile: Any) -> None:
    if effect is Effect.RECONCILABLE and not callable(reconcile):
        raise RoomError(
            f"{place}: effect reconcilable needs reconcile=<function>, "
            "which says what became of a call whose worker died"
        )
    if effect is not Effect.RECONCILABLE and reconcile is not None:
        raise RoomError(f"{place}: reconcile is asked only for effect='reconcilable'; got effect='{effect}'")


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _wrong(place: str, option: str, wanted: str, got: Any) -> RoomError:
    return RoomError(f"{place}: {option} must be {wanted}; got {got!r}")
