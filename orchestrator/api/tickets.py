"""Tickets: how a page opens a stream with `EventSource`, which cannot send a key.

A ticket is good for 60 seconds, for one request to one path, as its maker. Only a hash of it is stored, in the
database, so that any process of the server takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from urllib.parse import unquote, urlsplit

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from chordage.orchestrator import stages
from chordage.orchestrator.api import problems
from chordage.orchestrator.api.bodies import STRICT
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Conflict, InvalidMessage
from chordage.orchestrator.core.logins import TicketHolder

router = json_router("streams")


class TicketBody(BaseModel):
    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"path": "/turns/TURN/events"}]})

    path: Annotated[
        str,
        Field(min_length=1, max_length=1000, pattern=r"^/[^\x00]*$", description="Of the stream, as it is asked for."),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    ticket: str  # send it as `?ticket=`
    path: str
    expires_at: datetime


@router.post(
    "/tickets",
    status_code=201,
    operation_id="make_ticket",
    summary="Make a ticket for a stream",
    response_description="Good once, for 60 seconds, for this path alone.",
    responses=documented(*problems.OF_WRITES, 409),
)
def make(request: Request, body: TicketBody, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Ticket:
    """For `new EventSource(path + "?ticket=" + ticket)`. Where the stream breaks off, the browser sends the same
    address again; that is refused, and the page makes another ticket and gives `after`.
    """
    services = services_of(request)
    if services.caller_of is None:
        raise Conflict("this server knows its callers another way than by keys, and makes no tickets for them")
    path = urlsplit(body.path).path
    if not path.endswith("/events"):
        raise InvalidMessage("path: give the path of a stream, such as /turns/TURN/events", field="path")
    now = services.rt.now()
    ticket = stages.make_ticket(services.rt.store, unquote(path), TicketHolder(caller=caller.id, user=caller.user), now)
    return Ticket(ticket=ticket, path=path, expires_at=now + stages.TICKET_LASTS)
