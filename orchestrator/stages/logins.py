"""Not in the line of a turn: sessions of the console, and tickets for one stream.

A session has a row for as long as it is open. The row is written before its cookie is sent, and deleting it ends
the session in every process.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.keys import hash_of
from chordage.orchestrator.core.logins import TicketHolder, WebSession
from chordage.orchestrator.store import audit, stream_tickets, web_sessions
from chordage.orchestrator.store.database import Store

TICKET_LASTS = timedelta(seconds=60)
_TICKET = 32  # bytes


def begin_session(store: Store, session: WebSession) -> None:
    with store.write() as tx:
        web_sessions.add(tx, session)


def session_is_open(store: Store, session_id: str, now: datetime) -> bool:
    with store.read() as tx:
        return web_sessions.is_open(tx, session_id, now)


def leave_session(store: Store, session_id: str) -> None:
    """Its own person logs out."""
    with store.write() as tx:
        web_sessions.end(tx, session_id=session_id)


def end_session(
    store: Store, session_id: str, by: Actor, now: datetime, *, key_id: str | None = None, tenant: str | None = None
) -> None:
    """`key_id`, `tenant`: whose it has to be; sessions of others are not there. Raises NotFound."""
    with store.write() as tx:
        if not web_sessions.end(tx, session_id=session_id, key_id=key_id, tenant=tenant):
            raise NotFound(f"there is no open session {session_id!r:.80}; `chordage keys sessions` lists them")
        audit.record(tx, by, Audited.SESSIONS_ENDED, session_id, now=now, detail={"count": 1})


def end_sessions(
    store: Store, by: Actor, now: datetime, *, key_id: str | None = None, tenant: str | None = None
) -> int:
    """All of them, or those that began with this key, or with a key of this tenant."""
    with store.write() as tx:
        count = web_sessions.end(tx, key_id=key_id, tenant=tenant)
        if count:
            audit.record(tx, by, Audited.SESSIONS_ENDED, key_id or tenant or "all", now=now, detail={"count": count})
    return count


def make_ticket(store: Store, path: str, holder: TicketHolder, now: datetime) -> str:
    ticket = secrets.token_urlsafe(_TICKET)
    with store.write() as tx:
        stream_tickets.add(tx, hash_of(ticket), path, holder, now=now, expires_at=now + TICKET_LASTS)
    return ticket


def take_ticket(store: Store, ticket: str, path: str, now: datetime) -> TicketHolder | None:
    with store.write() as tx:
        return stream_tickets.take(tx, hash_of(ticket), path, now)
