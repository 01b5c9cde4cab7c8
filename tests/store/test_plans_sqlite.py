"""SQLite picks an index by how many terms of a statement it serves: none goes along a thread's whole history."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import event

from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store import children, steering, threads, turns
from chordage.orchestrator.store.schema import turns as table
from support import plans
from support.rows import NOW, admit

SENT = [
    lambda tx: turns.make_next_ready(tx, "t1", NOW),
    lambda tx: steering.move_to_front(tx, "t1", "a"),
    lambda tx: threads.details(tx, "t1"),
    lambda tx: turns.newest(tx, limit=5, status=TurnStatus.QUEUED, thread_id="t1"),
    lambda tx: children.open_suspension(tx, "c"),
]
OF_ALL_TURNS = "sqlite_autoindex_turns_2 (thread_id"


@pytest.fixture
def backend():
    return "sqlite"


def planned(tx, sql: str, given: object) -> list[str]:
    cursor = tx.connection.cursor()
    cursor.execute(f"EXPLAIN QUERY PLAN {sql}", given)
    return [row[3] for row in cursor.fetchall()]


def goes_through(steps: list[str]) -> list[str]:
    names = {one.name for one in table.metadata.sorted_tables}
    return [step for step in steps if OF_ALL_TURNS in step or (step.startswith("SCAN") and step.split()[1] in names)]


def test_no_prepared_statement_scans_the_history_of_a_thread(store) -> None:
    with store.read() as tx:
        found = {}
        for name, hot in plans.hot_statements():
            compiled = hot.compiled(tx.dialect)
            nothing = {bind: compiled.defaults.get(bind) for bind in re.findall(r":(\w+)", compiled.sql)}
            if bad := goes_through(planned(tx, compiled.sql, nothing)):
                found[name] = bad

    assert found.keys() == {"threads._ARRIVE"}  # what SQLite would do, were the id of the thread to change


@pytest.mark.parametrize("number", range(len(SENT)))
def test_nor_does_one_that_is_sent_seldom(store, number) -> None:
    sent = []
    with store.write() as tx:
        admit(tx, "a", "t1")
        event.listen(tx.engine, "before_cursor_execute", lambda *given: sent.append(given[2:4]))
        SENT[number](tx)
        bad = [step for sql, given in sent for step in goes_through(planned(tx, sql, given))]

    assert bad == []
