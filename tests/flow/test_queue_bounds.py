"""Bounds of a group's queue: what is refused, what gives way, and that the count stops at the bound."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from support.fakes import spoken
from support.invariants import check_all
from support.world import Died, World


def bound(world: World, most: int, overflow: Overflow, group: Group = Group.CHAT) -> None:
    bounds = {**world.runtime.queue_bounds, group: QueueBound(max_queued=most, overflow=overflow)}
    object.__setattr__(world.runtime, "queue_bounds", bounds)


def queued(world: World) -> list[str]:
    return [row["text"] for row in sorted(world.rows("turns", status="queued"), key=lambda row: row["queued_at"])]


def submit(world: World, text: str, **more: object) -> str:
    world.clock.pass_by(0.001)
    return world.submit(text, **{"thread": text, **more})


def test_a_full_queue_refuses_and_stores_nothing(world: World) -> None:
    bound(world, 2, Overflow.REJECT)
    for text in "ab":
        submit(world, text)

    with pytest.raises(QueueFull, match=r"queue of group chat is full.*CHORDAGE_BOUNDS__CHAT__MAX_QUEUED"):
        submit(world, "c")

    assert queued(world) == ["a", "b"]
    assert len(world.rows("threads")) == 2


def test_a_refusal_comes_whole_out_of_a_celery_result(world: World) -> None:
    bound(world, 0, Overflow.REJECT)
    with pytest.raises(QueueFull) as refused:
        submit(world, "a")

    again = pickle.loads(pickle.dumps(refused.value))

    assert (str(again), again.retry_after) == (str(refused.value), 5.0)


def test_what_runs_does_not_count_and_room_that_becomes_free_is_used(world: World) -> None:
    bound(world, 1, Overflow.REJECT)
    submit(world, "a")
    assert stages.dispatch(world.runtime, Group.CHAT)

    submit(world, "b")

    assert queued(world) == ["b"]


def test_another_group_and_a_known_dedupe_key_are_not_refused(world: World) -> None:
    bound(world, 1, Overflow.REJECT)
    first = submit(world, "a", dedupe_key="k")

    assert submit(world, "a", dedupe_key="k") == first
    submit(world, "b", group=Group.TASK)
    assert queued(world) == ["a", "b"]


def test_oldest_turn_is_dropped_and_names_its_successor(world: World) -> None:
    bound(world, 2, Overflow.DROP_OLDEST)
    first = submit(world, "a", reply_target={"channel": "tg", "to": "x"})
    submit(world, "b")
    newest = submit(world, "c")

    dropped = world.row("turns", id=first)
    assert (dropped["status"], dropped["disposition"]) == ("done", "superseded")
    assert newest in dropped["detail"]
    assert newest in views.turn(world.store, first).fate
    assert queued(world) == ["b", "c"]
    assert world.rows("outbox", turn_id=first)
    assert first in world.events.done


def test_turns_behind_the_dropped_one_move_up(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    bound(world, 2, Overflow.DROP_OLDEST)
    submit(world, "a", thread="t")
    second = submit(world, "b", thread="t")
    assert world.row("turns", id=second)["ready"] == 0

    submit(world, "c")

    assert world.row("turns", id=second)["ready"] == 1
    world.run_dry()
    assert world.unfinished() == []
    check_all(world.store)


def test_the_newest_of_the_same_thread_is_replaced(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    bound(world, 3, Overflow.REPLACE_PENDING)
    submit(world, "a", thread="t")
    replaced = submit(world, "b", thread="t")
    submit(world, "other")
    newest = submit(world, "c", thread="t")

    assert world.row("turns", id=replaced)["disposition"] == "superseded"
    assert newest in world.row("turns", id=replaced)["detail"]
    assert queued(world) == ["a", "other", "c"]
    world.run_dry()
    assert world.unfinished() == []


def test_the_only_one_of_a_free_thread_is_replaced_and_the_new_one_is_ready(world: World) -> None:
    bound(world, 1, Overflow.REPLACE_PENDING)
    submit(world, "a", thread="t")

    newest = submit(world, "b", thread="t")

    assert world.row("turns", id=newest)["ready"] == 1
    assert queued(world) == ["b"]


def test_where_the_thread_has_nothing_queued_the_message_is_refused(world: World) -> None:
    bound(world, 1, Overflow.REPLACE_PENDING)
    submit(world, "a", thread="t")

    with pytest.raises(QueueFull):
        submit(world, "b", thread="another")


def test_a_group_without_a_bound_sends_no_statement_more(world: World) -> None:
    def statements(text: str) -> int:
        before = world.statements
        submit(world, text)
        return world.statements - before

    submit(world, "first")
    without = statements("a")
    bound(world, 100, Overflow.REJECT, Group.TASK)
    of_another_group = statements("b")
    bound(world, 100, Overflow.REJECT)
    with_room = statements("c")

    assert (of_another_group, with_room) == (without, without + 2)


@pytest.mark.parametrize("overflow", list(Overflow))
def test_however_many_come_at_once_the_bound_holds(world: World, overflow: Overflow) -> None:
    """Each message holds its own line and may drop from another's: there is no deadlock."""
    for group in (Group.CHAT, Group.TASK):
        bound(world, 5, overflow, group)

    def come(n: int) -> bool:
        try:
            group = Group.TASK if n % 2 else Group.CHAT
            world.submit(f"m{n}", thread=f"t{n % 7}", group=group)
        except QueueFull:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(come, range(60)))

    of_group = [sum(row["grp"] == name for row in world.rows("turns", status="queued")) for name in ("chat", "task")]
    assert max(of_group) <= 5
    assert sum(taken) == len(world.rows("turns"))
    world.models.script = lambda prompt: spoken("ok")
    world.recover()
    check_all(world.store)


def test_process_that_dies_before_the_commit_has_dropped_no_turn(world: World) -> None:
    bound(world, 1, Overflow.DROP_OLDEST)
    first = submit(world, "a")
    world.die_at, world.die_before = world.commits + 1, True

    with pytest.raises(Died):
        submit(world, "b")

    world.die_at = None
    world.revive()
    assert world.row("turns", id=first)["status"] == "queued"
    assert queued(world) == ["a"]


def test_a_message_that_takes_the_place_of_the_same_work_needs_no_room(world: World) -> None:
    bound(world, 1, Overflow.REJECT)
    older = submit(world, "a", coalesce_key="k")

    submit(world, "b", coalesce_key="k")

    assert world.row("turns", id=older)["disposition"] == "merged"
    assert queued(world) == ["b"]


@pytest.mark.parametrize("overflow", list(Overflow))
def test_the_same_work_is_replaced_also_where_more_are_queued_than_the_bound_allows(world: World, overflow) -> None:
    """A bound was made smaller, or sub-agents, which are never refused, have filled the queue."""
    for text in "abc":
        submit(world, text, coalesce_key=f"key of {text}")
    bound(world, 1, overflow)

    submit(world, "b", coalesce_key="key of b")

    assert queued(world) == ["a", "c", "b"]
    assert [row["disposition"] for row in world.rows("turns", status="done")] == ["merged"]
