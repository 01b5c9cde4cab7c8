"""Signed bytes are taken once within their window, whatever id they come under, and whatever else happens."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.arrivals import QueueBound
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Once, Origin, Sender, TurnRequest

DAY = 86_400


def delivery(key, digest="d1", *, thread=None, source="hook:a"):
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text="hi")
    return TurnRequest(message=message, source=source, dedupe_key=key, once=Once(digest=digest, seconds=DAY))


def admit(world, *given, **more):
    return stages.admit(world.runtime, delivery(*given, **more))[0]


@pytest.mark.parametrize("thread", [None, "t1"])
def test_a_copy_under_another_id_is_the_turn_that_is_there(world, thread):
    first = admit(world, "id-1", thread=thread)
    copy = admit(world, "id-2", thread=thread)

    assert (copy.turn_id, copy.duplicate) == (first.turn_id, True)
    assert len(world.rows("turns")) == len(world.rows("threads")) == 1
    assert world.row("threads")["arrivals"] == 1


def test_other_bytes_and_another_source_are_other_deliveries(world):
    found = [admit(world, "id-1"), admit(world, "id-2", "d2"), admit(world, "id-1", source="hook:b")]

    assert not any(one.duplicate for one in found)


def test_behind_the_window_the_same_bytes_are_a_new_delivery_and_count_again(world):
    admit(world, "id-1")
    world.clock.pass_by(DAY - 1)
    assert admit(world, "id-2").duplicate
    world.clock.pass_by(2)

    assert [admit(world, key).duplicate for key in ("id-3", "id-4")] == [False, True]


def test_what_is_refused_has_taken_nothing(world):
    object.__setattr__(world.runtime, "queue_bounds", {Group.CHAT: QueueBound(max_queued=0)})
    with pytest.raises(QueueFull):
        admit(world, "id-1")
    object.__setattr__(world.runtime, "queue_bounds", {})

    assert not admit(world, "id-2").duplicate


@pytest.mark.parametrize("thread", [None, "t1"])
def test_of_copies_in_one_transaction_the_first_is_taken(world, thread):
    requests = [delivery(f"id-{number}", f"d{number % 2}", thread=thread) for number in range(6)]
    results = stages.admit_all(world.runtime, requests)

    assert [isinstance(one, tuple) for one in results] == [True] * 6
    assert len({one[0].turn_id for one in results}) == 2
    assert len(world.rows("turns")) == 2


def test_a_process_that_dies_before_the_commit_has_taken_nothing(world):
    with pytest.raises(RuntimeError), world.store.write() as tx:
        from chordage.orchestrator.store import replays

        now = world.runtime.now()
        assert replays.take(tx, "hook:a", "d1", turn_id="t", until=now.replace(year=now.year + 1), now=now)
        raise RuntimeError

    assert not admit(world, "id-1").duplicate


def test_a_sweep_forgets_what_counts_no_more(world):
    admit(world, "id-1")
    world.clock.pass_by(DAY / 2)
    admit(world, "id-2", "d2")
    world.clock.pass_by(DAY / 2)
    world.sweep()

    assert [row["digest"] for row in world.rows("replays")] == ["d2"]
