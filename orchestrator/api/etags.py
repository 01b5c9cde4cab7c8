"""Entity tags: the revision of what was read. A reader that has it already gets 304, and a change that was decided on
an older one is refused with 412.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Header, Request, Response
from fastapi.encoders import jsonable_encoder

from chordage.orchestrator.core.errors import InvalidMessage, StaleRevision
from chordage.orchestrator.core.groups import Group

IfNoneMatch = Annotated[
    str | None, Header(max_length=1000, description="Entity tags that the reader has: 304 if one of them is current.")
]
IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="The entity tag that was read: 412 if it is no longer the current one."),
]
NOT_MODIFIED: Mapping[int | str, dict[str, Any]] = {304: {"description": "Not Modified"}}


def etag_of(revision: Any) -> str:
    """Equal values have equal tags."""
    written = json.dumps(jsonable_encoder(revision), sort_keys=True, ensure_ascii=False)
    return f'"{hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def answer_with(request: Request, response: Response, etag: str, body: Any) -> Any:
    """The body with its tag, or 304 without one."""
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return body


def numbered(revision: int, state: Any = None) -> str:
    """Of a row that counts its revisions. `state`: what may change without one; a change that is decided on the row
    does not depend on it.
    """
    return f'"{revision}"' if state is None else f'"{revision}-{etag_of(state)[1:9]}"'


def of_budget(stored: int | None, state: Any) -> str:
    """A budget has no revision: its value is one. `state`: the rest of the group, which changes by itself."""
    return f'"{_budget(stored)}-{etag_of(state)[1:9]}"'


def of_queued(group: Group, deadline: datetime | None, state: Any) -> str:
    """Of a turn: what can be changed of it, which `PATCH` compares, and the rest."""
    return f'"{_of_turn(group, deadline)}-{etag_of(state)[1:9]}"'


def check_queued(if_match: str | None, group: Group, deadline: datetime | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    if if_match.strip().removeprefix("W/").strip('"').partition("-")[0] != _of_turn(group, deadline):
        raise StaleRevision("the group or the deadline of the turn was changed since it was read: read it again")


def _of_turn(group: Group, deadline: datetime | None) -> str:
    return etag_of([group, deadline])[1:9]


def check_budget(if_match: str | None, stored: int | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    if if_match.strip().removeprefix("W/").strip('"').partition("-")[0] != _budget(stored):
        raise StaleRevision(f"the budget was changed to {stored} since it was read: read it again")


def _budget(stored: int | None) -> str:
    return "settings" if stored is None else str(stored)


def revision_in(if_match: str | None) -> int | None:
    """Of a tag made by `numbered`. None: any revision."""
    if if_match is None or if_match.strip() == "*":
        return None
    digits = if_match.strip().removeprefix("W/").strip('"').partition("-")[0]
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        problem = f'If-Match: give the ETag of the turn as it was read, such as "3", not {if_match!r:.40}'
        raise InvalidMessage(problem, field="If-Match")
    return int(digits)
