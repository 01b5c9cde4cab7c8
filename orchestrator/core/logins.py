"""How people and pages get in without sending a key each time: sessions of the console, and tickets for one stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class WebSession:
    id: str
    key_id: str | None  # none: it began with a link
    tenant: str | None  # of the key
    address: str | None
    began_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TicketHolder:
    """Who made a ticket."""

    caller: str  # the id of a key, or `local`
    user: str | None  # for whom it spoke
