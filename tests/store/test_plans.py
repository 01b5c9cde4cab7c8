"""A night passes with nothing to do, PostgreSQL notes that the queue is empty, and then a hundred thousand messages
come at once: the plans made that night must be those that are right for a full queue.
"""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import approvals, calls, children, fairness, groups, runs, steering, turns
from support import plans
from support.rows import NOW

pytestmark = pytest.mark.postgres
idle_or_new = pytest.mark.parametrize("idle", [True, False], ids=["idle", "new"])

# Statements that stop where they have found what they look for, and one that looks at a row an agent at the most.
ALLOWED = {
    "projection._LOAD": ["pk_journal"],  # its newest row
    "metrics._LOAD": ["pk_journal"],  # likewise
    "turns._OPEN_WILL": ["uq_turns_will"],
}
SENT = {
    "make_next_ready": lambda tx: turns.make_next_ready(tx, "t", NOW),
    "end_queued": lambda tx: turns.end_queued(tx, "x", Disposition.EXPIRED, NOW, parent_run="r"),
    "step_in_front": lambda tx: steering.move_to_front(tx, "t", "x"),
    "wake": lambda tx: fairness.wake(tx, NOW, 10),
    "nudge": lambda tx: fairness.nudge(tx, ["x"], NOW, nothing_waits=True),
    "overdue": lambda tx: turns.overdue(tx, NOW, 10),
    "expired runs": lambda tx: runs.expired(tx, NOW, 10),
    "expired calls": lambda tx: calls.expired(tx, NOW, 10),
    "flying calls": lambda tx: calls.tokens_in_flight(tx, ["c"]),
    "lost runs": lambda tx: runs.lost(tx, [("r", 1)]),
    "open run": lambda tx: runs.open_on(tx, "t"),
    "questions of a run": lambda tx: approvals.unsettled(tx, "r"),
    "expired questions": lambda tx: approvals.expired(tx, NOW, 10),
    "questions closed": lambda tx: approvals.close_of_calls(tx, ["c"]),
    "question of a call": lambda tx: children.open_suspension(tx, "c"),
    "children given up": lambda tx: children.give_up(tx, call_id="c"),
    "children of a run given up": lambda tx: children.give_up(tx, run_id="r"),
    "children at work": lambda tx: children.spans(tx, "r", NOW, NOW),
    "children of calls": lambda tx: children.of_calls(tx, ["c"]),
    "is full": lambda tx: groups.is_full(tx, Group.CHAT, 10),
    "oldest": lambda tx: groups.oldest_queued(tx, Group.CHAT),
    "running by tenant": lambda tx: groups.running_by_tenant(tx, Group.CHAT),
    "queued by tenant": lambda tx: groups.queued_by_tenant(tx, Group.CHAT, NOW),
    "queued on a thread": lambda tx: turns.newest(tx, limit=5, status=TurnStatus.QUEUED, thread_id="t"),
}


@pytest.fixture
def backend():
    return "postgres"


@pytest.fixture
def planner(store, idle):
    if idle:
        plans.idle_with_history(store)
    with store.write() as tx:
        yield plans.Planner(tx)
        tx.rollback()


@idle_or_new
def test_no_plan_goes_through_a_whole_table_or_index(planner) -> None:
    found = {name: whole for name, hot in plans.hot_statements() if (whole := planner.of_hot(hot))}

    assert found == ALLOWED


@idle_or_new
def test_nor_does_one_that_is_sent_seldom(planner) -> None:
    found = {name: whole for name, work in SENT.items() if (whole := planner.of_others(work))}

    assert found == {}
