"""Groups: their budgets, what runs and waits in each, and for which tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.arrivals import QueueBound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import groups as group_rows
from chordage.orchestrator.store.database import Store, Tx

BUSIEST = 5  # tenants that are listed


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
    queued_or_more: bool  # counting stopped at `queued`
    waits_since: datetime | None  # since when the oldest turn is due
    bound: QueueBound | None
    tenants: tuple[TenantView, ...]  # the busiest


def groups(
    store: Store, *, now: datetime, budgets: Mapping[Group, int], bounds: Mapping[Group, QueueBound]
) -> list[GroupView]:
    """`budgets` and `bounds` are those of the settings; a budget in the database overrides its setting."""
    with store.read() as tx:
        stored = group_rows.budgets(tx)
        return [_view(tx, group, stored.get(group), budgets[group], bounds.get(group), now) for group in Group]


def _view(tx: Tx, group: Group, stored: int | None, setting: int, bound: QueueBound | None, now: datetime) -> GroupView:
    running, waiting = group_rows.running_by_tenant(tx, group), group_rows.queued_by_tenant(tx, group, now)
    queued = {row["tenant"]: row["number"] for row in waiting}
    budget, runs, turns = setting if stored is None else stored, sum(running.values()), sum(queued.values())
    tenants = [
        TenantView(tenant=tenant, running=running.get(tenant, 0), queued=queued.get(tenant, 0))
        for tenant in {*running, *queued}
    ]
    tenants.sort(key=lambda view: (-view.queued, -view.running, view.tenant))
    return GroupView(
        group=group,
        budget=budget,
        budget_from="settings" if stored is None else "database",
        running=runs,
        free=max(0, budget - runs),
        queued=turns,
        queued_or_more=turns >= group_rows.MAX_COUNTED,
        waits_since=min((row["since"] for row in waiting if row["since"]), default=None),
        bound=bound,
        tenants=tuple(tenants[:BUSIEST]),
    )
