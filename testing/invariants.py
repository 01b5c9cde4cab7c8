"""What must hold whatever happened: checked after every test that loses, doubles, reorders or kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import select

from chordage.orchestrator.core.consistency import inconsistencies
from chordage.orchestrator.store import consistency, schema
from chordage.orchestrator.store.database import Store


def check_all(store: Store) -> None:
    """After everything has come to rest."""
    with store.read() as tx:
        rows = consistency.stored_rows(tx)
    assert list(inconsistencies(rows)) == []


def check_always(store: Store, budgets: dict[str, int]) -> None:
    """At every moment."""
    with store.read() as tx:
        runs = tx.execute(select(schema.runs)).all()
    open_runs = Counter(run.thread_id for run in runs if run.status != "done")
    assert all(count == 1 for count in open_runs.values()), f"two open runs on one thread: {open_runs}"
    # A run with a decision resumes at once, whether there is budget or not.
    running = Counter(run.grp for run in runs if run.status == "running" and not run.suspended and not run.stalled)
    assert all(count <= budgets[group] for group, count in running.items()), f"over budget: {running}"
    _nothing_of_a_done_run_is_wanted(store)


def _nothing_of_a_done_run_is_wanted(store: Store) -> None:
    """It has no open question, and no child of it runs without having been cancelled."""
    done = select(schema.runs.c.id).where(schema.runs.c.status == "done")
    asked, child = schema.suspensions.c, schema.turns.c
    with store.read() as tx:
        questions = tx.execute(select(asked.id).where(asked.run_id.in_(done), asked.status.in_(["open", "decided"])))
        assert questions.scalars().all() == [], "questions of runs that are done"
        wanted = select(child.id).where(
            child.parent_run.in_(done), child.status != "done", child.cancel_asked.is_(None)
        )
        assert tx.execute(wanted).scalars().all() == [], "children of runs that are done were not cancelled"


def check_places_are_handed_on(store: Store, budgets: Mapping[str, int], under_way: Counter[str]) -> None:
    """At every moment at which no wake-up has been lost: no place is free while a turn is ready and no wake-up for its
    group is under way. `under_way`: how many are, by group.
    """
    with store.read() as tx:
        at_work = select(schema.runs.c.grp).where(schema.runs.c.status == "running", schema.runs.c.stalled == 0)
        running = Counter(tx.execute(at_work).scalars())
        busy = select(schema.runs.c.thread_id).where(schema.runs.c.status != "done")
        ready = Counter(
            tx.execute(
                select(schema.turns.c.grp).where(
                    schema.turns.c.status == "queued",
                    schema.turns.c.ready == 1,
                    schema.turns.c.thread_id.not_in(busy),
                )
            ).scalars()
        )
    for group, count in ready.items():
        free = budgets[group] - running[group]
        stands = f"{group}: {free} places free, {count} turns ready, {under_way[group]} wake-ups under way"
        assert under_way[group] or free <= 0, stands
