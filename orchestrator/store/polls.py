"""Polled channels: what came again, what was refused, and how each binding stands."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.store.schema import turns
from chordage.orchestrator.store.schema_poll import polls, refusals
from chordage.orchestrator.store.tx import Tx

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def known_keys(tx: Tx, agent: str, source: str, keys: Collection[str]) -> set[str]:
    """Those that are turns already, or were refused."""
    some = sorted(keys)
    known = select(turns.c.dedupe_key).where(
        turns.c.agent == agent, turns.c.source == source, turns.c.dedupe_key.in_(some)
    )
    turned_down = select(refusals.c.key).where(refusals.c.source == source, refusals.c.key.in_(some))
    return set(tx.execute(known.union_all(turned_down)).scalars())


def refuse(tx: Tx, source: str, key: str, *, why: str, excerpt: str, now: datetime) -> bool:
    """False: it was refused before."""
    row = {"source": source, "key": key, "why": why, "excerpt": excerpt, "at": now}
    new = _INSERT[tx.dialect.name](refusals).values(row).on_conflict_do_nothing(index_elements=["source", "key"])
    return bool(tx.execute(new).rowcount)


def all_of_them(tx: Tx) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(select(polls).order_by(polls.c.name)).mappings()]


def one(tx: Tx, name: str) -> dict[str, Any] | None:
    row = tx.execute(select(polls).where(polls.c.name == name)).mappings().first()
    return dict(row) if row else None


def refused(tx: Tx, source: str, limit: int) -> list[dict[str, Any]]:
    """The newest first."""
    found = select(refusals).where(refusals.c.source == source).order_by(refusals.c.id.desc()).limit(limit)
    return [dict(row) for row in tx.execute(found).mappings()]
