"""What it costs to find and take deliveries: the same, however many were sent before and however many wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event, text

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.store import outbox, schema
from chordage.orchestrator.store.database import Store
from support import backlog
from support.rows import NOW

SENT, LATER, LINE = 10_000, 2_000, 6_000
AT_MOST = 200  # pages that one statement reads to find its rows; there are some thousand


def crowded(url):
    """Delivered ones, some that wait for their next try, a long line of one thread, and a few that are due."""
    store = Store(url)
    done = [_row(f"sent{n}", f"old{n % 500}", status="sent", sent_at=NOW) for n in range(SENT)]
    later = [_row(f"later{n}", f"later{n}", next_at=NOW + timedelta(hours=1)) for n in range(LATER)]
    line = [_row(f"line{n}", "line", receiver="slow") for n in range(LINE)]
    due = [_row(f"due{n}", f"due{n % 4}", receiver=f"r{n % 3}") for n in range(24)]
    backlog.fill(store, {schema.outbox: [*done, *later, *line, *due]})
    return store


@pytest.fixture
def postgres(migrated_database_url):
    store = crowded(migrated_database_url("postgres"))
    yield store
    store.close()


@pytest.fixture
def sqlite(migrated_database_url):
    store = crowded(migrated_database_url("sqlite"))
    yield store
    store.close()


def _row(turn, thread, **fields):
    return {
        "thread_id": thread, "turn_id": turn, "target": {"channel": "me"}, "receiver": "r0",
        "body": {"text": "x" * 400}, "created_at": NOW,
        "position": 1, "status": "pending", "attempts": 0, "forgiven": 0, "next_at": NOW,
        "sent_at": None, **fields,
    }  # fmt: skip


@contextmanager
def sent_statements(store) -> Iterator[list[tuple[str, object]]]:
    found: list[tuple[str, object]] = []

    def note(_connection, _cursor, statement, parameters, _context, _many):
        if not statement.startswith("EXPLAIN"):
            found.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def deliver_some(store):
    """As a worker does: who is due, what is in hand, take some, and settle one of them."""
    with store.write() as tx:
        due = outbox.due_receivers(tx, NOW)
        outbox.count_in_hand(tx, NOW)
        for receiver in due:
            until = NOW + timedelta(minutes=1)
            claimed = outbox.claim(tx, receiver, 2, 1, token="t", worker="w", now=NOW, until=until)
            for one in claimed.deliveries[:1]:
                outbox.settle(tx, one, DeliveryStatus.SENT, now=NOW, next_at=NOW, error=None)
        tx.rollback()
    return due


def plan_of(tx, statement, parameters):
    """How PostgreSQL finds the rows, with the pages that it reads for it; what it writes then is so much for each."""
    tx.execute(text("SAVEPOINT looked"))
    told = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters).scalar_one()
    tx.execute(text("ROLLBACK TO looked"))
    top = (told if isinstance(told, list) else json.loads(told))[0]["Plan"]
    return top["Plans"][0] if top["Node Type"] == "ModifyTable" else top


@pytest.mark.postgres
def test_deliveries_are_found_by_their_indexes_in_a_bounded_number_of_pages(postgres):
    with sent_statements(postgres) as statements:
        assert deliver_some(postgres) == ["r0", "r1", "r2", "slow"]

    with postgres.write() as tx:
        plans = [(plan_of(tx, *one), one) for one in statements]
        tx.rollback()

    pages = {one[0]: plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan, one in plans}
    assert len(pages) >= 7
    assert {statement: read for statement, read in pages.items() if read > AT_MOST} == {}
    assert not [plan for plan, _ in plans if _walks(plan)]


def test_no_statement_of_a_delivery_walks_through_the_table(sqlite):
    with sent_statements(sqlite) as statements:
        deliver_some(sqlite)

    with sqlite.read() as tx:
        asked = [tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent}", given).all() for sent, given in statements]
    told = [row.detail for rows in asked for row in rows]
    assert told
    assert [plan for plan in told if plan.startswith("SCAN outbox") and "USING" not in plan] == []


def _walks(plan):
    below = any(_walks(part) for part in plan.get("Plans", []))
    return below or (plan["Node Type"] == "Seq Scan" and plan["Relation Name"] == "outbox")
