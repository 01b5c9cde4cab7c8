"""Tool calls: one row each, its outcome in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, insert, select

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus

from chordage.orchestrator.store.schema import FLYING_CALLS, calls, runs
from chordage.orchestrator.store.tx import Tx

COLUMNS = [column for column in calls.c if column.name != "full_result"]
_BY_ID = (
    select(
        *COLUMNS, runs.c.agent.label("run_agent"), runs.c.status.label("run_status"), runs.c.epoch.label("run_epoch")
    )
    .join(runs, runs.c.id == calls.c.run_id)
    .where(calls.c.id == bindparam("call_id"))
)


def from_row(row: Row[Any], prefix: str = "") -> Call:
    fields = {column.name: row._mapping[prefix + column.name] for column in COLUMNS}  # noqa: SLF001 - by name
    fields["effect"] = Effect(fields["effect"])
    fields["status"] = CallStatus(fields["status"])
    return Call(**fields)


def load_for_work(tx: Tx, call_id: str) -> tuple[Call, str, int, bool] | None:
    """A call with its run's agent, its epoch, and whether that run is still running."""
    row = tx.execute(_BY_ID, {"call_id": call_id}).first()
    return (from_row(row), row.run_agent, row.run_epoch, row.run_status == "running") if row else None  # type: ignore[arg-type]  # 23 columns are more than the stubs can name


def load(tx: Tx, call_id: str) -> Call | None:
    row = tx.execute(select(*COLUMNS).where(calls.c.id == call_id)).first()
    return from_row(row) if row else None


def of_run(tx: Tx, run_id: str) -> list[Call]:
    found = select(*COLUMNS).where(calls.c.run_id == run_id).order_by(calls.c.step, calls.c.place)
    return [from_row(row) for row in tx.execute(found)]


def full_result(tx: Tx, call_id: str) -> str | None:
    row = tx.execute(select(calls.c.full_result, calls.c.content).where(calls.c.id == call_id)).first()
    return (row.full_result or row.content) if row else None


def open_round(tx: Tx, run: Run, step: int, asked: Sequence[NewCall], *, now: datetime, lease_until: datetime) -> None:
    """The calls of one assistant message, in its order."""
    tx.execute(insert(calls), [_new_row(run, step, call, now, lease_until) for call in asked])


def _new_row(run: Run, step: int, call: NewCall, now: datetime, lease_until: datetime) -> dict[str, Any]:
    settled = call.status not in OPEN_CALL
    return {
        **asdict(call),
        "run_id": run.id,
        "thread_id": run.thread_id,
        "step": step,
        "lease_until": None if settled else lease_until,
        "resends": 0,
        "expiries": 0,
        "ended_at": now if settled else None,
    }


def expired(tx: Tx, now: datetime, limit: int) -> list[Call]:
    """Calls in flight that nobody has renewed in time. Locked against other sweepers."""
    found = (
        select(*COLUMNS)
        .where(FLYING_CALLS, calls.c.lease_until < now)
        .order_by(calls.c.lease_until)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [from_row(row) for row in tx.execute(found)]


def lost(tx: Tx, call_ids: Collection[str]) -> set[str]:
    """Which of these calls are no longer in flight."""
    found = select(calls.c.id).where(calls.c.id.in_(call_ids), FLYING_CALLS)
    return set(call_ids) - set(tx.execute(found).scalars())
