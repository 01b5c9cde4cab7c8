"""The mark of a run at rest is another whenever something changes that its page shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select, update

from chordage.orchestrator import views
from chordage.orchestrator.core.approvals import Question, Why
from chordage.orchestrator.store import schema
from chordage.orchestrator.store.database import Store
from support.fakes import rounds_of
from support.world import World

RUN, CALLS, QUESTIONS = schema.runs, schema.calls, schema.suspensions
CHANGES = {
    "its run goes on": (RUN, RUN.c.id, {"status": "running", "reason": None}),
    "a step is opened": (RUN, RUN.c.id, {"step": 9}),
    "a message steers it": (RUN, RUN.c.id, {"steers": 1}),
    "a call is sent again": (CALLS, CALLS.c.run_id, {"resends": 7}),
    "a question is decided": (QUESTIONS, QUESTIONS.c.run_id, {"status": "decided"}),
    "a question is closed": (QUESTIONS, QUESTIONS.c.run_id, {"status": "superseded"}),
}


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    store = Store(database_url)
    yield World(store)
    store.close()


@pytest.fixture
def run_id(world: World) -> str:
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: Question(why=Why.TOOL, prompt="May I?") if order.decision is None else None
    world.submit("wait", thread="w")
    world.run_dry()
    with world.store.read() as tx:
        found: str = tx.execute(select(schema.runs.c.id)).scalar_one()
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_another_mark(world: World, run_id: str, change: str) -> None:
    before = views.run_marks(world.store, [run_id, "gone"])
    assert views.run_marks(world.store, [run_id, "gone"]) == before
    assert before["gone"] == ()
    with world.store.write() as tx:
        table, key, values = CHANGES[change]
        tx.execute(update(table).where(key == run_id).values(**values))

    after = views.run_marks(world.store, [run_id])

    assert after[run_id] != before[run_id]
