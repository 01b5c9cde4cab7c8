"""Threads as they stand: what is queued on them, what runs, and when something last happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import threads as thread_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.threads import ThreadRow


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadView:
    thread_id: str
    agent: str
    turns: int  # that ever arrived
    queued: int
    open_run: str | None
    open_run_status: RunStatus | None
    created_at: datetime
    last_turn_at: datetime
    last_activity: datetime


def thread(store: Store, thread_id: str) -> ThreadView:
    with store.read() as tx:
        row = thread_rows.details(tx, thread_id)
    if row is None:
        raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
    return _view(row)


def threads(store: Store, *, limit: int = 20, before: ThreadView | None = None) -> list[ThreadView]:
    """Those with the newest turns first. The next page is what comes before the last of this one."""
    with store.read() as tx:
        mark = (before.last_turn_at, before.thread_id) if before else None
        rows = thread_rows.latest(tx, limit=limit, before=mark)
    return [_view(row) for row in rows]


def _view(row: ThreadRow) -> ThreadView:
    values = dict(row)
    last_fact_at = values.pop("last_fact_at")
    status = values.pop("open_run_status")
    return ThreadView(
        **values,
        open_run_status=RunStatus(status) if status else None,
        last_activity=max(values["last_turn_at"], last_fact_at or values["last_turn_at"]),
    )
