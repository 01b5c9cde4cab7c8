"""What a child holds is read by its parent, whatever the child is doing, and for as long as it is there."""

from __future__ import annotations

import os
import threading
import time

import pytest

from chordage.orchestrator.gateways.in_flight import InFlight, InFlightWork
from chordage.orchestrator.gateways.pool_memory import SLOTS, PoolChild, PoolMemory, PoolParent

CHILD = 4711


def worker_of(pid):
    return f"host:{pid}"


@pytest.fixture
def memory():
    return PoolMemory()


@pytest.fixture
def held(memory):
    found = InFlight()
    found.watched_by(PoolChild(memory, 0, CHILD).changed)
    return found


def some_work(call_id="c1", **more):
    return InFlightWork(run_id="r1", epoch=2, call_id=call_id, thread_id="t1", token="k", **more)


def test_the_parent_sees_what_a_child_holds_while_it_holds_it(memory, held):
    parent = PoolParent(memory)
    with held.tracking(some_work(behind=["c2", "c3"])):
        (work,) = parent.works({CHILD}, worker_of)
        assert (work.run_id, work.epoch, work.call_id, work.token) == ("r1", 2, "c1", "k")
        assert (work.behind, work.worker) == (["c2", "c3"], "host:4711")
        assert parent.holder(work) == CHILD
    assert parent.works({CHILD}, worker_of) == []
    assert parent.holder(work) is None


def test_a_child_that_is_gone_holds_nothing(memory, held):
    parent = PoolParent(memory)
    with held.tracking(some_work()):
        assert parent.works({CHILD}, worker_of)
        assert parent.works(set(), worker_of) == []


def test_the_same_work_stays_the_same_work_from_look_to_look(memory, held):
    parent = PoolParent(memory)
    with held.tracking(some_work()):
        (first,) = parent.works({CHILD}, worker_of)
        first.renewed()
        (again,) = parent.works({CHILD}, worker_of)
        assert again is first


def test_where_a_child_stopped_in_the_middle_of_writing_what_it_held_before_counts(memory, held):
    parent = PoolParent(memory)
    with held.tracking(some_work()):
        parent.works({CHILD}, worker_of)
        memory._memory[40:44] = b"torn"
        (work,) = parent.works({CHILD}, worker_of)
        assert work.call_id == "c1"


def test_a_beat_of_the_parent_is_known_to_its_child(memory, held):
    parent, child = PoolParent(memory), PoolChild(memory, 0, CHILD)
    held.watched_by(child.changed)
    mine = some_work()
    with held.tracking(mine):
        child.read_beats([mine])
        assert mine.beaten is None
        (theirs,) = parent.works({CHILD}, worker_of)
        theirs.renewed()
        parent.write_beats()
        child.read_beats([mine])
        assert mine.beaten == theirs.beaten
        assert not mine.is_due(first=0, every=60)


def test_a_beat_for_work_before_it_counts_for_nothing_that_came_since(memory):
    child = PoolChild(memory, 0, CHILD)
    memory.write_beat(0, time.monotonic() - 5)
    new = some_work()
    child.read_beats([new])
    assert new.beaten is None


def test_too_long_a_batch_is_noted_without_its_waiting_calls(memory, held):
    parent = PoolParent(memory)
    with held.tracking(some_work(behind=[f"call-{n}" for n in range(20_000)])):
        (work,) = parent.works({CHILD}, worker_of)
    assert (work.call_id, work.behind) == ("c1", [])


def test_each_slot_is_its_own(memory):
    for slot in (0, 1, SLOTS - 1):
        PoolChild(memory, slot, CHILD + slot).changed([some_work(f"c{slot}")])
    works = PoolParent(memory).works({CHILD, CHILD + 1, CHILD + SLOTS - 1}, worker_of)
    assert {work.call_id for work in works} == {"c0", "c1", f"c{SLOTS - 1}"}


def test_the_memory_is_shared_with_a_forked_child(memory):
    pid = os.fork()
    if pid == 0:
        PoolChild(memory, 3, os.getpid()).changed([some_work()])
        os._exit(0)
    os.waitpid(pid, 0)
    (work,) = PoolParent(memory).works({pid}, worker_of)
    assert work.call_id == "c1"


def test_what_is_read_while_it_is_written_is_whole(memory):
    over = threading.Event()
    child, parent = PoolChild(memory, 0, CHILD), PoolParent(memory)

    def change():
        while not over.is_set():
            child.changed([some_work("short")])
            child.changed([some_work("long" * 50, behind=["x" * 30] * 50)])

    writer = threading.Thread(target=change)
    writer.start()
    try:
        seen = {work.call_id for _ in range(300) for work in parent.works({CHILD}, worker_of)}
    finally:
        over.set()
        writer.join()
    assert seen <= {"short", "long" * 50}
