"""Rows that a newer version has written, as an old worker meets them during a deploy: they stop nothing else."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from chordage.orchestrator import views
from chordage.orchestrator.store import schema
from support.busy_thread import once
from support.invariants import check_all
from support.questions import asks_of
from support.world import Died, World


def change(world: World, table: str, where: str, **values: object) -> None:
    rows = schema.metadata.tables[table]
    with world.store.write() as tx:
        tx.execute(update(rows).where(rows.c.id == where).values(**values))


def lost(world: World, thread: str) -> str:
    """A turn whose wake-up is lost."""
    turn = world.submit(thread=thread)
    while not world.rows("runs", turn_id=turn):
        world.deliver(world.pending.pop(0))
    world.pending.clear()
    return turn


def test_the_sweep_passes_over_a_run_in_a_phase_it_does_not_know(world):
    strange, plain = lost(world, "a"), lost(world, "b")
    run = world.row("runs", turn_id=strange)["id"]
    change(world, "runs", run, phase="dreaming")
    world.sweep(100)
    world.run_dry()

    assert views.turn(world.store, plain).disposition == "answered"
    change(world, "runs", run, phase="inference")
    world.recover()
    check_all(world.store)


def test_the_sweep_passes_over_a_call_with_an_effect_it_does_not_know(world):
    def lose():
        raise world.kill()

    world.tools.before = once(lose)
    for thread in ("a", "b"):
        world.submit(thread=thread)
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.revive()
    strange = world.rows("calls")[0]["id"]
    change(world, "calls", strange, effect="quantum")
    for _ in range(6):
        world.forget_the_dead()
        world.sweep(100)
        world.run_dry()
    assert sorted(turn["status"] for turn in world.rows("turns")) == ["active", "done"]


def test_the_sweep_passes_over_a_question_it_does_not_understand(world):
    world.tools.asks = asks_of(0)
    for thread in ("a", "b"):
        world.submit(thread=thread)
    world.run_dry()
    first, second = world.inbox()
    for row in (first, second):
        change(world, "suspensions", row["id"], expires_at=world.clock())
    change(world, "suspensions", first["id"], on_expiry="ask_the_oracle")
    world.sweep(10)
    world.run_dry()
    assert [row["id"] for row in world.inbox()] == [first["id"]]


@pytest.mark.parametrize("column", ["disposition", "origin"])
def test_a_list_of_turns_shows_what_it_does_not_know_as_it_is(world, column):
    turn = world.submit()
    world.run_dry()
    change(world, "turns", turn, **{column: "brand_new"})
    assert getattr(views.turns(world.store)[0], column) == "brand_new"
    assert getattr(views.turn(world.store, turn), column) == "brand_new"


def test_a_run_is_shown_without_the_steps_that_are_not_known(world):
    turn = world.submit()
    world.run_dry()
    run = views.turn(world.store, turn).run_id
    before = views.run(world.store, run).steps
    row = {"thread_id": "t1", "run_id": run, "step": 9, "kind": "Unheard", "body": {}, "at": world.clock()}
    with world.store.write() as tx:
        tx.execute(schema.journal.insert().values(row))
    assert views.run(world.store, run).steps == before


@pytest.mark.parametrize("column", ["why", "on_expiry", "resume_mode"])
def test_the_inbox_shows_what_it_does_not_know_as_it_is(world, column):
    world.tools.asks = asks_of(0)
    world.submit()
    world.run_dry()
    change(world, "suspensions", world.inbox()[0]["id"], **{column: "brand_new"})
    (shown,) = views.inbox(world.store)
    assert getattr(shown, column) == "brand_new"
