"""Processes: which carry out work in the fleet, on which machine, when each was last seen, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from chordage.orchestrator.core.groups import DELIVERY_QUEUE, SYSTEM_QUEUE, Group
from chordage.orchestrator.store import processes as process_rows
from chordage.orchestrator.store.database import Store

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
