"""Conformance, scheduling. The numbers are those of the list of behaviours this design started from; 56 is in
tests/store/test_groups_view.py.
"""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from support.fakes import spoken
from support.world import World


def test_51_turns_of_one_thread_never_overlap(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    first, second = world.submit("a"), world.submit("b")

    while world.pending:
        world.deliver(world.pending.pop(0))
        world.clock.pass_by(1)
        assert [row["status"] for row in world.rows("turns")].count("active") <= 1

    assert world.row("turns", id=second)["started_at"] >= world.row("turns", id=first)["done_at"]


def test_52_queued_turn_shows_its_position_on_its_thread(world: World) -> None:
    turns = [world.submit(text) for text in "abc"]
    stages.dispatch(world.runtime, Group.CHAT)

    shown = [views.turn(world.store, one) for one in turns]

    assert [one.position for one in shown] == [None, 1, 2]
    assert shown[2].fate == "queued, number 2 in the line of its thread"


def test_54_cancelling_the_running_turn_frees_the_thread_at_once(world: World) -> None:
    first, second = world.submit("a"), world.submit("b")
    stages.dispatch(world.runtime, Group.CHAT)

    ended, intents = stages.cancel_turn(world.runtime, first)

    assert ended
    assert [intent.hint.turn_id for intent in intents if isinstance(intent, Dispatch) and intent.hint] == [second]
    world.deliver(intents[-1])
    assert world.row("turns", id=second)["status"] == "active"


def test_57_messages_of_one_thread_run_in_the_order_in_which_they_came(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    for number in range(6):
        world.submit(f"m{number}", tenant=f"t{5 - number}")
    world.pending.reverse()

    world.run_dry()

    told = sorted(world.rows("journal", kind="UserMessage"), key=lambda row: row["id"])
    assert [row["body"]["text"] for row in told] == [f"m{number}" for number in range(6)]


def test_59_a_backlog_of_chores_and_wills_takes_no_slot_from_a_chat(world: World) -> None:
    for number in range(20):
        world.submit(thread=f"c{number}", group=Group.CHORE)
        world.submit(thread=f"w{number}", group=Group.WILL)
    for group in (Group.CHORE, Group.WILL) * 4:
        stages.dispatch(world.runtime, group)
    chat = world.submit(thread="chat")

    assert stages.dispatch(world.runtime, Group.CHAT)

    assert world.row("turns", id=chat)["status"] == "active"
    assert len(world.rows("runs")) == 1 + world.budgets[Group.CHORE] + world.budgets[Group.WILL]


@pytest.mark.parametrize("overflow", list(Overflow))
def test_61_a_full_queue_rejects_drops_the_oldest_or_replaces_the_pending(world: World, overflow: Overflow) -> None:
    bounds = {Group.CHAT: QueueBound(max_queued=2, overflow=overflow)}
    object.__setattr__(world.runtime, "queue_bounds", bounds)
    for thread in ("old", "mine"):
        world.clock.pass_by(1)
        world.submit(thread, thread=thread)
    world.clock.pass_by(1)

    if overflow is Overflow.REJECT:
        with pytest.raises(QueueFull):
            world.submit("new", thread="mine")
    else:
        world.submit("new", thread="mine")

    left = {row["text"] for row in world.rows("turns", status="queued")}
    assert (
        left
        == {
            Overflow.REJECT: {"old", "mine"},
            Overflow.DROP_OLDEST: {"mine", "new"},
            Overflow.REPLACE_PENDING: {"old", "new"},
        }[overflow]
    )


def test_62_a_closed_group_refuses_new_work_and_finishes_what_is_queued(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    before = world.submit("before")
    object.__setattr__(world.runtime, "queue_bounds", {Group.CHAT: QueueBound(max_queued=0)})

    with pytest.raises(QueueFull, match="takes no messages"):
        world.submit("after", thread="another")

    world.run_dry()
    assert world.row("turns", id=before)["disposition"] == "answered"
    assert len(world.rows("turns")) == 1
