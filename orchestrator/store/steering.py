"""Messages that a run at work takes in, and one that goes before its line.

Whoever comes here holds the row of the run: its admission locks it, and every crossing writes to it. So a message is
either there when the run asks, or its admission finds the run as the crossing left it. Nothing is lost between the two.
The messages themselves are locked behind the run before they are taken in.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, or_, select, update

from chordage.orchestrator.core.errors import IllegalTransition
from chordage.orchestrator.core.records import Run, Turn
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import STEERING_TURNS, STILL_OPEN, STILL_QUEUED, has, in_line
from chordage.orchestrator.store.schema import runs, turns
from chordage.orchestrator.store.turns import COLUMNS, from_row

IN_FRONT = -1  # of every rank that a group has


def mark_pending(tx: Tx, run_id: str) -> bool:
    """A message waits for this run: it does not end of itself before it has looked."""
    addressed = update(runs).where(runs.c.id == run_id, STILL_OPEN).values(steers=1)
    return tx.execute(addressed).rowcount == 1


def pending(tx: Tx, run: Run, now: datetime) -> list[Turn]:
    """The messages that this run may take in, as they came: those for its agent and of its group, to be answered in its
    way, that came after the one it was started by. They are locked: whoever cancels one may have come when the run was
    just starting, and then holds that message and not the run.
    """
    first = turns.alias("first")
    found = (
        select(*COLUMNS)
        .where(
            turns.c.thread_id == run.thread_id,
            STEERING_TURNS,
            turns.c.agent == run.agent,
            turns.c.strategy == run.strategy,
            turns.c.grp == run.group.value,
            turns.c.arrival > select(first.c.arrival).where(first.c.id == run.turn_id).scalar_subquery(),
            or_(turns.c.deadline.is_(None), turns.c.deadline > now),
        )
        .order_by(turns.c.arrival)
        .with_for_update(of=turns)
    )
    return [from_row(dict(row._mapping)) for row in tx.execute(found)]  # noqa: SLF001 - by name


def clear_pending(tx: Tx, run_id: str) -> None:
    """Those who did have been cancelled, or have run out of time."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(steers=0))


def take_in(tx: Tx, run: Run, turn_ids: Collection[str], now: datetime) -> dict[str, dict[str, Any] | None]:
    """These turns are done, as part of this run. Where each is to be replied to."""
    taken = (
        update(turns)
        .where(turns.c.id.in_(sorted(turn_ids)), STILL_QUEUED, has(turns.c.steers, 1))
        .values(
            status=TurnStatus.DONE.value, disposition=Disposition.STEERED.value, run_id=run.id, ready=0,
            started_at=now, done_at=now,
        )
        .returning(turns.c.id, turns.c.reply_target)
    )  # fmt: skip
    found = {row.id: row.reply_target for row in tx.execute(taken)}
    if found.keys() != set(turn_ids):
        raise IllegalTransition(f"run {run.id} was locked, and turns {sorted(turn_ids)} moved all the same")
    clear_pending(tx, run.id)
    return found


def move_to_front(tx: Tx, thread_id: str, turn_id: str) -> None:
    """This turn is the next of its thread, and no other is ready there until it has had its turn."""
    is_it = turns.c.id == turn_id
    moved = (
        update(turns)
        .where(turns.c.thread_id == thread_id, in_line(turns), or_(is_it, and_(~is_it, has(turns.c.ready, 1, 2))))
        .values(rank=case((is_it, IN_FRONT), else_=turns.c.rank), ready=0)
    )
    tx.execute(moved)
