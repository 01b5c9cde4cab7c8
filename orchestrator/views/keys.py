"""The keys of callers without their secrets, their sessions in the console, and the record of what they did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.audit import Audited, AuditEntry
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import ApiKey, KeyState
from chordage.orchestrator.core.logins import WebSession
from chordage.orchestrator.store import audit as audit_rows
from chordage.orchestrator.store import keys as key_rows
from chordage.orchestrator.store import web_sessions as session_rows
from chordage.orchestrator.store.database import Store

AuditPlace = tuple[datetime, int]  # time and id of an entry


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyView:
    id: str
    name: str
    state: KeyState
    tenant: str | None
    scopes: list[KeyScope]
    agents: list[str] | None  # none: all
    groups: list[Group] | None  # none: all
    act_as: bool  # whether it may speak for users
    created_by: str  # the id of a key, or `cli`
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None  # to the minute
    revoked_at: datetime | None


def key_view(key: ApiKey, now: datetime) -> KeyView:
    return KeyView(
        id=key.id, name=key.name, state=key.state(now), tenant=key.tenant,
        scopes=[scope for scope in KeyScope if scope in key.scopes],
        agents=None if key.agents is None else sorted(key.agents),
        groups=None if key.groups is None else sorted(key.groups),
        act_as=key.act_as, created_by=key.created_by, created_at=key.created_at, expires_at=key.expires_at,
        last_used_at=key.last_used_at, revoked_at=key.revoked_at,
    )  # fmt: skip


def keys(
    store: Store, *, now: datetime, limit: int = 50, after: str | None = None, tenant: str | None = None
) -> list[KeyView]:
    """Newest first. `after`: the last on the page before. `tenant`: its keys alone."""
    with store.read() as tx:
        last = None if after is None else key_rows.load(tx, after)
        if after is not None and (last is None or (tenant is not None and last.tenant != tenant)):
            raise NotFound(f"leave `after` out to start again: there is no key {after!r:.80}")
        page = key_rows.newest(tx, limit=limit, tenant=tenant, after=last)
    return [key_view(key, now) for key in page]


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
        page = list(session_rows.newest(tx, now, limit=limit + 1, tenant=tenant, key_id=key_id, before=before))
    last = page[limit - 1] if len(page) > limit else None
    return SessionPage(data=page[:limit], next=None if last is None else (last.began_at, last.id))


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
        page = audit_rows.newest(
            tx, limit=limit + 1, tenant=tenant, actor=actor, action=action, since=since, before=before
        )  # fmt: skip
    last = page[limit - 1] if len(page) > limit else None
    return AuditPage(data=page[:limit], next=None if last is None else (last.at, last.id))
