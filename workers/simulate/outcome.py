"""What a simulation found, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chordage.orchestrator.core.groups import Group
from chordage.workers.simulate.fleet import VirtualFleet
from chordage.workers.simulate.ledger import Ledger, Spread, spread_of
from chordage.workers.simulate.scenario import Scenario

ROWS = 5  # that are hottest
TENANTS = 5  # that wait longest


@dataclass(frozen=True, kw_only=True, slots=True)
class OfGroup:
    """Virtual seconds from the message on: until its run started, until its model was first asked, until its end."""

    group: Group
    budget: int
    came: int
    refused: int
    ways: dict[str, int]
    until_started: Spread
    until_asked: Spread
    until_done: Spread
    longest_queue: int  # of wake-ups, in the broker


@dataclass(frozen=True, kw_only=True, slots=True)
class OfTenant:
    tenant: str
    until_started: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Real: of the engine and the database it ran on, in one process."""

    what: str
    times: int
    per_second: float
    ms: float
    statements: float  # each time


@dataclass(frozen=True, kw_only=True, slots=True)
class HotRow:
    """`busy`: the part of its busiest second in which it was locked. At 1 nobody else gets through."""

    row: str
    locks: int
    in_busiest_second: int
    busy: float
    waited: float  # virtual seconds that others waited for it, on average


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    virtual_seconds: float
    real_seconds: float
    turns: int
    groups: tuple[OfGroup, ...]
    tenants: tuple[OfTenant, ...]
    work: tuple[Work, ...]
    in_vain: int  # wake-ups that started nothing
    hot_rows: tuple[HotRow, ...]
    database: str


def outcome_of(
    scenario: Scenario,
    fleet: VirtualFleet,
    ways: Mapping[tuple[str, str], int],
    *,
    virtual: float,
    real: float,
    on: str,
) -> Outcome:
    ledger = fleet.ledger
    return Outcome(
        virtual_seconds=virtual,
        real_seconds=real,
        turns=sum(ledger.came.values()),
        groups=tuple(_of_group(group, scenario, fleet, ways) for group in Group if ledger.came[group]),
        tenants=_worst(ledger),
        work=tuple(_work(ledger, what) for what in ("admission", "dispatch", "end", "sweep")),
        in_vain=ledger.in_vain,
        hot_rows=_hottest(ledger, scenario.database.commit_ms / 1000),
        database=on,
    )


def _of_group(group: Group, scenario: Scenario, fleet: VirtualFleet, ways: Mapping[tuple[str, str], int]) -> OfGroup:
    ledger = fleet.ledger
    return OfGroup(
        group=group,
        budget=scenario.all_budgets[group],
        came=ledger.came[group],
        refused=ledger.refused[group],
        ways={how: count for (of, how), count in sorted(ways.items()) if of == group},
        until_started=spread_of(ledger.until_started[group]),
        until_asked=spread_of(ledger.until_asked[group]),
        until_done=spread_of(ledger.until_done[group]),
        longest_queue=fleet.turn_slots.longest[group],
    )


def _worst(ledger: Ledger) -> tuple[OfTenant, ...]:
    found = [OfTenant(tenant=name, until_started=spread_of(waits)) for name, waits in ledger.of_tenant.items()]
    return tuple(sorted(found, key=lambda one: one.until_started.p95, reverse=True)[:TENANTS])


def _work(ledger: Ledger, what: str) -> Work:
    cost = ledger.costs[what]
    times = max(cost.times, 1)
    return Work(
        what=what,
        times=cost.times,
        per_second=cost.times / cost.seconds if cost.seconds else 0.0,
        ms=cost.seconds / times * 1000,
        statements=cost.statements / times,
    )


def _hottest(ledger: Ledger, commit: float) -> tuple[HotRow, ...]:
    return tuple(
        HotRow(
            row=row,
            locks=ledger.locked[row],
            in_busiest_second=count,
            busy=min(1.0, count * commit),
            waited=ledger.row_waits[row] / ledger.locked[row],
        )
        for row, count in ledger.busiest.most_common(ROWS)
    )
