"""Signed bytes that were accepted, each with its turn, for as long as a copy of them would be accepted.

Two deliveries of the same bytes at once meet at the primary key: the second waits for the first, and then finds it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import replays
from chordage.orchestrator.store.statements import insert_or


def turn_of(tx: Tx, source: str, digest: str, now: datetime) -> str | None:
    """The turn of bytes that were accepted and still count."""
    valid = (replays.c.source == source, replays.c.digest == digest, replays.c.until > now)
    return tx.execute(select(replays.c.turn_id).where(*valid)).scalar()


def take(tx: Tx, source: str, digest: str, *, turn_id: str, until: datetime, now: datetime) -> bool:
    """False: they were accepted before, and still count."""
    new = {"turn_id": turn_id, "until": until}
    insert = insert_or(tx.dialect.name, replays).values(source=source, digest=digest, **new)
    keys = [replays.c.source, replays.c.digest]
    taken = insert.on_conflict_do_update(index_elements=keys, set_=new, where=replays.c.until <= now)
    return tx.execute(taken.returning(replays.c.turn_id)).first() is not None


def forget(tx: Tx, now: datetime, limit: int) -> None:
    """Delete some of those that no longer count."""
    some = select(replays.c.digest).where(replays.c.until <= now).order_by(replays.c.until).limit(limit)
    tx.execute(delete(replays).where(replays.c.digest.in_(some), replays.c.until <= now))
