"""Runs: one row per continuous active interval on a thread, with the step it stands at."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, or_, select

from chordage.orchestrator.core import kinship, turn_limits
from chordage.orchestrator.core.errors import Crossed
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.hot import Hot, Row
from chordage.orchestrator.store.newer import readable
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    RUNNING_IN_GROUP,
    RUNNING_RUNS,
    STILL_FLYING,
    STILL_RUNNING,
)
from chordage.orchestrator.store.schema import calls, runs
from chordage.orchestrator.store.tx import Tx

in_flight = (
    select(func.count())
    .where(calls.c.run_id == runs.c.id, calls.c.step >= func.coalesce(runs.c.replay_from, runs.c.step), STILL_FLYING)
    .scalar_subquery()
    .label("in_flight")
)
_LOAD = select(*(column for column in runs.c if column.name != "stalled"), in_flight)
_BY_ID = Hot(_LOAD.where(runs.c.id == bindparam("run_id")))


def from_row(row: Row) -> Run:
    fields = dict(row)
    reason = fields.pop("reason")
    kept = {name: fields.pop(f"kept_{name}") for name in ("reason", "code", "detail")}
    typed: dict[str, Any] = {
        "group": Group(fields.pop("grp")),
        "status": RunStatus(fields.pop("status")),
        "phase": Phase(fields.pop("phase")),
        "control": Control(fields.pop("control")),
        "reason": Reason(reason) if reason else None,
        "kept": Ending(**{**kept, "reason": Reason(kept["reason"])}) if kept["reason"] else None,
        "timeout": turn_limits.in_seconds(fields.pop("timeout_ms")),
        "kin": kinship.taken_from(fields),
        "usage": Usage(**{name: fields.pop(name) for name in TOKENS}),
    }
    return Run(**fields, **typed)


def load(tx: Tx, run_id: str) -> Run | None:
    row = _BY_ID.first(tx, {"run_id": run_id})
    return from_row(row) if row else None


def lock(tx: Tx, run_id: str) -> Run | None:
    """As it is now, and as it stays until we are done."""
    # Two statements: one that waits for the lock would count calls in flight as they were before it waited.
    locked = tx.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update()).first()
    return load(tx, run_id) if locked else None


def open_on(tx: Tx, thread_id: str) -> Run | None:
    found = _LOAD.where(runs.c.thread_id == thread_id, OPEN_RUNS)
    row = tx.execute(found).first()
    return from_row(dict(row._mapping)) if row else None  # noqa: SLF001 - SQLAlchemy's documented way to names


def lock_open_on(tx: Tx, thread_id: str) -> Run | None:
    """The run that is open there, as it stays until we are done.

    For whoever holds rows of turns already, which come after runs: a run in the hand of another transaction is not
    waited for. That raises Crossed; begun anew, the transaction finds the run before any turn, and waits for it there.
    """
    found = select(runs.c.id).where(runs.c.thread_id == thread_id, OPEN_RUNS)
    locked = tx.execute(found.with_for_update(skip_locked=True)).scalar()
    if locked is not None:
        return load(tx, locked)
    if (other := tx.execute(found).scalar()) is not None:
        raise Crossed(f"run {other} of thread {thread_id!r} is just being written; nothing was stored: try again")
    return None


def count_running(tx: Tx, group: Group) -> int:
    running = select(func.count()).select_from(runs).where(runs.c.grp == group.value, RUNNING_IN_GROUP)
    return int(tx.execute(running).scalar_one())


def is_done(tx: Tx, run_id: str) -> bool:
    return tx.execute(select(runs.c.status).where(runs.c.id == run_id)).scalar() == RunStatus.DONE.value


def expired(tx: Tx, now: datetime, limit: int, among: Collection[str] | None = None) -> list[Run]:
    """Running runs nobody has renewed in time. With `among`, those of these that are free, locked for this sweeper."""
    found = _LOAD.where(RUNNING_RUNS, runs.c.lease_until < now).order_by(runs.c.lease_until).limit(limit)
    if among is not None:
        found = found.where(runs.c.id.in_(among)).with_for_update(skip_locked=True, of=runs)
    return readable(tx.execute(found).mappings(), lambda row: from_row(dict(row)))


def maybe_limited(tx: Tx, agents: Collection[str], *, before: datetime) -> list[Run]:
    """Running runs, started before then, that may have a time limit: by their agent, their turn or a run above them."""
    limited = or_(runs.c.agent.in_(agents), runs.c.timeout_ms.is_not(None), runs.c.parent_run.is_not(None))
    found = _LOAD.where(RUNNING_RUNS, runs.c.started_at < before, limited)
    return readable(tx.execute(found).mappings(), lambda row: from_row(dict(row)))


def lost(tx: Tx, held: Collection[tuple[str, int]]) -> set[str]:
    """Which of these runs are no longer running under the epoch we hold them by."""
    ids = [run_id for run_id, _ in held]
    found = select(runs.c.id, runs.c.epoch).where(runs.c.id.in_(ids), STILL_RUNNING)
    running = {(row.id, row.epoch) for row in tx.execute(found)}
    return {run_id for run_id, epoch in held if (run_id, epoch) not in running}
