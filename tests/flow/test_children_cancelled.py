"""A child is cancelled while it starts, answers and ends: its run and its parent's are locked in one order by all."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import event

from chordage.orchestrator import stages
from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.intents import CallModel, Dispatch
from support.family import Lines, ask, by_agent, settle_in
from support.invariants import check_all
from support.lock_waits import has_lock_waits
from support.waiting import until

pytestmark = pytest.mark.usefixtures("calls_anywhere")


def with_a_queued_child(world) -> tuple[str, str]:
    """The child's turn, and the run of its parent."""
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.submit()
    while "bob" not in by_agent(world):
        world.deliver(world.pending.pop(0))
    return str(by_agent(world)["bob"]["id"]), str(by_agent(world, "runs")["ada"]["id"])


def whole_run(world, intent: Dispatch) -> None:
    """The child starts, is answered and ends, as a worker does it in one breath."""
    for follow in stages.dispatch(world.runtime, intent.group, intent.hint):
        assert isinstance(follow, CallModel)
        world.pending += stages.call_model(world.runtime, follow.run_id, follow.step, follow.seen)


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_child_that_starts_while_it_is_cancelled_blocks_no_other(world):
    child, parent_run = with_a_queued_child(world)
    (start,) = [intent for intent in world.pending if isinstance(intent, Dispatch)]
    world.pending.remove(start)
    failed: list[str] = []
    runs_beside = threading.Thread(target=whole_run, args=(world, start))

    def when_the_parent_is_locked(connection, cursor, statement, parameters, context, executemany) -> None:
        is_lock = "FOR UPDATE" in statement and parent_run in str(parameters)
        if is_lock and threading.current_thread() is threading.main_thread() and not runs_beside.ident:
            runs_beside.start()
            until(lambda: has_lock_waits(world.store), "the child ends and waits for the lock of its parent")

    event.listen(world.store.engine, "after_cursor_execute", when_the_parent_is_locked)
    event.listen(world.store.engine, "handle_error", lambda context: failed.append(str(context.original_exception)))
    ended, intents = stages.cancel_turn(world.runtime, child)
    runs_beside.join(120)
    world.pending += intents
    world.run_dry()

    assert (failed, ended) == ([], False), "its end was first"
    assert {row["disposition"] for row in world.rows("turns")} == {"answered"}
    check_all(world.store)


def test_cancelled_queued_child_informs_its_parent(world):
    child, _ = with_a_queued_child(world)
    ended, intents = stages.cancel_turn(world.runtime, child, "no more")
    world.pending += intents
    world.run_dry()

    assert ended
    assert by_agent(world)["bob"]["disposition"] == "cancelled"
    assert by_agent(world)["ada"]["disposition"] == "answered"
    check_all(world.store)


def test_children_of_others_are_cancelled_by_name_only_without_a_waiting_parent(world):
    """Our own wake-ups come by that name too, and cannot be distinguished from what a caller sends."""
    child, _ = with_a_queued_child(world)
    with pytest.raises(NotFound):
        stages.cancel_turn(world.runtime, child, space=message.CALLERS)

    world.pending += stages.cancel_turn(world.runtime, str(by_agent(world)["ada"]["id"]))[1]
    ended, _ = stages.cancel_turn(world.runtime, child, space=message.CALLERS)

    assert ended
    assert by_agent(world)["bob"]["disposition"] == "cancelled"
    world.run_dry()
    check_all(world.store)
