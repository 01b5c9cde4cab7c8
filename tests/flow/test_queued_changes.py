"""A turn that is queued is moved to a lower group or gets a later deadline, while others start, end or change it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from chordage.orchestrator.store import audit
from support.fakes import spoken
from support.world import Died

BY = Actor(id="ann", address="192.0.2.7")


@pytest.fixture(autouse=True)
def answers(world):
    world.models.script = lambda prompt: spoken("done")


def change(world, turn, **to):
    intents = stages.change_queued_turn(world.runtime, turn, by=BY, **to)
    world.pending += intents
    return intents


def on_record(world):
    with world.store.read() as tx:
        return [(entry.actor, entry.address, entry.action, entry.about) for entry in audit.newest(tx, limit=9)]


def test_a_moved_turn_starts_in_the_budget_of_its_new_group(world):
    world.budgets[Group.CHAT] = 0
    turn = world.submit(group=None, thread="t")
    group = Group(world.row("turns", id=turn)["grp"])
    world.budgets[group], world.budgets[Group.CHORE] = 0, 1
    world.run_dry()
    assert world.row("turns", id=turn)["status"] == "queued"

    assert change(world, turn, group=Group.CHORE) == [Dispatch(group=Group.CHORE)]
    world.run_dry()

    (run,) = world.rows("runs")
    assert (run["grp"], run["status"], world.row("turns", id=turn)["disposition"]) == ("chore", "done", "answered")
    (row,) = world.rows("journal", kind="TurnChanged")
    assert row["run_id"] == turn
    assert row["body"] == {"turn": turn, "group": "chore", "was_group": group.value, "by": "ann"}
    assert on_record(world) == [("ann", "192.0.2.7", "turn_changed", turn)]


def test_a_wake_up_that_is_lost_is_sent_again(world):
    turn = world.submit()
    change(world, turn, group=Group.CHORE)
    world.pending.clear()

    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert [run["grp"] for run in world.rows("runs")] == ["chore"]


def test_a_turn_is_moved_down_only(world):
    turn = world.submit(group=Group.TASK)

    with pytest.raises(InvalidMessage, match="can only be moved down"):
        change(world, turn, group=Group.CHAT)

    assert world.row("turns", id=turn)["grp"] == "task"
    assert world.rows("journal", kind="TurnChanged") == []


def test_the_group_and_the_deadline_it_has_are_no_change(world):
    deadline = world.clock() + timedelta(hours=1)
    turn = world.submit(group=Group.TASK, deadline=deadline)

    assert change(world, turn, group=Group.TASK, deadline=deadline) == []
    assert (on_record(world), world.rows("journal", kind="TurnChanged")) == ([], [])


@pytest.mark.parametrize("to", [{"group": Group.CHORE}, {"deadline": True}])
def test_a_turn_that_starts_meanwhile_is_not_changed(world, to):
    """It is read as queued, and starts before the change is written."""
    deadline = world.clock() + timedelta(hours=1)
    turn = world.submit(deadline=deadline)
    given = {name: deadline + timedelta(hours=1) if value is True else value for name, value in to.items()}
    looks = []

    def start(seen):
        looks.append(seen.status)
        with world.as_another_process():
            world.run_dry()

    with pytest.raises(Conflict, match="is done: its group and its deadline"):
        change(world, turn, check=start, **given)

    row = world.row("turns", id=turn)
    assert looks == ["queued", "done"]
    assert (row["grp"], row["deadline"]) == (world.row("runs")["grp"], deadline)
    assert (on_record(world), world.rows("journal", kind="TurnChanged")) == ([], [])


def test_a_turn_that_was_moved_between_look_and_start_does_not_start_in_its_old_group(world, monkeypatch):
    turn = world.submit(group=Group.TASK)
    world.budgets[Group.CHORE] = 0
    take, moved = world.locks.take, []

    def move_first(*args, **more):
        if not moved:
            moved.append(True)
            with world.as_another_process():
                change(world, turn, group=Group.CHORE)
        return take(*args, **more)

    monkeypatch.setattr(world.locks, "take", move_first)
    world.run_dry()

    assert moved
    assert world.rows("runs") == []
    assert (world.row("turns", id=turn)["grp"], world.row("turns", id=turn)["status"]) == ("chore", "queued")


def test_two_who_change_it_at_once_are_both_heard(world):
    first = world.clock() + timedelta(hours=1)
    turn = world.submit(group=Group.TASK, deadline=first)
    others = [lambda: change(world, turn, group=Group.WILL)]

    def change_it_first(_seen):
        if others:
            with world.as_another_process():
                others.pop()()

    change(world, turn, deadline=first + timedelta(hours=1), check=change_it_first)

    row = world.row("turns", id=turn)
    assert (row["grp"], row["deadline"]) == ("will", first + timedelta(hours=1))
    assert len(world.rows("journal", kind="TurnChanged")) == 2


def test_a_deadline_that_was_extended_is_the_one_that_counts(world):
    deadline = world.clock() + timedelta(minutes=1)
    turn = world.submit(deadline=deadline)
    world.pending.clear()
    change(world, turn, deadline=deadline + timedelta(hours=1))

    world.sweep(120)
    assert world.row("turns", id=turn)["status"] == "queued"
    world.pending.clear()
    world.sweep(7200)

    assert world.row("turns", id=turn)["disposition"] == "expired"


def test_a_sweep_that_has_read_the_old_deadline_ends_nothing(world, monkeypatch):
    """The sweep finds the turn overdue by its clock, which is ahead; the deadline is extended before it writes."""
    deadline = world.clock() + timedelta(minutes=1)
    turn = world.submit(deadline=deadline)
    world.pending.clear()
    change(world, turn, deadline=deadline + timedelta(hours=1))
    monkeypatch.setattr(stages.rescue.__globals__["turns"], "overdue", lambda *_: [turn])

    world.sweep(120)

    assert world.row("turns", id=turn)["disposition"] is None


def test_a_deadline_is_neither_shortened_nor_given_nor_revived(world):
    deadline = world.clock() + timedelta(hours=1)
    turn, without = world.submit(deadline=deadline), world.submit(thread="other")

    with pytest.raises(InvalidMessage, match="give a later time"):
        change(world, turn, deadline=deadline - timedelta(minutes=1))
    with pytest.raises(Conflict, match="no deadline to extend"):
        change(world, without, deadline=deadline)
    world.clock.now += timedelta(hours=2)
    with pytest.raises(Conflict, match="has passed"):
        change(world, turn, deadline=deadline + timedelta(hours=9))


def test_the_same_work_is_not_queued_twice_in_a_group(world):
    first = world.submit(thread="a", group=Group.TASK, coalesce_key="k")
    world.submit(thread="b", group=Group.CHORE, coalesce_key="k")

    with pytest.raises(Conflict, match="a turn for the same work"):
        change(world, first, group=Group.CHORE)

    assert world.row("turns", id=first)["grp"] == "task"
    assert on_record(world) == []


def test_a_turn_outside_of_the_callers_space_is_not_there(world):
    turn = world.submit()

    with pytest.raises(NotFound, match="there is no turn"):
        change(world, turn, group=Group.CHORE, space="api.acme")
    with pytest.raises(NotFound, match="there is no turn"):
        change(world, "nowhere", group=Group.CHORE)


@pytest.mark.parametrize("before", [True, False])
def test_a_process_that_dies_at_the_commit_has_changed_all_or_nothing(world, before):
    turn = world.submit(group=Group.TASK)
    world.die_at, world.die_before = world.commits + 1, before
    with pytest.raises(Died):
        change(world, turn, group=Group.CHORE)
    world.revive()

    changed = 0 if before else 1
    assert world.row("turns", id=turn)["grp"] == ("task" if before else "chore")
    assert len(world.rows("journal", kind="TurnChanged")) == len(on_record(world)) == changed
    world.recover()
    assert world.row("turns", id=turn)["disposition"] == "answered"
