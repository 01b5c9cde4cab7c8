"""What readers ask of questions about calls: those that are open, and those of a run with their answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import RowMapping, func, or_, select, tuple_

from chordage.orchestrator.core import spaces
from chordage.orchestrator.core.suspending import Why
from chordage.orchestrator.store.predicates import ASKED_OF_PEOPLE, OPEN_SUSPENSIONS
from chordage.orchestrator.store.schema import calls, decisions, runs, suspensions
from chordage.orchestrator.store.tx import Tx

Row = RowMapping

_OPEN = (
    select(
        *(
            suspensions.c[name]
            for name in (
                "id", "call_id", "run_id", "thread_id", "agent", "tool", "why", "prompt", "schema", "resume_mode",
                "created_at", "expires_at", "on_expiry", "escalated_at",
            )
        ),
        calls.c.arguments,
        runs.c.root_run,
        runs.c.root_thread,
        runs.c.path,
    )
    .join(calls, calls.c.id == suspensions.c.call_id)
    .join(runs, runs.c.id == suspensions.c.run_id)
    .order_by(suspensions.c.created_at, suspensions.c.id)
)  # fmt: skip
_ASKED = [
    suspensions.c[name]
    for name in (
        "id", "why", "prompt", "schema", "resume_mode", "status", "created_at", "expires_at", "on_expiry",
        "escalated_at",
    )
]  # fmt: skip
_ANSWER = [
    decisions.c[name].label(f"answer_{name}")
    for name in ("id", "action", "payload", "edited_args", "reason", "source", "created_at", "applied_at")
]
_ANSWERED = select(*_ASKED, *_ANSWER).outerjoin(decisions, decisions.c.suspension_id == suspensions.c.id)


def open_ones(
    tx: Tx,
    *,
    limit: int,
    agent: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
    root_thread: str | None = None,
    root_run: str | None = None,
    why: Why | None = None,
    after: tuple[datetime, str] | None = None,
    space: str | None = None,
) -> Sequence[Row]:
    """Oldest first, with the arguments that are asked about; `after` is the time and the id of the last one seen."""
    found = _OPEN.where(OPEN_SUSPENSIONS if why is Why.CHILD else ASKED_OF_PEOPLE).limit(limit)
    wanted = {"agent": agent, "thread_id": thread_id, "run_id": run_id, "why": why and why.value}
    for name, value in wanted.items():
        if value is not None:
            found = found.where(suspensions.c[name] == value)
    if root_thread is not None:
        found = found.where(or_(runs.c.root_thread == root_thread, runs.c.thread_id == root_thread))
    if root_run is not None:
        found = found.where(or_(runs.c.root_run == root_run, runs.c.id == root_run))
    if space is not None:
        home = func.coalesce(runs.c.root_thread, runs.c.thread_id)
        begins = spaces.prefix(space)
        found = found.where(func.substr(home, 1, len(begins)) == begins)  # LIKE of SQLite would not tell A from a
    if after is not None:
        found = found.where(tuple_(suspensions.c.created_at, suspensions.c.id) > after)
    return tx.execute(found).mappings().all()


def with_answers(tx: Tx, suspension_ids: Collection[str]) -> Sequence[Row]:
    """These questions, each with its answer where it has one."""
    if not suspension_ids:
        return []
    return tx.execute(_ANSWERED.where(suspensions.c.id.in_(sorted(suspension_ids)))).mappings().all()
