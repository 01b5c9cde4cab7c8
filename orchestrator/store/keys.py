"""The keys of callers."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime

from sqlalchemy import RowMapping, insert, or_, select, tuple_, update

from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import USE_STEP, ApiKey
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import caller_keys

_COLUMNS = [caller_keys.c[field.name] for field in fields(ApiKey)]


def add(tx: Tx, key: ApiKey) -> None:
    lists = {
        "scopes": sorted(key.scopes),
        "agents": None if key.agents is None else sorted(key.agents),
        "groups": None if key.groups is None else sorted(key.groups),
        "act_as": int(key.act_as),
    }
    tx.execute(insert(caller_keys), {**{field.name: getattr(key, field.name) for field in fields(key)}, **lists})


def load(tx: Tx, key_id: str) -> ApiKey | None:
    row = tx.execute(select(*_COLUMNS).where(caller_keys.c.id == key_id)).mappings().first()
    return _from_row(row) if row else None


def newest(tx: Tx, *, limit: int, tenant: str | None, after: ApiKey | None = None) -> list[ApiKey]:
    """Newest first. `tenant`: its keys alone. `after`: the last on the page before."""
    place = tuple_(caller_keys.c.created_at, caller_keys.c.id)
    page = select(*_COLUMNS).order_by(caller_keys.c.created_at.desc(), caller_keys.c.id.desc()).limit(limit)
    if tenant is not None:
        page = page.where(caller_keys.c.tenant == tenant)
    if after is not None:
        page = page.where(place < (after.created_at, after.id))
    return [_from_row(row) for row in tx.execute(page).mappings()]


def one_is_valid(tx: Tx, now: datetime) -> bool:
    valid = select(caller_keys.c.id).where(
        caller_keys.c.revoked_at.is_(None), or_(caller_keys.c.expires_at.is_(None), caller_keys.c.expires_at > now)
    )
    return tx.execute(valid.limit(1)).first() is not None


def record_use(tx: Tx, key_id: str, now: datetime) -> bool:
    """False: another process did, less than a minute ago."""
    is_due = or_(caller_keys.c.last_used_at.is_(None), caller_keys.c.last_used_at <= now - USE_STEP)
    used = update(caller_keys).where(caller_keys.c.id == key_id, is_due)
    return tx.execute(used.values(last_used_at=now)).rowcount == 1


def revoke(tx: Tx, key_id: str, now: datetime) -> bool:
    """False: it was revoked before, or there is no such key."""
    revoked = update(caller_keys).where(caller_keys.c.id == key_id, caller_keys.c.revoked_at.is_(None))
    return tx.execute(revoked.values(revoked_at=now)).rowcount == 1


def _from_row(row: RowMapping) -> ApiKey:
    lists = {
        "scopes": frozenset(KeyScope(scope) for scope in row["scopes"]),
        "agents": None if row["agents"] is None else frozenset(row["agents"]),
        "groups": None if row["groups"] is None else frozenset(Group(group) for group in row["groups"]),
        "act_as": bool(row["act_as"]),
    }
    return ApiKey(**{**row, **lists})
