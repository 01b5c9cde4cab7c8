"""Why one turn waits costs as much among twenty thousand queued turns as among a hundred. Work is counted, not
timed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
from sqlalchemy import event

from chordage.orchestrator import views
from chordage.orchestrator.core.groups import ALL_QUEUES, DEFAULT_BUDGETS, Group
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.core.why.reasons import WaitCause, WaitReason
from chordage.orchestrator.store import processes, waits
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.views import WaitSources
from support import plans
from support.backlog import crowd
from support.rows import NOW
from support.rows import start as start_row

FEW = (100, 50, 2)
MANY = (20_000, 4_000, 2)
READY = "xturn0000001"
STATEMENTS = 20  # that the reason of one turn may take, with the reasons behind it
Case = tuple[int, int, int]


LISTS = {
    "waiting": lambda tx: waits.oldest_waiting(tx, 10, space=None),
    "running": lambda tx: waits.oldest_running(tx, 10, space=None),
    "unsent": lambda tx: waits.oldest_unsent(tx, 10, space=None),
}


class Counted:
    """A store of so many queued turns, with one run at work; what it is asked is counted."""

    def __init__(self, url: str, case: Case) -> None:
        queued, threads, tenants = case
        filled = Store(url, pool_size=1)
        crowd(filled, queued, threads=threads, tenants=tenants)
        with filled.write() as tx:
            assert start_row(tx, "xturn0000000", "x0", rules=(StartRule.HAS_ROOM,))
        filled.close()
        self.second = f"xturn{threads + 1:07}"  # in the line of its thread
        self.steps = self.statements = 0
        self.store = Store(url, pool_size=1)
        for engine in (self.store.engine, self.store.plain):
            event.listen(engine, "connect", self._watch)

    def _watch(self, raw: sqlite3.Connection, _record: object) -> None:
        raw.set_progress_handler(self._step, 100)
        raw.set_trace_callback(self._sent)

    def _step(self) -> int:
        self.steps += 1
        return 0

    def _sent(self, statement: str) -> None:
        self.statements += statement.startswith(("SELECT", "WITH"))

    def reason(self, budget: int, turn: str) -> WaitReason | None:
        return views.why(self._sources(budget), turn).reason

    def cost(self, budget: int, work: Callable[[WaitSources], object]) -> tuple[int, int]:
        """Statements, and instructions of SQLite's machine in hundreds."""
        sources = self._sources(budget)
        work(sources)  # the first statement of a connection costs more
        before = self.statements, self.steps
        work(sources)
        return self.statements - before[0], self.steps - before[1]

    def _sources(self, budget: int) -> WaitSources:
        budgets = {**DEFAULT_BUDGETS, Group.CHAT: budget}
        return WaitSources(store=self.store, now=NOW, budgets=budgets)


def test_a_reason_costs_the_same_whatever_waits(migrated_database_url) -> None:
    few, many = (Counted(migrated_database_url("sqlite"), case) for case in (FEW, MANY))
    for one in (few, many):
        with one.store.write() as tx:
            processes.show(tx, [Process(id="w", machine="here", pid=1, born="then", queues=ALL_QUEUES)], NOW)

    for budget, is_second, cause in (
        (1, False, WaitCause.GROUP_FULL),
        (1, True, WaitCause.BEHIND_TURN),
        (0, False, WaitCause.GROUP_PAUSED),
        (9, False, WaitCause.OTHER_TENANT),
    ):
        turns = [(one, one.second if is_second else READY) for one in (few, many)]
        reasons = [one.reason(budget, turn) for one, turn in turns]
        (sent, work), (sent_of_many, work_of_many) = (
            one.cost(budget, lambda sources, turn=turn: views.why(sources, turn)) for one, turn in turns
        )
        assert [reason and reason.cause for reason in reasons] == [cause, cause]
        assert sent == sent_of_many <= STATEMENTS
        assert work_of_many <= 2 * work + 60, f"{cause}: a bounded number of rows is read"

    of_few, of_many = (one.cost(1, lambda sources: views.waiting(sources, limit=20)) for one in (few, many))
    assert of_few[0] == of_many[0]
    assert of_many[1] <= 3 * of_few[1] + 60, "a bounded part of the lists is read"


@pytest.mark.postgres
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "new"])
def test_no_statement_reads_a_whole_table(migrated_database_url, idle) -> None:
    store = Store(migrated_database_url("postgres"), pool_size=1)
    if idle:
        plans.idle_with_history(store)
    asked = {
        "turns": lambda tx: waits.turns_of(tx, ["x"]),
        "next": lambda tx: waits.next_on_threads(tx, ["t"], NOW),
        "latest": lambda tx: waits.latest_on(tx, "t"),
        "holders": lambda tx: waits.holders(tx, Group.CHAT, 5),
        "own": lambda tx: waits.own_before(tx, ["x"]),
        "runs": lambda tx: waits.runs_of(tx, ["r"]),
        "open": lambda tx: waits.open_on(tx, ["t"]),
        "holds": lambda tx: waits.holds_of(tx, ["x"]),
        "calls": lambda tx: waits.calls_of(tx, ["c"]),
        "calls of runs": lambda tx: waits.calls_of_runs(tx, ["r"]),
        "questions": lambda tx: waits.questions_of(tx, ["s"]),
        "questions of runs": lambda tx: waits.questions_of_runs(tx, ["r"]),
        "deliveries": lambda tx: waits.deliveries_of(tx, [1]),
        "queued": lambda tx: waits.oldest_queued(tx, Group.CHAT, 10, space=None),
    }
    with store.write() as tx:
        planner = plans.Planner(tx)
        found = {name: whole for name, work in asked.items() if (whole := planner.of_others(work))}
        lists = {
            name: [index for indexes in planner.of_others(work).values() for index in indexes]
            for name, work in LISTS.items()
        }
        tx.rollback()
    store.close()

    assert found == {}
    # Along an index that holds nothing else, and no further than the page, or a bound.
    assert lists == {
        "waiting": ["ix_runs_waiting"],
        "running": ["ix_runs_lease"],
        "unsent": ["ix_outbox_dead", "ix_outbox_due"],
    }
