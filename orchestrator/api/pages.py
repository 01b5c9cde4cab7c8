"""Lists over HTTP: every one is `{"data": [...], "next": ...}`, and `next` is the `after` of the next page.

A cursor is the key of a row, written so that it fits into an address. Nothing is kept for it, and it never expires.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from chordage.orchestrator.core.errors import InvalidMessage

T = TypeVar("T")

MAX_CURSOR = 1000  # characters
MAX_ROWS = 200

After = Annotated[str | None, Query(max_length=MAX_CURSOR, description="The `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="How many at most. A page may have fewer.")]


class PageOf(BaseModel, Generic[T]):
    """One page of a list."""

    data: list[T]
    next: Annotated[str | None, Field(description="Give it as `after` for the next page. null: this is the last.")]


def page_model(of: Any, name: str) -> Any:
    """The type of a page, with a name that reads well in a client that is generated."""
    return type(name, (PageOf[of],), {"__module__": __name__, "__doc__": PageOf.__doc__})


def cursor_of(*key: Any) -> str:
    """Of the row behind which the next page begins."""
    written = [part.isoformat() if isinstance(part, datetime) else part for part in key]
    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(after: str | None, *kinds: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """The key that a cursor holds, each part read by one of `kinds`. Raises InvalidMessage."""
    if after is None:
        return None
    try:
        raw = base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)
        return tuple(kind(part) for kind, part in zip(kinds, json.loads(raw), strict=True))
    except (binascii.Error, ValueError, TypeError, RecursionError, OverflowError) as error:
        problem = "after: give the `next` of the page before as it was, or leave it out to begin"
        raise InvalidMessage(problem, field="after") from error


def text(part: Any) -> str:
    if not isinstance(part, str) or "\x00" in part or not part.isprintable():
        raise ValueError(part)
    return part


def number(part: Any) -> int:
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < 2**63:
        raise ValueError(part)
    return part


def moment(part: Any) -> datetime:
    at = datetime.fromisoformat(text(part))
    if at.tzinfo is None:
        raise ValueError(part)
    return at
