"""What queues and what runs, by group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import reads_load
from chordage.orchestrator.store.tx import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLoad:
    group: Group
    budget: int
    running: int
    waiting: int  # for decisions; they hold nothing
    ready: int  # queued, the next of their thread: they wait for the budget, a worker or their time
    behind: int  # queued behind another turn of their thread
    since: datetime | None  # when the first of those that are ready was due


def load_of_groups(store: Store, budgets: Mapping[Group, int]) -> list[GroupLoad]:
    with store.read() as tx:
        queued = {(row["grp"], row["ready"]): row for row in reads_load.queued(tx)}
        opened = {(row["grp"], row["status"]): row["number"] for row in reads_load.opened(tx)}
        laid_down = reads_load.budgets(tx)
    found = []
    for group in Group:
        ready, behind = queued.get((group.value, 1)), queued.get((group.value, 0))
        found.append(
            GroupLoad(
                group=group,
                budget=laid_down.get(group.value, budgets[group]),
                running=opened.get((group.value, RunStatus.RUNNING.value), 0),
                waiting=opened.get((group.value, RunStatus.WAITING.value), 0),
                ready=ready["number"] if ready else 0,
                behind=behind["number"] if behind else 0,
                since=ready["since"] if ready else None,
            )
        )
    return found
