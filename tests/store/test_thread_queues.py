"""The line of a thread: whatever two connections do to it at once, its head is ready as soon as the thread is free."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import fairness, groups, runs, schema, steering, turns
from chordage.orchestrator.store.runs import RunClaim
from support.backlog import crowd
from support.race import race
from support.rows import NOW, a_run, admit, load_run, start

MOMENT = 0.3  # long enough for the other side to do all it can do, or to be stopped by a lock


def ready(store):
    """Queued turns that may start."""
    found = select(schema.turns.c.id).where(schema.turns.c.status == "queued", schema.turns.c.ready == 1)
    with store.read() as tx:
        return sorted(tx.execute(found).scalars())


def end(tx, store, run_id="r1", turn_id="a"):
    """As the decider ends a run: the run first, then its turn."""
    at = RunClaim(run=load_run(store, run_id), step=1, token=None)
    runs.finish(tx, at, NATURAL_END, usage=Usage(), now=NOW)
    turns.end(tx, turn_id, "t1", Group.CHAT, Disposition.ANSWERED, now=NOW)


def drop(tx, turn_id):
    """As a queued turn is cancelled, or expires."""
    assert turns.end_queued(tx, turn_id, Disposition.CANCELLED, NOW) is not None
    turns.make_next_ready(tx, "t1", NOW)


def overlapping(store, first, second):
    """`first` has done its work and not committed when `second` begins; both commit, in that order if they can."""
    with ThreadPoolExecutor(1) as pool:
        with store.write() as tx:
            first(tx)
            other = pool.submit(_in_its_own, store, second)
            with suppress(NotYet):
                other.result(MOMENT)
        other.result(20)


def _in_its_own(store, work):
    with store.write() as tx:
        work(tx)


def test_the_first_on_a_free_thread_is_ready_and_the_next_is_not(store):
    with store.write() as tx:
        admit(tx, "a")
        admit(tx, "b")

    assert ready(store) == ["a"]


def test_longest_waiting_turn_is_ready_when_the_run_ends(store):
    a_run(store)
    with store.write() as tx:
        admit(tx, "b")
        admit(tx, "c")
    assert ready(store) == []

    with store.write() as tx:
        end(tx, store)

    assert ready(store) == ["b"]


@pytest.mark.parametrize("order", ["ends first", "admits first"])
def test_a_turn_that_comes_while_the_run_ends_is_ready(order, store):
    a_run(store)
    works = [lambda tx: end(tx, store), lambda tx: admit(tx, "b")]

    overlapping(store, *(works if order == "ends first" else reversed(works)))

    assert ready(store) == ["b"]


@pytest.mark.parametrize("order", ["drops first", "admits first"])
def test_a_turn_that_comes_while_the_one_ahead_is_dropped_is_ready(order, store):
    with store.write() as tx:
        admit(tx, "a")
    works = [lambda tx: drop(tx, "a"), lambda tx: admit(tx, "b")]

    overlapping(store, *(works if order == "drops first" else reversed(works)))

    assert ready(store) == ["b"]


@pytest.mark.parametrize("order", ["drops first", "ends first"])
def test_the_third_is_ready_when_the_run_ends_while_the_second_is_dropped(order, store):
    a_run(store)
    with store.write() as tx:
        admit(tx, "b")
        admit(tx, "c")
    works = [lambda tx: drop(tx, "b"), lambda tx: end(tx, store)]

    overlapping(store, *(works if order == "drops first" else reversed(works)))

    assert ready(store) == ["c"]


@pytest.mark.parametrize("order", ["starts first", "admits first"])
def test_a_turn_that_comes_while_the_one_ahead_starts_waits_for_it(order, store):
    with store.write() as tx:
        admit(tx, "a")
    works = [lambda tx: start(tx, "a", "r1"), lambda tx: admit(tx, "b")]

    overlapping(store, *(works if order == "starts first" else reversed(works)))
    with store.read() as tx:
        assert fairness.next_turns(tx, Group.CHAT, NOW, 10) == []
    with store.write() as tx:
        end(tx, store)

    assert ready(store) == ["b"]


def test_a_line_moves_on_whatever_happens_at_once(store):
    """End, drops and arrivals at one barrier, again and again: a free thread always has a ready turn."""
    for number in range(10):
        thread = f"t{number}"
        a_run(store, f"r-{thread}", f"a-{thread}", thread)
        with store.write() as tx:
            for name in "bc":
                admit(tx, f"{name}-{thread}", thread)
        race(store, _doings(store, thread))
        found = select(schema.turns.c.ready).where(
            schema.turns.c.thread_id == thread, schema.turns.c.status == "queued"
        )
        with store.read() as tx:
            assert sum(tx.execute(found).scalars()) == 1, f"thread {thread}"


def _doings(store, thread):
    run = load_run(store, f"r-{thread}")

    def ending(tx):
        runs.finish(tx, RunClaim(run=run, step=1, token=None), NATURAL_END, usage=Usage(), now=NOW)
        turns.end(tx, f"a-{thread}", thread, Group.CHAT, Disposition.ANSWERED, now=NOW)

    def dropping(tx):
        turns.end_queued(tx, f"b-{thread}", Disposition.CANCELLED, NOW)
        turns.make_next_ready(tx, thread, NOW)

    return [ending, dropping, lambda tx: admit(tx, f"d-{thread}", thread)]


def test_a_turn_that_stepped_in_front_is_in_the_queue_of_its_group_as_any(store):
    with store.write() as tx:
        admit(tx, "a")
        steering.move_to_front(tx, "t1", "a")

        assert groups.is_full(tx, Group.CHAT, 1)
        assert groups.oldest_queued(tx, Group.CHAT) == "a"
        assert [row.number for row in groups.queued_by_tenant(tx, Group.CHAT, NOW)] == [1]
        listed = [turns.newest(tx, limit=5, status=TurnStatus.QUEUED, thread_id=t) for t in (None, "t1")]
        assert [[row.turn_id for row in rows] for rows in listed] == [["a"], ["a"]]


def test_no_more_turns_are_woken_than_requested(store):
    crowd(store, 300, threads=300, tenants=1, ready=2, not_before=NOW)

    with store.write() as tx:
        assert fairness.wake(tx, NOW, 100) == 100


BEHIND, READY, ASLEEP = 0, 1, 2
HOUR = timedelta(hours=1)
AFTER = NOW + timedelta(seconds=5)


@pytest.mark.parametrize(
    ("line", "stands_still"),
    [
        ([(BEHIND, NOW)], True),
        ([(BEHIND, AFTER + HOUR)], True),
        ([(READY, NOW), (BEHIND, NOW)], False),
        ([(BEHIND, NOW), (READY, NOW + HOUR)], False),
        ([(ASLEEP, NOW + HOUR), (BEHIND, NOW)], True),
        ([(ASLEEP, NOW), (BEHIND, NOW)], False),
        ([(ASLEEP, NOW), (BEHIND, NOW + HOUR)], False),
        ([(BEHIND, NOW + 2 * HOUR), (ASLEEP, NOW + HOUR), (BEHIND, NOW)], True),
    ],
)
def test_a_line_stands_still_if_no_turn_is_ready_and_none_sleeps_as_short(store, line, stands_still):
    with store.write() as tx:
        for n, (ready, due_at) in enumerate(line):
            admit(tx, f"turn{n}", due_at=due_at)
            tx.execute(update(schema.turns).where(schema.turns.c.id == f"turn{n}").values(ready=ready))

        assert turns.stranded(tx, AFTER, after="") == (["t1"] if stands_still else [], "")


def test_a_line_behind_a_run_or_just_begun_does_not_stand_still(store):
    a_run(store)
    with store.write() as tx:
        admit(tx, "behind a run")
        admit(tx, "just come", "t2", queued_at=AFTER)
        tx.execute(update(schema.turns).where(schema.turns.c.status == "queued").values(ready=BEHIND))

        assert turns.stranded(tx, AFTER, after="") == ([], "")


def test_every_line_is_looked_at_in_its_turn(store, monkeypatch):
    monkeypatch.setattr(turns, "LINES", 2)
    with store.write() as tx:
        for thread in ("a", "b", "c", "d", "e"):
            admit(tx, f"first of {thread}", thread)
            admit(tx, f"second of {thread}", thread)
        tx.execute(update(schema.turns).values(ready=BEHIND))
        looks, after = [], ""
        for _ in range(4):
            found, after = turns.stranded(tx, AFTER, after=after)
            looks.append(found)

    assert looks == [["a", "b"], ["c", "d"], ["e"], ["a", "b"]]
