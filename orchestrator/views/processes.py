"""The processes that carry out work, and where the work of one that was lost was taken over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from chordage.orchestrator.core.groups import DELIVERY_QUEUE, SYSTEM_QUEUE, Group
from chordage.orchestrator.store import processes as process_rows
from chordage.orchestrator.store import takeovers as takeover_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.conversion import view_of

LATELY = timedelta(minutes=10)  # of those that went; rescue forgets them then, if one is at work


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessView:
    process: str  # as in `chordage show` and in log lines
    host: str
    pid: int
    seen_at: datetime  # by the clock of its machine
    gone_at: datetime | None  # it has ended, or was taken for dead
    runs: int  # that it holds, once they have lasted for some seconds
    calls: int  # the same
    version: str | None = None  # of Chordage; null: not known
    roles: tuple[str, ...] | None = None  # by the queues it takes messages from; null: not known


def processes(store: Store, *, now: datetime) -> list[ProcessView]:
    with store.read() as tx:
        found = process_rows.with_their_work(tx)
    return [
        ProcessView(
            process=one.id, host=one.machine.partition(":")[0], pid=one.pid, seen_at=one.seen_at, gone_at=one.gone_at,
            runs=one.runs, calls=one.calls, version=one.version, roles=_roles(one.queues),
        )
        for one in found
        if one.gone_at is None or now - one.gone_at < LATELY
    ]  # fmt: skip


def _roles(queues: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """`turns`, `tools`, `system` and `delivery`, as the options of the commands have them."""
    if queues is None:
        return None
    turns, tools = {group.queue for group in Group}, {group.tools_queue for group in Group}
    named = [("turns", turns), ("tools", tools), (SYSTEM_QUEUE, {SYSTEM_QUEUE}), (DELIVERY_QUEUE, {DELIVERY_QUEUE})]
    return tuple(role for role, of_role in named if of_role & set(queues))


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    call_id: str | None  # None: a model call
    step: int
    worker: str | None
    lost_at: datetime  # its last sign of life
    noticed_at: datetime  # the work was sent again


def takeovers(store: Store, run_ids: Collection[str]) -> dict[str, tuple[Takeover, ...]]:
    """By run."""
    with store.read() as tx:
        rows = takeover_rows.of_runs(tx, run_ids)
    return {
        run_id: tuple(view_of(Takeover, row) for row in rows if row["run_id"] == run_id)
        for run_id in {row["run_id"] for row in rows}
    }
