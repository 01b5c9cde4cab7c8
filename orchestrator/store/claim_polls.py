"""Guarded changes of where polled channels stand: who looks, and how far what was stored takes us.

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
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.store.predicates import OPEN_RUNS, in_code_points
from chordage.orchestrator.store.schema import runs, threads
from chordage.orchestrator.store.schema_poll import polls
from chordage.orchestrator.store.tx import Tx

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_NEW = dict.fromkeys(("revision", "failures", "taken", "doubled", "refused", "passed_over"), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """As whoever holds the lease has found it."""

    name: str
    cursor: str | None
    revision: int
    failures: int
    next_look: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    taken: int = 0
    doubled: int = 0
    refused: int = 0
    passed_over: int = 0


def take(tx: Tx, name: str, holder: str, now: datetime, until: datetime) -> Standing | None:
    """The lease is the holder's; None: somebody else has it."""
    ours = {"holder": holder, "lease_until": until, "looked_at": now}
    free = or_(polls.c.holder.is_(None), polls.c.holder == holder, polls.c.lease_until <= now)
    new = _INSERT[tx.dialect.name](polls).values({"name": name, **_NEW, **ours})
    taken = new.on_conflict_do_update(index_elements=["name"], set_=ours, where=free)
    row = (
        tx.execute(taken.returning(polls.c.name, polls.c.cursor, polls.c.revision, polls.c.failures, polls.c.next_look))
        .mappings()
        .first()
    )
    return Standing(**row) if row else None


def renew(tx: Tx, names: Collection[str], holder: str, until: datetime) -> None:
    mine = update(polls).where(polls.c.name.in_(sorted(names)), polls.c.holder == holder)
    tx.execute(mine.values(lease_until=until))


def let_go(tx: Tx, names: Collection[str], holder: str) -> None:
    mine = update(polls).where(polls.c.name.in_(sorted(names)), polls.c.holder == holder)
    tx.execute(mine.values(holder=None, lease_until=None))


def hold(tx: Tx, name: str, revision: int) -> bool:
    """The row is locked, if nobody has stored anything since that revision."""
    found = select(polls.c.revision).where(polls.c.name == name).with_for_update()
    return tx.execute(found).scalar() == revision


def move_on(tx: Tx, name: str, revision: int, cursor: str | None, counts: Counts, now: datetime) -> bool:
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


def note_rest(tx: Tx, name: str, holder: str, why: str, next_look: datetime) -> None:
    """Nothing is broken: there is no room for what came."""
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, error=why, next_look=next_look))


def note_success(tx: Tx, name: str, holder: str) -> None:
    mine = update(polls).where(polls.c.name == name, polls.c.holder == holder)
    tx.execute(mine.values(failures=0, error=None, next_look=None))


def lock_lines(tx: Tx, thread_ids: Collection[str]) -> None:
    """All threads of a batch, in order of their ids, then the runs that are open on them, in the order of everybody who
    locks several. Messages to them may then be stored in the order in which they came.
    """
    some = sorted(thread_ids)
    lines = select(threads.c.id).where(threads.c.id.in_(some))
    tx.execute(lines.order_by(in_code_points(tx, threads.c.id)).with_for_update()).all()
    open_there = select(runs.c.id).where(runs.c.thread_id.in_(some), OPEN_RUNS)
    tx.execute(open_there.order_by(in_code_points(tx, runs.c.id).desc()).with_for_update()).all()
