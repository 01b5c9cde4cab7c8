"""The record of who decided, who changed keys and who intervened, newest first.

It is read by time, and by the id within the same time. Every filter has an index in that order.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, tuple_

from chordage.orchestrator.core.audit import Actor, Audited, AuditEntry
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import caller_audit

_ADDRESS_MAX = 100
_STORED = {"user": "on_behalf"}  # the word is one of SQL
_COLUMNS = [caller_audit.c[_STORED.get(field.name, field.name)].label(field.name) for field in fields(AuditEntry)]


def record(
    tx: Tx, actor: Actor, action: Audited, about: str, *, now: datetime, detail: dict[str, Any] | None = None
) -> None:
    address = None if actor.address is None else actor.address[:_ADDRESS_MAX]
    who = {"actor": actor.id, "on_behalf": actor.user, "tenant": actor.tenant, "address": address}
    what = {"at": now, "action": action.value, "about": about, "detail": detail or {}}
    tx.execute(insert(caller_audit), owned(tx, caller_audit, {**who, **what}))


def newest(
    tx: Tx,
    *,
    limit: int,
    tenant: str | None = None,
    actor: str | None = None,
    action: Audited | None = None,
    since: datetime | None = None,
    before: tuple[datetime, int] | None = None,
) -> list[AuditEntry]:
    """`before`: time and id of the last on the page before."""
    table = caller_audit.c
    page = select(*_COLUMNS).order_by(table.at.desc(), table.id.desc()).limit(limit)
    for column, wanted in ((table.tenant, tenant), (table.actor, actor), (table.action, action)):
        if wanted is not None:
            page = page.where(column == wanted)
    if since is not None:
        page = page.where(table.at >= since)
    if before is not None:
        page = page.where(tuple_(table.at, table.id) < before)
    return [AuditEntry(**{**row, "action": Audited(row["action"])}) for row in tx.execute(page).mappings()]


def forget(tx: Tx, before: datetime, limit: int) -> int:
    """Delete some of the oldest."""
    table = caller_audit.c
    some = select(table.id).where(table.at < before).order_by(table.at, table.id).limit(limit)
    return tx.execute(delete(caller_audit).where(table.id.in_(some))).rowcount
