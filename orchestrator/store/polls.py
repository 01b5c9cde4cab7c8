"""Polled channels: what came again, what was refused, and how each binding stands.

Guarded changes of where polled channels stand: who looks, and how far what was stored takes us.

Two may look at one binding at once, when a lease ran out under a look that took long. Each stores only while the
revision is the one under which it has read the cursor, so what one has stored the other does not move back. The lease
spares the second look; the revision is what makes it harmless.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import OPEN_RUNS, in_code_points
from chordage.orchestrator.store.schema import polls, refusals, runs, threads, turns
from chordage.orchestrator.store.statements import insert_or


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
    new = insert_or(tx.dialect.name, refusals).values(row).on_conflict_do_nothing(index_elements=["source", "key"])
    return bool(tx.execute(new).rowcount)


def load_all(tx: Tx) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(select(polls).order_by(polls.c.name)).mappings()]


def load(tx: Tx, name: str) -> dict[str, Any] | None:
    row = tx.execute(select(polls).where(polls.c.name == name)).mappings().first()
    return dict(row) if row else None


def refusals_of(tx: Tx, source: str, limit: int) -> list[dict[str, Any]]:
    """The newest first."""
    found = select(refusals).where(refusals.c.source == source).order_by(refusals.c.id.desc()).limit(limit)
    return [dict(row) for row in tx.execute(found).mappings()]


_NEW = dict.fromkeys(("revision", "failures", "taken", "doubled", "refused", "passed_over"), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PollPosition:
    """As whoever holds the lease has found it."""

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
    """The lease is the holder's; None: somebody else has it."""
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
    """The row is locked, if nobody has stored anything since that revision."""
    found = select(polls.c.revision).where(polls.c.name == name).with_for_update()
    return tx.execute(found).scalar() == revision


def store_cursor(tx: Tx, name: str, revision: int, cursor: str | None, counts: PollCounts, now: datetime) -> bool:
    """What was read is stored, and the next look begins behind it."""
    came = counts.taken + counts.refused
    moved = (
        update(polls)
        .where(polls.c.name == name, polls.c.revision == revision)
        .values(
            cursor=cursor,
            revision=revision + 1,
            stored_at=now if came else polls.c.stored_at,
            taken=polls.c.taken + counts.taken,
            doubled=polls.c.doubled + counts.doubled,
            refused=polls.c.refused + counts.refused,
            passed_over=polls.c.passed_over + counts.passed_over,
        )
    )
    return bool(tx.execute(moved).rowcount)


def note_failure(tx: Tx, name: str, holder: str, error: str, next_look: datetime) -> None:
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=polls.c.failures + 1, error=error, next_look=next_look))


def note_full(tx: Tx, name: str, holder: str, why: str, next_look: datetime) -> None:
    """Nothing is broken: there is no room for what came."""
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, error=why, next_look=next_look))


def note_success(tx: Tx, name: str, holder: str) -> None:
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, error=None, next_look=None))


def lock_threads(tx: Tx, thread_ids: Collection[str]) -> None:
    """All threads of a batch, in order of their ids, then the runs that are open on them, in the order of everybody who
    locks several. Messages to them may then be stored in the order in which they came.
    """
    some = sorted(thread_ids)
    lines = select(threads.c.id).where(threads.c.id.in_(some))
    tx.execute(lines.order_by(in_code_points(tx, threads.c.id)).with_for_update()).all()
    open_there = select(runs.c.id).where(runs.c.thread_id.in_(some), OPEN_RUNS)
    tx.execute(open_there.order_by(in_code_points(tx, runs.c.id).desc()).with_for_update()).all()
