"""A night passes with nothing to do, PostgreSQL notes that the queue is empty, and then a hundred thousand messages
come at once: the plans made that night must be those that are right for a full queue.
"""

from __future__ import annotations

import pytest

from support import plans

pytestmark = pytest.mark.postgres

# Statements that read from one end of an index, and stop after as many rows as they are asked for.
FROM_AN_END = {
    "projection._LOOK": ["pk_journal"],  # its newest row
}


@pytest.fixture
def backend():
    return "postgres"


def test_no_plan_of_an_idle_database_goes_through_a_whole_table_or_index(store) -> None:
    plans.idle_with_history(store)

    with store.read() as tx:
        found = {name: whole for name, hot in plans.hot_statements() if (whole := plans.goes_through_all_of(tx, hot))}

    assert found == FROM_AN_END


def test_no_plan_of_a_new_database_goes_through_a_whole_table_or_index(store) -> None:
    with store.read() as tx:
        found = {name: whole for name, hot in plans.hot_statements() if (whole := plans.goes_through_all_of(tx, hot))}

    assert found == FROM_AN_END
