"""Turns that are the same work: which of them is queued, and a record of one that is merged as it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, select

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import ring
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import KEYED_TURNS, OPEN_RUNS, OPEN_WILLS, in_code_points
from chordage.orchestrator.store.schema import runs, threads, turns
from chordage.orchestrator.store.tx import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Older:
    """The turn that is queued for some work."""

    id: str
    thread_id: str
    due_at: datetime


_QUEUED = Hot(
    select(turns.c.id, turns.c.thread_id, turns.c.due_at).where(
        KEYED_TURNS,
        turns.c.agent == bindparam("agent"),
        turns.c.grp == bindparam("group"),
        turns.c.coalesce_key == bindparam("key"),
    )
)
_OPEN_WILL = Hot(select(turns.c.id).where(OPEN_WILLS, turns.c.agent == bindparam("agent")))

_READY = select(turns.c.id).where(turns.c.grp == bindparam("group"), ring.may_start(turns)).limit(bindparam("as_many"))
_DUE = Hot(select(func.count()).select_from(_READY.subquery()))


def queued(tx: Tx, agent: str, group: Group, key: str) -> Older | None:
    row = _QUEUED.first(tx, {"agent": agent, "group": group.value, "key": key})
    return Older(**row) if row else None


def open_will(tx: Tx, agent: str) -> str | None:
    """The agent's will that is queued or at work."""
    found: str | None = _OPEN_WILL.scalar(tx, {"agent": agent})
    return found


def due(tx: Tx, group: Group, now: datetime, as_many: int) -> int:
    """How many turns of a group may start; no more than so many are looked at."""
    return int(_DUE.scalar(tx, {"group": group.value, "now": now, "as_many": as_many}))


def lock_thread(tx: Tx, thread_id: str) -> None:
    tx.execute(select(threads.c.id).where(threads.c.id == thread_id).with_for_update())


def lock_runs(tx: Tx, *thread_ids: str) -> None:
    """The runs that are open there, in the order of everybody who locks several."""
    found = select(runs.c.id).where(runs.c.thread_id.in_(thread_ids), OPEN_RUNS)
    tx.execute(found.order_by(in_code_points(tx, runs.c.id).desc()).with_for_update())


def record_merged(tx: Tx, fields: Mapping[str, Any], into: str, detail: str) -> None:
    """A message that was over as it came: what it asks for is under way."""
    over = {
        "status": TurnStatus.DONE.value, "ready": 0, "disposition": Disposition.MERGED.value, "into_turn": into,
        "detail": detail, "done_at": fields["queued_at"],
    }  # fmt: skip
    tx.execute(insert(turns), {**fields, **over})
