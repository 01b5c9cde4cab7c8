"""Bulk jobs: one action on many turns or deliveries, one target after the other.

A transaction that acts on a target moves the position of its job past that target, by a guarded update that is its
first statement and locks the row. So what a dead worker has not committed is done by the next one, what it has
committed is behind the position, and of two workers with one job the later one finds nothing to move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, func, insert, or_, select, update

from chordage.orchestrator.core import message
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.bulk import BEGINNING, EXACT, BulkAction, BulkCount, BulkJob, BulkState
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has, in_code_points
from chordage.orchestrator.store.processes import GONE
from chordage.orchestrator.store.schema import bulk_jobs, bulk_refusals, outbox
from chordage.orchestrator.store.statements import insert_or

_COLUMNS = [bulk_jobs.c[field.name] for field in fields(BulkJob)]
_IS_OPEN = has(bulk_jobs.c.state, BulkState.OPEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkRefusal:
    target: str
    why: str


def add(tx: Tx, job: BulkJob, *, lease_until: datetime) -> bool:
    """False: there is a job of this caller under this key."""
    values = {field.name: getattr(job, field.name) for field in fields(BulkJob)}
    values |= {
        "action": job.action.value, "state": job.state.value, "is_estimate": int(job.is_estimate),
        "chosen": None if job.chosen is None else list(job.chosen),
        "agents": None if job.agents is None else sorted(job.agents),
        "groups": None if job.groups is None else sorted(job.groups),
        "lease_until": lease_until,
    }  # fmt: skip
    new = insert_or(tx.dialect.name, bulk_jobs).values(owned(tx, bulk_jobs, values))
    new = new.on_conflict_do_nothing(index_elements=["asked_by", "request_key"])
    return tx.execute(new.returning(bulk_jobs.c.id)).first() is not None


def load(tx: Tx, job_id: str) -> BulkJob | None:
    row = tx.execute(select(*_COLUMNS).where(bulk_jobs.c.id == job_id)).mappings().first()
    return _from_row(row) if row else None


def by_key(tx: Tx, asked_by: str, key: str) -> BulkJob | None:
    known = select(*_COLUMNS).where(bulk_jobs.c.asked_by == asked_by, bulk_jobs.c.request_key == key)
    row = tx.execute(known).mappings().first()
    return _from_row(row) if row else None


def newest(tx: Tx, *, limit: int, space: str | None, before: str | None = None) -> list[BulkJob]:
    """Newest first. `space`: its jobs alone."""
    page = select(*_COLUMNS).order_by(bulk_jobs.c.id.desc()).limit(limit)
    if space is not None:
        page = page.where(bulk_jobs.c.space == space)
    if before is not None:
        page = page.where(bulk_jobs.c.id < before)
    return [_from_row(row) for row in tx.execute(page).mappings()]


def refusals(tx: Tx, job_id: str, *, limit: int, after: str | None = None) -> list[BulkRefusal]:
    page = select(bulk_refusals.c.target, bulk_refusals.c.why).where(bulk_refusals.c.job_id == job_id)
    if after is not None:
        page = page.where(bulk_refusals.c.target > after)
    rows = tx.execute(page.order_by(bulk_refusals.c.target).limit(limit)).mappings()
    return [BulkRefusal(**row) for row in rows]


# Its worker.


def claim(tx: Tx, job_id: str, token: str, worker: str, *, now: datetime, until: datetime) -> BulkJob | None:
    """None: it is over, or another worker has it."""
    is_free = or_(bulk_jobs.c.claim_token.is_(None), bulk_jobs.c.lease_until <= now)
    claimed = update(bulk_jobs).where(bulk_jobs.c.id == job_id, _IS_OPEN, is_free).returning(*_COLUMNS)
    claimed = claimed.values(claim_token=token, claim_worker=worker, lease_until=until)
    row = tx.execute(claimed).mappings().first()
    return _from_row(row) if row else None


def move(tx: Tx, job: BulkJob, token: str, position: str, *, until: datetime, done: int = 0, refused: int = 0) -> bool:
    """Past this target. False: it was passed before, the job was stopped, or another worker has it."""
    moved = update(bulk_jobs).where(
        bulk_jobs.c.id == job.id, _IS_OPEN, bulk_jobs.c.claim_token == token, _is_before(tx, job, position)
    )
    counts = {"done": bulk_jobs.c.done + done, "refused": bulk_jobs.c.refused + refused}
    return tx.execute(moved.values(position=position, lease_until=until, **counts)).rowcount == 1


def _is_before(tx: Tx, job: BulkJob, position: str) -> ColumnElement[bool]:
    """Named targets are in the order of code points, as Python sorts them; others in that of the index."""
    column: ColumnElement[str] = bulk_jobs.c.position
    if job.chosen is not None:
        column = in_code_points(tx, column)
    if job.action.goes_up:
        return column < position
    return or_(bulk_jobs.c.position == BEGINNING, column > position)


def note_refusal(tx: Tx, job: BulkJob, target: str, why: str) -> None:
    tx.execute(insert(bulk_refusals), {"job_id": job.id, "target": target, "why": why})


def release(tx: Tx, job: BulkJob, token: str, *, until: datetime) -> bool:
    """For the next message. `until`: when rescue sends for it, if that message is lost."""
    ours = update(bulk_jobs).where(bulk_jobs.c.id == job.id, bulk_jobs.c.claim_token == token)
    return tx.execute(ours.values(claim_token=None, claim_worker=None, lease_until=until)).rowcount == 1


def finish(tx: Tx, job: BulkJob, token: str, now: datetime) -> bool:
    ours = update(bulk_jobs).where(bulk_jobs.c.id == job.id, _IS_OPEN, bulk_jobs.c.claim_token == token)
    return tx.execute(ours.values(**_ended(BulkState.DONE, now))).rowcount == 1


def stop(tx: Tx, job_id: str, now: datetime) -> bool:
    """False: it is over. The worker that has it acts on no further target."""
    stopped = update(bulk_jobs).where(bulk_jobs.c.id == job_id, _IS_OPEN)
    return tx.execute(stopped.values(**_ended(BulkState.STOPPED, now))).rowcount == 1


def _ended(state: BulkState, now: datetime) -> dict[str, Any]:
    return {"state": state.value, "ended_at": now, "claim_token": None, "claim_worker": None}


def due(now: datetime | BindParameter[datetime]) -> Select[Any]:
    """Open jobs whose lease ran out, or whose worker is gone."""
    is_left = or_(bulk_jobs.c.lease_until <= now, bulk_jobs.c.claim_worker.in_(GONE))
    return select(bulk_jobs.c.id).where(_IS_OPEN, is_left)


def wake(tx: Tx, now: datetime, *, until: datetime, limit: int) -> list[str]:
    """Open jobs whose lease ran out, or whose worker is gone. They are not found again before `until`."""
    ids_due = due(now).order_by(bulk_jobs.c.lease_until).limit(limit).with_for_update(skip_locked=True)
    ids = list(tx.execute(ids_due).scalars())
    if ids:
        free = {"claim_token": None, "claim_worker": None, "lease_until": until}
        tx.execute(update(bulk_jobs).where(bulk_jobs.c.id.in_(ids), _IS_OPEN).values(**free))
    return ids


def _from_row(row: Mapping[Any, Any]) -> BulkJob:
    lists: dict[str, Any] = {
        "action": BulkAction(row["action"]), "state": BulkState(row["state"]), "is_estimate": bool(row["is_estimate"]),
        "chosen": None if row["chosen"] is None else tuple(row["chosen"]),
        "agents": None if row["agents"] is None else frozenset(row["agents"]),
        "groups": None if row["groups"] is None else frozenset(Group(group) for group in row["groups"]),
    }  # fmt: skip
    return BulkJob(**{**row, **lists})


def actor_of(job: BulkJob) -> Actor:
    return Actor(id=job.asked_by, address=job.address)


# Dead letters. Turns are found by turn_search.py.

_DEAD = has(outbox.c.status, DeliveryStatus.DEAD)


def next_dead(tx: Tx, after: int, *, until: datetime, space: str | None, limit: int) -> Sequence[int]:
    """That died before the job was asked for: one that dies again is not sent a third time."""
    some = select(outbox.c.id).where(_DEAD, outbox.c.id > after, outbox.c.dead_at <= until, *_within(space))
    return tx.execute(some.order_by(outbox.c.id).limit(limit)).scalars().all()


def count_dead(tx: Tx, *, space: str | None) -> BulkCount:
    some = select(outbox.c.id).where(_DEAD, *_within(space)).limit(EXACT + 1).subquery()
    number = int(tx.execute(select(func.count()).select_from(some)).scalar_one())
    return BulkCount(number=min(number, EXACT), is_estimate=number > EXACT)


def _within(space: str | None) -> Collection[ColumnElement[bool]]:
    if space is None:
        return ()
    start = message.prefix(space)
    return (func.substr(outbox.c.thread_id, 1, len(start)) == start,)
