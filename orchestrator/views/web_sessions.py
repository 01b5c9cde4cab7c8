"""The sessions of the console that are open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.logins import WebSession
from chordage.orchestrator.store import web_sessions as rows
from chordage.orchestrator.store.database import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionPage:
    data: list[WebSession]
    next: tuple[datetime, str] | None  # give it as `before` for the next page


def session_page(
    store: Store,
    now: datetime,
    *,
    limit: int = 50,
    tenant: str | None = None,
    key_id: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> SessionPage:
    """Newest first. `tenant`, `key_id`: those that began with such a key."""
    with store.read() as tx:
        page = list(rows.newest(tx, now, limit=limit + 1, tenant=tenant, key_id=key_id, before=before))
    last = page[limit - 1] if len(page) > limit else None
    return SessionPage(data=page[:limit], next=None if last is None else (last.began_at, last.id))
