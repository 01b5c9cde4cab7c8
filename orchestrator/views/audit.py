"""The record of who decided, who changed keys and who intervened, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.audit import Audited, AuditEntry
from chordage.orchestrator.store import audit as rows
from chordage.orchestrator.store.database import Store

AuditPlace = tuple[datetime, int]  # time and id of an entry


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPage:
    data: list[AuditEntry]
    next: AuditPlace | None  # give it as `before` for the next page


def audit_page(
    store: Store,
    *,
    limit: int = 50,
    tenant: str | None = None,
    actor: str | None = None,
    action: Audited | None = None,
    since: datetime | None = None,
    before: AuditPlace | None = None,
) -> AuditPage:
    """Newest first. `tenant`: what its own keys did."""
    with store.read() as tx:
        page = rows.newest(
            tx, limit=limit + 1, tenant=tenant, actor=actor, action=action, since=since, before=before
        )  # fmt: skip
    last = page[limit - 1] if len(page) > limit else None
    return AuditPage(data=page[:limit], next=None if last is None else (last.at, last.id))
