"""The keys of callers, without what is secret of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import ApiKey, KeyState
from chordage.orchestrator.store import keys as rows
from chordage.orchestrator.store.database import Store


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
        last = None if after is None else rows.load(tx, after)
        if after is not None and (last is None or (tenant is not None and last.tenant != tenant)):
            raise NotFound(f"leave `after` out to start again: there is no key {after!r:.80}")
        page = rows.newest(tx, limit=limit, tenant=tenant, after=last)
    return [key_view(key, now) for key in page]
