"""Guarded changes of turns: ended once, and the next in line made ready in the same breath."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, case, or_, select, update

from chordage.orchestrator.core import kinship
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint
from chordage.orchestrator.core.kinship import Kin
from chordage.orchestrator.core.reasons import WITHOUT_A_RUN
from chordage.orchestrator.core.records import Subject
from chordage.orchestrator.core.status import TURN, Disposition, TurnStatus, sources
from chordage.orchestrator.store.claim_places import IS_HANDED_ON
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    STILL_QUEUED,
    in_line,
    nothing_is_open_on,
    still,
)
from chordage.orchestrator.store.schema import runs, threads, turns
from chordage.orchestrator.store.tx import Tx

_NEXT = turns.alias("next")
_LATER = _NEXT.c.not_before > bindparam("now")
_NEXT_IN_LINE = (
    select(_NEXT.c.id)
    .where(_NEXT.c.thread_id == bindparam("thread"), in_line(_NEXT))
    .order_by(case((_LATER, 1), else_=0), case((_LATER, _NEXT.c.not_before)), _NEXT.c.rank, _NEXT.c.arrival)
    .limit(1)
    .scalar_subquery()
)
_READY_OR_ASLEEP = case((turns.c.not_before > bindparam("now"), 2), else_=1)
_IS_IT = turns.c.id == bindparam("turn_id")
_IS_OPEN = still(turns.c.status, *sources(TURN, TurnStatus.DONE))
_END = Hot(
    update(turns)
    .where(turns.c.id.in_([bindparam("turn_id"), _NEXT_IN_LINE]), or_(~_IS_IT, _IS_OPEN))
    .values(
        status=case((_IS_IT, TurnStatus.DONE.value), else_=turns.c.status),
        disposition=case((_IS_IT, bindparam("how")), else_=turns.c.disposition),
        done_at=case((_IS_IT, bindparam("now", type_=turns.c.done_at.type)), else_=turns.c.done_at),
        ready=case((_IS_IT, 0), else_=_READY_OR_ASLEEP),
    )
    .returning(turns.c.id, turns.c.grp, turns.c.agent, turns.c.reply_target, IS_HANDED_ON.label("hand_on"))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What the end of a turn leaves to do."""

    reply_target: dict[str, Any] | None
    next_in_line: tuple[Group, Hint, Subject] | None
    hand_on: bool  # the place that is free now is waited for


def end_turn(tx: Tx, turn_id: str, thread_id: str, group: Group, disposition: Disposition, *, now: datetime) -> Ended:
    """The turn is done, and the next one in its thread's line is ready: one statement, so that nobody sees half of
    it.
    """
    binds = {
        "turn_id": turn_id, "thread": thread_id, "of_group": group.value, "how": disposition.value, "now": now,
    }  # fmt: skip
    rows = {row["id"]: row for row in _END.rows(tx, binds)}
    own = rows.pop(turn_id, None)
    follower = next(iter(rows.values()), None)
    return Ended(
        reply_target=own["reply_target"] if own else None,
        next_in_line=(
            (Group(follower["grp"]), Hint(follower["id"], thread_id), Subject(thread_id, follower["agent"]))
            if follower
            else None
        ),
        hand_on=bool((own or follower or {}).get("hand_on")),
    )


_LOCK_THREAD = select(threads.c.id).join(turns, turns.c.thread_id == threads.c.id)
_THREAD_OF_TURN = select(turns.c.thread_id).where(turns.c.id == bindparam("turn_id")).scalar_subquery()
_LOCK_RUN = select(runs.c.id).where(runs.c.thread_id == _THREAD_OF_TURN, OPEN_RUNS).with_for_update()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """A turn that ended in the queue."""

    turn_id: str
    thread_id: str
    reply_target: dict[str, Any] | None
    kin: Kin | None


def end_queued(
    tx: Tx,
    turn_id: str,
    disposition: Disposition,
    now: datetime,
    *,
    detail: str | None = None,
    into: str | None = None,
    parent_run: str | None = None,
) -> Dropped | None:
    """A turn that never started ends. `into`: the turn that it is merged into.

    Its thread and the run that is open there are locked first, in the order in which an arrival locks them: whoever
    comes to the line or moves it on at this moment waits, and then sees it without this turn. `parent_run`: of a child;
    its end will tell that run, which is locked behind any of its own and before the turn, as everybody does.
    """
    assert disposition in WITHOUT_A_RUN, disposition
    tx.execute(_LOCK_THREAD.where(turns.c.id == turn_id).with_for_update(of=threads))
    tx.execute(_LOCK_RUN, {"turn_id": turn_id})
    if parent_run is not None:
        tx.execute(select(runs.c.id).where(runs.c.id == parent_run).with_for_update())
    ended = (
        update(turns)
        .where(turns.c.id == turn_id, STILL_QUEUED)
        .values(
            status=TurnStatus.DONE.value, disposition=disposition.value, detail=detail, into_turn=into, done_at=now,
            ready=0,
        )
        .returning(turns.c.thread_id, turns.c.reply_target, *(turns.c[name] for name in kinship.COLUMNS))
    )  # fmt: skip
    row = tx.execute(ended).mappings().first()
    if row is None:
        return None
    kin = kinship.taken_from(dict(row))
    return Dropped(turn_id=turn_id, thread_id=row["thread_id"], reply_target=row["reply_target"], kin=kin)


def make_next_ready(tx: Tx, thread_id: str, now: datetime) -> Group | None:
    """The head of a thread's line (a turn that is due goes before one that is not) may start, if nothing on the
    thread is open. Its group, if there is one.
    """
    made = (
        update(turns)
        .where(turns.c.id == _NEXT_IN_LINE, nothing_is_open_on(turns))
        .values(ready=_READY_OR_ASLEEP)
        .returning(turns.c.grp)
    )
    found = tx.execute(made, {"thread": thread_id, "now": now}).scalar()
    return Group(found) if found else None
