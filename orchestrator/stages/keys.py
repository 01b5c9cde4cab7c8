"""Not in the line of a turn: keys of callers are made, found and revoked, and people get into the console.

The functions take the store and the time, since they serve the commands too, which need no room.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from chordage.orchestrator.core import keys as rules
from chordage.orchestrator.core.audit import CLI, Actor, Audited
from chordage.orchestrator.core.errors import NotFound, Unavailable
from chordage.orchestrator.core.keys import ApiKey, KeyTerms
from chordage.orchestrator.store import audit, keys, logins
from chordage.orchestrator.store.database import Store

log = structlog.get_logger()

LINK_LASTS = timedelta(minutes=10)
_SECRET = 32  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    """`text`: the key itself, which is known at this moment only."""

    key: ApiKey
    text: str = field(repr=False)


def create_key(store: Store, terms: KeyTerms, by: Actor, now: datetime) -> NewKey:
    rules.check_terms(terms, now)
    key_id = rules.id_from(secrets.token_bytes(rules.ID_LENGTH))
    secret = rules.secret_from(secrets.token_bytes(rules.SECRET_BYTES))
    key = ApiKey(
        id=key_id, hash=rules.hash_of(secret), name=terms.name, tenant=terms.tenant, scopes=terms.scopes,
        agents=terms.agents, groups=terms.groups, created_by=by.id, created_at=now, expires_at=terms.expires_at,
        last_used_at=None, revoked_at=None, act_as=terms.act_as,
    )  # fmt: skip
    detail = {"name": key.name, "tenant": key.tenant, "scopes": sorted(key.scopes), "act_as": key.act_as}
    with store.write() as tx:
        keys.add(tx, key)
        audit.record(tx, by, Audited.KEY_CREATED, key.id, now=now, detail=detail)
    return NewKey(key=key, text=rules.written(key_id, secret))


def revoke_key(store: Store, key_id: str, by: Actor, now: datetime, *, tenant: str | None = None) -> ApiKey:
    """Once more: nothing changes. `tenant`: of who revokes it; keys of others are not there."""
    with store.write() as tx:
        key = keys.load(tx, key_id)
        if key is None or (tenant is not None and key.tenant != tenant):
            raise NotFound(f"there is no key {key_id!r:.80}; `chordage keys list` has their ids")
        if keys.revoke(tx, key_id, now):
            detail = {"name": key.name, "tenant": key.tenant}
            audit.record(tx, by, Audited.KEY_REVOKED, key_id, now=now, detail=detail)
        revoked = keys.load(tx, key_id)
    assert revoked is not None
    return revoked


def find_key(store: Store, key_id: str) -> ApiKey | None:
    with store.read() as tx:
        return keys.load(tx, key_id)


def record_use(store: Store, key: ApiKey, now: datetime) -> None:
    """Once a minute, whichever processes call it. A database that is busy or cannot be written refuses no caller."""
    try:
        with store.write() as tx:
            keys.record_use(tx, key.id, now)
    except Unavailable as error:
        log.warning("the use of a key is not recorded", key=key.id, error=str(error))


def has_valid_key(store: Store, now: datetime) -> bool:
    with store.read() as tx:
        return keys.one_is_valid(tx, now)


# The console.


def session_secret(store: Store) -> bytes:
    """Made by the process that needs it first."""
    with store.read() as tx:
        secret = logins.session_secret(tx)
    if secret is None:
        with store.write() as tx:
            secret = logins.keep_session_secret(tx, secrets.token_hex(_SECRET))
    return bytes.fromhex(secret)


def make_link(store: Store, now: datetime, *, by: Actor = CLI) -> str:
    """The token of a one-time link, which lets the person who opens it act as the operator."""
    token = secrets.token_urlsafe(_SECRET)
    with store.write() as tx:
        logins.add_link(tx, rules.hash_of(token), now=now, expires_at=now + LINK_LASTS)
        audit.record(tx, by, Audited.LOGIN_LINK_MADE, "console", now=now)
    return token


def use_link(store: Store, token: str, now: datetime) -> bool:
    with store.write() as tx:
        return logins.take_link(tx, rules.hash_of(token), now)
