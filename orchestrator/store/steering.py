"""Messages that a run at work takes in, and one that goes before its thread's line.

Every function here is called with the row of the run locked: the admission of such a message locks it, and every step
of the run writes to it. So a message is either there when the run looks, or its admission sees the run as the step left
it, and none is lost in between. The messages are locked after the run, before they are taken in.
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

IN_FRONT = -1  # before every rank of a group


def mark_pending(tx: Tx, run_id: str) -> bool:
    """A message waits for this run, which does not end by itself before it has looked."""
    open_run = update(runs).where(runs.c.id == run_id, STILL_OPEN).values(steers=1)
    return tx.execute(open_run).rowcount == 1


def pending(tx: Tx, run: Run, now: datetime) -> list[Turn]:
    """The messages that this run may take in, in the order of their arrival: for its agent, its group and its strategy,
    and later than the one that started it. They are locked: a cancellation that came when the run was just starting
    holds the message and not the run.
    """
    first = turns.alias("first")
    waiting = (
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
    return [from_row(row) for row in tx.execute(waiting).mappings()]


def clear_pending(tx: Tx, run_id: str) -> None:
    """The messages that waited were taken in or cancelled, or their deadline has passed."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(steers=0))


def take_in(tx: Tx, run: Run, turn_ids: Collection[str], now: datetime) -> dict[str, dict[str, Any] | None]:
    """End these turns as part of this run. Returns the reply target of each."""
    taken = (
        update(turns)
        .where(turns.c.id.in_(sorted(turn_ids)), STILL_QUEUED, has(turns.c.steers, 1))
        .values(
            status=TurnStatus.DONE.value, disposition=Disposition.STEERED.value, run_id=run.id, ready=0,
            started_at=now, done_at=now,
        )
        .returning(turns.c.id, turns.c.reply_target)
    )  # fmt: skip
    targets = {row.id: row.reply_target for row in tx.execute(taken)}
    if targets.keys() != set(turn_ids):
        raise IllegalTransition(f"run {run.id} was locked, and turns {sorted(turn_ids)} moved nevertheless")
    clear_pending(tx, run.id)
    return targets


def move_to_front(tx: Tx, thread_id: str, turn_id: str) -> None:
    """This turn is the next of its thread, and no other is ready there before it has started."""
    is_it = turns.c.id == turn_id
    moved = (
        update(turns)
        .where(turns.c.thread_id == thread_id, in_line(turns), or_(is_it, and_(~is_it, has(turns.c.ready, 1, 2))))
        .values(rank=case((is_it, IN_FRONT), else_=turns.c.rank), ready=0)
    )
    tx.execute(moved)
