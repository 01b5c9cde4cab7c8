"""The sessions of the console that are open. A session that is ended has no row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import delete, insert, select, tuple_

from chordage.orchestrator.core.logins import WebSession
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import web_sessions

FORGOTTEN = 100  # that are over, with each that begins
_ADDRESS_MAX = 100
_COLUMNS = [web_sessions.c[field.name] for field in fields(WebSession)]


def add(tx: Tx, session: WebSession) -> None:
    over = select(web_sessions.c.id).where(web_sessions.c.expires_at <= session.began_at)
    tx.execute(delete(web_sessions).where(web_sessions.c.id.in_(over.order_by("expires_at").limit(FORGOTTEN))))
    address = None if session.address is None else session.address[:_ADDRESS_MAX]
    tx.execute(insert(web_sessions), {**asdict(session), "address": address})


def is_open(tx: Tx, session_id: str, now: datetime) -> bool:
    found = select(web_sessions.c.id).where(web_sessions.c.id == session_id, web_sessions.c.expires_at > now)
    return tx.execute(found).first() is not None


def newest(
    tx: Tx,
    now: datetime,
    *,
    limit: int,
    tenant: str | None = None,
    key_id: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> Sequence[WebSession]:
    """`before`: when the last on the page before began, and its id."""
    table = web_sessions.c
    page = select(*_COLUMNS).where(table.expires_at > now).order_by(table.began_at.desc(), table.id.desc())
    for column, wanted in ((table.tenant, tenant), (table.key_id, key_id)):
        if wanted is not None:
            page = page.where(column == wanted)
    if before is not None:
        page = page.where(tuple_(table.began_at, table.id) < before)
    return [WebSession(**row) for row in tx.execute(page.limit(limit)).mappings()]


def end(
    tx: Tx, *, session_id: str | None = None, key_id: str | None = None, tenant: str | None = None
) -> int:  # fmt: skip
    """How many were open: of those that fit everything that is given."""
    ended = delete(web_sessions)
    for column, wanted in (
        (web_sessions.c.id, session_id),
        (web_sessions.c.key_id, key_id),
        (web_sessions.c.tenant, tenant),
    ):
        if wanted is not None:
            ended = ended.where(column == wanted)
    return tx.execute(ended).rowcount
