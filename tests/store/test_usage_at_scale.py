"""A report of a span of time reads the runs of that span, however many there are before it, and a bounded number. Work
is counted, not timed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from chordage.orchestrator import views
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.store import schema
from chordage.orchestrator.store import usage as usage_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.pages import first_id_at
from support import backlog
from support.databases import Databases

NOW = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)


def fill(store: Store, older: int) -> None:
    """A thousand runs of today, and so many of the month before the last."""
    made = [_run(n, NOW - timedelta(seconds=n)) for n in range(1_000)]
    made += [_run(n, NOW - 60 * DAY + timedelta(seconds=n)) for n in range(older)]
    backlog.fill(store, {schema.runs: made})


def _run(n: int, at: datetime) -> dict[str, Any]:
    return {
        "id": f"{first_id_at(at)}-7000-8000-{n:012x}", "thread_id": f"t{n}", "turn_id": f"u{n}", "agent": f"a{n % 3}",
        "grp": "chat", "tenant": f"b{n % 2}", "strategy": "react", "control": "auto", "status": "done",
        "reason": "natural_end", "epoch": 1, "step": 1, "phase": "inference", "rounds": 0, "resends": 0, "expiries": 0,
        "input_tokens": 5, "output_tokens": 3, "cached_tokens": 0, "cache_write_tokens": 0, "cost_nanos": 7,
        "unpriced": 0, "suspended": 0, "rested_ms": 0, "children": 0, "steers": 0, "started_at": at, "ended_at": at,
    }  # fmt: skip


def read(store: Store, by: UsageKey) -> int:
    report = views.usage_report(store, by, NOW + timedelta(seconds=1), since=NOW - DAY)
    assert sum(line.runs for line in report.lines) == 1_000
    assert sum(line.usage.cost_nanos or 0 for line in report.lines) == 7_000
    return len(report.lines)


@pytest.fixture(scope="module")
def few_and_many(databases: Databases) -> Iterator[list[str]]:
    """With few older runs, and with many."""
    urls = [databases.migrated("sqlite") for _ in range(2)]
    for url, older in zip(urls, (100, 20_000), strict=True):
        with closing(Store(url, pool_size=1)) as filled:
            fill(filled, older)
    yield urls
    for url in urls:
        databases.drop(url)


@pytest.mark.parametrize("by", list(UsageKey))
def test_a_report_costs_no_more_behind_many_older_runs(few_and_many: list[str], by: UsageKey) -> None:
    def steps(url: str) -> int:
        store, count = Store(url, pool_size=1), [0]

        def counted(raw: sqlite3.Connection, _record: object) -> None:
            raw.set_progress_handler(lambda: count.__setitem__(0, count[0] + 1), 100)

        for engine in (store.engine, store.plain):
            event.listen(engine, "connect", counted)
        assert read(store, by) == {UsageKey.AGENT: 3, UsageKey.TENANT: 2, UsageKey.DAY: 2}[by]
        store.close()
        return count[0]

    few, many = map(steps, few_and_many)
    assert many <= 1.2 * few


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_of_more_runs_than_are_counted_the_newest_count(migrated_database_url, backend, monkeypatch) -> None:
    monkeypatch.setattr(usage_rows, "MOST_RUNS", 400)
    store = Store(migrated_database_url(backend), pool_size=1)
    fill(store, 10)
    now = NOW + timedelta(seconds=1)
    report = views.usage_report(store, UsageKey.AGENT, now, since=NOW - DAY)
    short = views.usage_report(store, UsageKey.AGENT, now, since=NOW - timedelta(seconds=50))
    store.close()

    assert sum(line.runs for line in report.lines) == 400
    assert report.looked_to == NOW - timedelta(seconds=400)
    assert (sum(line.runs for line in short.lines), short.looked_to) == (51, None)


@pytest.fixture(scope="module")
def many_on_postgres(databases: Databases) -> Iterator[str]:
    url = databases.migrated("postgres")
    with closing(Store(url, pool_size=1)) as filled:
        fill(filled, 20_000)
    yield url
    databases.drop(url)


@pytest.mark.postgres
@pytest.mark.parametrize("by", list(UsageKey))
def test_postgres_reads_the_range_of_ids(many_on_postgres: str, by: UsageKey) -> None:
    store = Store(many_on_postgres, pool_size=1)
    sent: list[tuple[str, Any]] = []

    def noted(_conn: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters))

    for engine in (store.engine, store.plain):
        event.listen(engine, "before_cursor_execute", noted)
    assert read(store, by)
    statement, parameters = next(one for one in sent if "sum(" in one[0])
    with store.read() as tx:
        plan = "\n".join(
            str(row[0]) for row in tx.exec_driver_sql(f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", parameters)
        )
    store.close()
    assert "pk_runs" in plan, plan
    assert "Seq Scan" not in plan, plan
