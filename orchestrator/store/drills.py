"""What the canaries of drills have done: a row for each time that one of their tools began, and what to check.

No guard keeps a second row for the same call out: that is what a drill looks for.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import and_, func, insert, select

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.consistency import inconsistencies
from chordage.orchestrator.core.drill import SPACE, CanaryCall, CanaryRows, CanaryTurn
from chordage.orchestrator.core.message import prefix
from chordage.orchestrator.core.status import CallStatus, Disposition, TurnStatus
from chordage.orchestrator.store import consistency
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import CALLS_IN_FLIGHT, has
from chordage.orchestrator.store.schema import calls, executions, runs, threads, turns


def add_execution(tx: Tx, *, run_id: str, call_id: str, worker: str, at: datetime) -> None:
    tx.execute(insert(executions).values(run_id=run_id, call_id=call_id, worker=worker, at=at))


def rows(tx: Tx, thread_ids: Collection[str]) -> CanaryRows:
    """Of canaries that have been waited for."""
    of_turns = select(turns).where(turns.c.thread_id.in_(sorted(thread_ids))).order_by(turns.c.id)
    times = select(func.count()).where(executions.c.call_id == calls.c.id).scalar_subquery()
    of_calls = select(calls, times.label("executions")).where(calls.c.thread_id.in_(sorted(thread_ids)))
    stored = consistency.stored_rows(tx, thread_ids)
    return CanaryRows(
        turns=[
            CanaryTurn(
                id=row.id, thread_id=row.thread_id,
                disposition=Disposition(row.disposition) if row.disposition else None,
            )
            for row in tx.execute(of_turns)
        ],
        calls=[
            CanaryCall(
                id=row.id, tool=row.tool, effect=Effect(row.effect), status=CallStatus(row.status), code=row.code,
                worker=row.worker, executions=row.executions,
            )
            for row in tx.execute(of_calls.order_by(calls.c.id))
        ],
        questions=len(stored.questions),
        inconsistencies=list(inconsistencies(stored)),
    )  # fmt: skip


def ended(tx: Tx, turn_ids: Collection[str]) -> set[str]:
    done = (turns.c.id.in_(sorted(turn_ids)), turns.c.status == TurnStatus.DONE.value)
    return set(tx.execute(select(turns.c.id).where(*done)).scalars())


def holders_of_unsafe_calls(tx: Tx, thread_ids: Collection[str]) -> set[str]:
    """The processes that are inside one at this moment: its start is on record, and so is its row."""
    inside = (
        calls.c.thread_id.in_(sorted(thread_ids)), calls.c.effect == Effect.UNSAFE.value,
        has(calls.c.status, CallStatus.RUNNING), calls.c.worker.is_not(None),
        select(executions.c.id).where(executions.c.call_id == calls.c.id).exists(),
    )  # fmt: skip
    return set(tx.execute(select(calls.c.worker).where(*inside)).scalars())


def holders(tx: Tx, thread_ids: Collection[str]) -> set[str]:
    """The processes that carry out anything of these threads."""
    wanted = sorted(thread_ids)
    in_calls = select(calls.c.worker).where(CALLS_IN_FLIGHT, calls.c.thread_id.in_(wanted))
    at_work = and_(runs.c.ended_at.is_(None), runs.c.thread_id.in_(wanted))
    in_runs = select(func.coalesce(runs.c.claim_worker, runs.c.moved_by)).where(at_work)
    return {name for query in (in_calls, in_runs) for name in tx.execute(query).scalars() if name is not None}


def threads_left(tx: Tx) -> list[str]:
    """Of drills, this one and those before it that were ended in the middle."""
    of_drills = threads.c.id.startswith(prefix(SPACE), autoescape=True)
    return list(tx.execute(select(threads.c.id).where(of_drills).order_by(threads.c.id)).scalars())
