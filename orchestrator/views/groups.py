"""Groups as they stand: their budgets, what runs and waits in them, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.queue_bounds import QueueBound
from chordage.orchestrator.store import groups as group_rows
from chordage.orchestrator.store.database import Store, Tx

BUSIEST = 5  # tenants that are told


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantView:
    tenant: str
    running: int
    queued: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupView:
    group: Group
    budget: int
    budget_from: str  # "settings", or "database": `chordage groups set`
    running: int
    free: int
    queued: int
    queued_or_more: bool  # there are more than were counted
    waits_since: datetime | None  # the oldest that is due
    bound: QueueBound | None
    tenants: tuple[TenantView, ...]  # the busiest


def groups(
    store: Store, *, now: datetime, budgets: Mapping[Group, int], bounds: Mapping[Group, QueueBound]
) -> list[GroupView]:
    """`budgets` and `bounds`: as the settings of the reader have them."""
    with store.read() as tx:
        laid_down = group_rows.budgets(tx)
        return [_view(tx, group, laid_down.get(group), budgets[group], bounds.get(group), now) for group in Group]


def _view(
    tx: Tx, group: Group, laid_down: int | None, setting: int, bound: QueueBound | None, now: datetime
) -> GroupView:
    running, waiting = group_rows.running_by_tenant(tx, group), group_rows.queued_by_tenant(tx, group, now)
    queued = {row["tenant"]: row["number"] for row in waiting}
    budget, runs, number = setting if laid_down is None else laid_down, sum(running.values()), sum(queued.values())
    return GroupView(
        group=group,
        budget=budget,
        budget_from="settings" if laid_down is None else "database",
        running=runs,
        free=max(0, budget - runs),
        queued=number,
        queued_or_more=number >= group_rows.COUNTED,
        waits_since=min((row["since"] for row in waiting if row["since"]), default=None),
        bound=bound,
        tenants=_busiest(running, queued),
    )


def _busiest(running: Mapping[str, int], queued: Mapping[str, int]) -> tuple[TenantView, ...]:
    seen = [
        TenantView(tenant=tenant, running=running.get(tenant, 0), queued=queued.get(tenant, 0))
        for tenant in {*running, *queued}
    ]
    return tuple(sorted(seen, key=lambda one: (-one.queued, -one.running, one.tenant))[:BUSIEST])
