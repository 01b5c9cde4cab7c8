"""Rows are locked in one order whatever the collation of the database is: it may put "a" before "B", and Python not.

The servers of these tests know no such collation, so what is looked at is what PostgreSQL is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event

from chordage.orchestrator.store import polls, runs
from chordage.orchestrator.store.database import Store, Tx
from support.rows import a_run

Lock = Callable[[Tx], None]
LINES, RUNS = 'ORDER BY threads.id COLLATE "C"', 'ORDER BY runs.id COLLATE "C" DESC'


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize(
    ("lock", "orders"),
    [
        (lambda tx: polls.lock_threads(tx, {"a", "B"}), [LINES, RUNS]),
        (lambda tx: runs.lock_open_on_threads(tx, "a", "B"), [RUNS]),
    ],
    ids=["a poll", "the same work"],
)
def test_several_rows_are_locked_in_the_order_in_which_python_sorts(
    store: Store, lock: Lock, orders: list[str]
) -> None:
    for thread in ("a", "B"):
        a_run(store, run_id=thread, turn_id=f"of {thread}", thread_id=thread)
    locking: list[str] = []

    def sent(connection, cursor, statement, parameters, context, executemany) -> None:
        if "FOR UPDATE" in statement:
            locking.append(" ".join(statement.split()))

    event.listen(store.engine, "before_cursor_execute", sent)
    with store.write() as tx:
        lock(tx)

    assert [statement[statement.index("ORDER") :] for statement in locking] == [f"{by} FOR UPDATE" for by in orders]
