"""Polled channels: how far each binding has read, which process polls it, and what was refused.

Two processes may poll one binding at once, when a lease ran out during a long poll. Each stores only while the revision
is the one under which it read the cursor, so neither moves the other's cursor back. The lease saves the second poll;
the revision makes it harmless.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update

from chordage.orchestrator.store import runs
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import in_code_points
from chordage.orchestrator.store.schema import polls, refusals, threads, turns
from chordage.orchestrator.store.statements import insert_or


def known_keys(tx: Tx, agent: str, source: str, keys: Collection[str]) -> set[str]:
    """Those of these keys that are turns already, or were refused."""
    some = sorted(keys)
    known = select(turns.c.dedupe_key).where(
        turns.c.agent == agent, turns.c.source == source, turns.c.dedupe_key.in_(some)
    )
    turned_down = select(refusals.c.key).where(refusals.c.source == source, refusals.c.key.in_(some))
    return set(tx.execute(known.union_all(turned_down)).scalars())


def refuse(tx: Tx, source: str, key: str, *, why: str, excerpt: str, now: datetime) -> bool:
    """False: it was refused before."""
    row = {"source": source, "key": key, "why": why, "excerpt": excerpt, "at": now}
    new = insert_or(tx.dialect.name, refusals).values(owned(tx, refusals, row))
    return bool(tx.execute(new.on_conflict_do_nothing(index_elements=["source", "key"])).rowcount)


def load_all(tx: Tx) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(select(polls).order_by(polls.c.name)).mappings()]


def load(tx: Tx, name: str) -> dict[str, Any] | None:
    row = tx.execute(select(polls).where(polls.c.name == name)).mappings().first()
    return dict(row) if row else None


def refusals_of(tx: Tx, source: str, limit: int) -> list[dict[str, Any]]:
    """The newest first."""
    newest = select(refusals).where(refusals.c.source == source).order_by(refusals.c.id.desc()).limit(limit)
    return [dict(row) for row in tx.execute(newest).mappings()]


_NEW = dict.fromkeys(("revision", "failures", "taken", "doubled", "refused", "passed_over"), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PollPosition:
    """How far a binding has read, when the lease was taken."""

    name: str
    cursor: str | None
    revision: int
    failures: int
    next_look: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PollCounts:
    taken: int = 0
    doubled: int = 0
    refused: int = 0
    passed_over: int = 0


def claim(tx: Tx, name: str, holder: str, now: datetime, until: datetime) -> PollPosition | None:
    """Take the lease. None: another process has it."""
    ours = {"holder": holder, "lease_until": until, "looked_at": now}
    free = or_(polls.c.holder.is_(None), polls.c.holder == holder, polls.c.lease_until <= now)
    new = insert_or(tx.dialect.name, polls).values({"name": name, **_NEW, **ours})
    taken = new.on_conflict_do_update(index_elements=["name"], set_=ours, where=free)
    row = (
        tx.execute(taken.returning(polls.c.name, polls.c.cursor, polls.c.revision, polls.c.failures, polls.c.next_look))
        .mappings()
        .first()
    )
    return PollPosition(**row) if row else None


def renew(tx: Tx, names: Collection[str], holder: str, until: datetime) -> None:
    mine = update(polls).where(polls.c.name.in_(sorted(names)), polls.c.holder == holder)
    tx.execute(mine.values(lease_until=until))


def release(tx: Tx, names: Collection[str], holder: str) -> None:
    mine = update(polls).where(polls.c.name.in_(sorted(names)), polls.c.holder == holder)
    tx.execute(mine.values(holder=None, lease_until=None))


def lock_revision(tx: Tx, name: str, revision: int) -> bool:
    """Lock the row. False: another process has stored something since that revision."""
    locked = select(polls.c.revision).where(polls.c.name == name).with_for_update()
    return tx.execute(locked).scalar() == revision


def store_cursor(tx: Tx, name: str, revision: int, cursor: str | None, counts: PollCounts, now: datetime) -> bool:
    """What was read is stored, and the next poll begins behind it."""
    new = counts.taken + counts.refused
    moved = (
        update(polls)
        .where(polls.c.name == name, polls.c.revision == revision)
        .values(
            cursor=cursor,
            revision=revision + 1,
            stored_at=now if new else polls.c.stored_at,
            taken=polls.c.taken + counts.taken,
            doubled=polls.c.doubled + counts.doubled,
            refused=polls.c.refused + counts.refused,
            passed_over=polls.c.passed_over + counts.passed_over,
        )
    )
    return bool(tx.execute(moved).rowcount)


def note_failure(tx: Tx, name: str, holder: str, error: str, next_look: datetime) -> None:
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    failed = owned(tx, polls, {"error": error}, owner=name)
    tx.execute(mine.values(failures=polls.c.failures + 1, next_look=next_look, **failed))


def note_full(tx: Tx, name: str, holder: str, why: str, next_look: datetime) -> None:
    """Nothing is broken: there is no room for the messages that came."""
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, next_look=next_look, **owned(tx, polls, {"error": why}, owner=name)))


def note_success(tx: Tx, name: str, holder: str) -> None:
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, error=None, next_look=None))


def lock_threads(tx: Tx, thread_ids: Collection[str]) -> None:
    """Lock all threads of a batch, in the order of their ids, then their open runs, in the order in which everything
    locks several runs. Then messages to them can be stored in the order in which they came.
    """
    some = sorted(thread_ids)
    lines = select(threads.c.id).where(threads.c.id.in_(some))
    tx.execute(lines.order_by(in_code_points(tx, threads.c.id)).with_for_update()).all()
    runs.lock_open_on_threads(tx, *some)
