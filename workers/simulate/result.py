"""What a simulation measures, and its result: virtual waits, the engine's own work in real time, hot rows."""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import statements as sql
from chordage.orchestrator.store.database import Tx
from chordage.workers.simulate.scenario import Scenario

PLACES = (Placement.HERE, Placement.TOGETHER, Placement.SPREAD)
ROWS = 5  # the hottest that are reported
TENANTS = 5  # those with the longest waits that are reported


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Of many seconds."""

    count: int
    p50: float
    p95: float
    p99: float
    longest: float


def spread_of(seconds: array[float]) -> Spread:
    ordered = sorted(seconds)
    if not ordered:
        return Spread(count=0, p50=0.0, p95=0.0, p99=0.0, longest=0.0)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.95, 0.99)]
    return Spread(count=len(ordered), p50=at[0], p95=at[1], p99=at[2], longest=ordered[-1])


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class RealCost:
    """Real work of the engine, in the process that simulates."""

    times: int = 0
    seconds: float = 0.0
    statements: int = 0


@dataclass(slots=True)
class Measurements:
    until_started: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    until_asked: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    until_done: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    of_tenant: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    came: Counter[Group] = field(default_factory=Counter)
    refused: Counter[Group] = field(default_factory=Counter)
    costs: dict[str, RealCost] = field(default_factory=lambda: defaultdict(RealCost))
    placed: dict[Group, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # calls, by where they run
    messages: Counter[Group] = field(default_factory=Counter)  # with calls
    in_vain: int = 0  # wake-ups that started nothing
    locked: Counter[str] = field(default_factory=Counter)  # locks of a row that the next transaction must wait for
    row_waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_second: dict[str, tuple[int, int]] = field(default_factory=dict)
    busiest: Counter[str] = field(default_factory=Counter)  # locks of a row in its busiest second
    _statements: int = 0

    def lock(self, row: str, now: float, waited: float = 0.0) -> None:
        self.locked[row] += 1
        self.row_waits[row] += waited
        second, count = self.in_second.get(row, (-1, 0))
        count = count + 1 if second == int(now) else 1
        self.in_second[row] = (int(now), count)
        self.busiest[row] = max(self.busiest[row], count)

    @contextmanager
    def cost_of(self, stage: str) -> Iterator[None]:
        cost, before, began = self.costs[stage], self._statements, time.perf_counter()
        try:
            yield
        finally:
            cost.times += 1
            cost.seconds += time.perf_counter() - began
            cost.statements += self._statements - before

    @contextmanager
    def counting(self) -> Iterator[None]:
        def count(_tx: Tx, _sql: str) -> None:
            self._statements += 1

        sql.observers.append(count)
        try:
            yield
        finally:
            sql.observers.remove(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
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
    placed: dict[str, int]  # calls, by where the round placed them
    messages: int  # in which the others were sent


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantResult:
    tenant: str
    until_started: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCost:
    """Real time of the engine and the database it ran on, in one process."""

    what: str
    times: int
    per_second: float
    ms: float
    statements: float  # each time


@dataclass(frozen=True, kw_only=True, slots=True)
class HotRow:
    """`busy`: the part of its busiest second in which it was locked. At 1 no other transaction gets through."""

    row: str
    locks: int
    in_busiest_second: int
    busy: float
    waited: float  # virtual seconds that a transaction waited for it, on average


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    virtual_seconds: float
    real_seconds: float
    turns: int
    groups: tuple[GroupResult, ...]
    tenants: tuple[TenantResult, ...]
    work: tuple[StageCost, ...]
    in_vain: int  # wake-ups that started nothing
    hot_rows: tuple[HotRow, ...]
    database: str


def result_of(
    scenario: Scenario,
    measured: Measurements,
    queues: Mapping[Group, int],
    ways: Mapping[tuple[str, str], int],
    *,
    virtual: float,
    real: float,
    on: str,
) -> SimulationResult:
    return SimulationResult(
        virtual_seconds=virtual,
        real_seconds=real,
        turns=sum(measured.came.values()),
        groups=tuple(_group_result(group, scenario, measured, queues, ways) for group in Group if measured.came[group]),
        tenants=_slowest_tenants(measured),
        work=tuple(_stage_cost(measured, what) for what in ("admission", "dispatch", "end", "sweep")),
        in_vain=measured.in_vain,
        hot_rows=_hottest_rows(measured, scenario.database.commit_ms / 1000),
        database=on,
    )


def _group_result(
    group: Group,
    scenario: Scenario,
    measured: Measurements,
    queues: Mapping[Group, int],
    ways: Mapping[tuple[str, str], int],
) -> GroupResult:
    return GroupResult(
        group=group,
        budget=scenario.all_budgets[group],
        came=measured.came[group],
        refused=measured.refused[group],
        ways={how: count for (of, how), count in sorted(ways.items()) if of == group},
        until_started=spread_of(measured.until_started[group]),
        until_asked=spread_of(measured.until_asked[group]),
        until_done=spread_of(measured.until_done[group]),
        longest_queue=queues[group],
        placed={place.value: measured.placed[group][place.value] for place in PLACES},
        messages=measured.messages[group],
    )


def _slowest_tenants(measured: Measurements) -> tuple[TenantResult, ...]:
    tenants = [TenantResult(tenant=name, until_started=spread_of(waits)) for name, waits in measured.of_tenant.items()]
    return tuple(sorted(tenants, key=lambda tenant: tenant.until_started.p95, reverse=True)[:TENANTS])


def _stage_cost(measured: Measurements, what: str) -> StageCost:
    cost = measured.costs[what]
    times = max(cost.times, 1)
    return StageCost(
        what=what,
        times=cost.times,
        per_second=cost.times / cost.seconds if cost.seconds else 0.0,
        ms=cost.seconds / times * 1000,
        statements=cost.statements / times,
    )


def _hottest_rows(measured: Measurements, commit: float) -> tuple[HotRow, ...]:
    return tuple(
        HotRow(
            row=row,
            locks=measured.locked[row],
            in_busiest_second=count,
            busy=min(1.0, count * commit),
            waited=measured.row_waits[row] / measured.locked[row],
        )
        for row, count in measured.busiest.most_common(ROWS)
    )
