"""What a child holds is read by its parent, whatever the child is doing, and for as long as it is there."""

from __future__ import annotations

import os
import threading
import time

import pytest

from chordage.orchestrator.gateways.in_flight import InFlight, InFlightWork
from chordage.orchestrator.gateways.shared_hands import PLACES, OfChildren, OfThisChild, SharedHands

CHILD = 4711


def worker_of(pid):
    return f"host:{pid}"


@pytest.fixture
def shared():
    return SharedHands()


@pytest.fixture
def held(shared):
    found = InFlight()
    found.watched_by(OfThisChild(shared, 0, CHILD).changed)
    return found


def a_hand(call_id="c1", **more):
    return InFlightWork(run_id="r1", epoch=2, call_id=call_id, thread_id="t1", token="k", **more)


def test_the_parent_sees_what_a_child_holds_while_it_holds_it(shared, held):
    parent = OfChildren(shared)
    with held.tracking(a_hand(behind=["c2", "c3"])):
        (hand,) = parent.hands({CHILD}, worker_of)
        assert (hand.run_id, hand.epoch, hand.call_id, hand.token) == ("r1", 2, "c1", "k")
        assert (hand.behind, hand.worker) == (["c2", "c3"], "host:4711")
        assert parent.holder(hand) == CHILD
    assert parent.hands({CHILD}, worker_of) == []
    assert parent.holder(hand) is None


def test_a_child_that_is_gone_holds_nothing(shared, held):
    parent = OfChildren(shared)
    with held.tracking(a_hand()):
        assert parent.hands({CHILD}, worker_of)
        assert parent.hands(set(), worker_of) == []


def test_the_same_work_stays_the_same_hand_from_look_to_look(shared, held):
    parent = OfChildren(shared)
    with held.tracking(a_hand()):
        (first,) = parent.hands({CHILD}, worker_of)
        first.renewed()
        (again,) = parent.hands({CHILD}, worker_of)
        assert again is first


def test_where_a_child_stopped_in_the_middle_of_writing_what_it_held_before_counts(shared, held):
    parent = OfChildren(shared)
    with held.tracking(a_hand()):
        parent.hands({CHILD}, worker_of)
        shared._memory[40:44] = b"torn"
        (hand,) = parent.hands({CHILD}, worker_of)
        assert hand.call_id == "c1"


def test_a_beat_of_the_parent_is_known_to_its_child(shared, held):
    parent, child = OfChildren(shared), OfThisChild(shared, 0, CHILD)
    held.watched_by(child.changed)
    mine = a_hand()
    with held.tracking(mine):
        child.note_beats_of_the_parent([mine])
        assert mine.beaten is None
        (theirs,) = parent.hands({CHILD}, worker_of)
        theirs.renewed()
        parent.note_beats()
        child.note_beats_of_the_parent([mine])
        assert mine.beaten == theirs.beaten
        assert not mine.is_due(first=0, every=60)


def test_a_beat_for_work_before_it_counts_for_nothing_that_came_since(shared):
    child = OfThisChild(shared, 0, CHILD)
    shared.note_beat(0, time.monotonic() - 5)
    new = a_hand()
    child.note_beats_of_the_parent([new])
    assert new.beaten is None


def test_a_batch_too_long_to_be_written_down_is_written_without_those_that_wait(shared, held):
    parent = OfChildren(shared)
    with held.tracking(a_hand(behind=[f"call-{n}" for n in range(20_000)])):
        (hand,) = parent.hands({CHILD}, worker_of)
    assert (hand.call_id, hand.behind) == ("c1", [])


def test_each_place_is_its_own(shared):
    for place in (0, 1, PLACES - 1):
        OfThisChild(shared, place, CHILD + place).changed([a_hand(f"c{place}")])
    hands = OfChildren(shared).hands({CHILD, CHILD + 1, CHILD + PLACES - 1}, worker_of)
    assert {hand.call_id for hand in hands} == {"c0", "c1", f"c{PLACES - 1}"}


def test_the_memory_is_shared_with_a_forked_child(shared):
    pid = os.fork()
    if pid == 0:
        OfThisChild(shared, 3, os.getpid()).changed([a_hand()])
        os._exit(0)
    os.waitpid(pid, 0)
    (hand,) = OfChildren(shared).hands({pid}, worker_of)
    assert hand.call_id == "c1"


def test_what_is_read_while_it_is_written_is_whole(shared):
    over = threading.Event()
    child, parent = OfThisChild(shared, 0, CHILD), OfChildren(shared)

    def change():
        while not over.is_set():
            child.changed([a_hand("short")])
            child.changed([a_hand("long" * 50, behind=["x" * 30] * 50)])

    writer = threading.Thread(target=change)
    writer.start()
    try:
        seen = {hand.call_id for _ in range(300) for hand in parent.hands({CHILD}, worker_of)}
    finally:
        over.set()
        writer.join()
    assert seen <= {"short", "long" * 50}
