"""The queue of a follower: bounded, and given up when it is full."""

from __future__ import annotations

import asyncio

import pytest

from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.loops import stream_topics
from chordage.orchestrator.loops.stream_topics import QUEUED_BYTES, QUEUED_EVENTS, Followed, SharedWork, TooSlow


def event(number: int = 0) -> RunEvent:
    return RunEvent(id=f"{number}-0", kind="model.replied")


def taken(followed: Followed, count: int) -> list[str | None]:
    async def take():
        return [(await asyncio.wait_for(followed.next(), 120)).id for _ in range(count)]

    return asyncio.run(take())


def test_events_come_in_their_order():
    followed = Followed()
    for number in range(3):
        followed.put(event(number), 10)
    assert taken(followed, 3) == ["0-0", "1-0", "2-0"]


def test_too_many_events_give_the_follower_up():
    followed = Followed()
    for number in range(QUEUED_EVENTS + 1):
        followed.put(event(number), 1)
    with pytest.raises(TooSlow):
        taken(followed, 1)


def test_too_many_bytes_give_the_follower_up():
    followed = Followed()
    followed.put(event(), QUEUED_BYTES)
    followed.put(event(), 1)
    with pytest.raises(TooSlow):
        taken(followed, 1)


def test_event_that_is_larger_than_the_queue_is_taken_where_nothing_waits():
    """It would be as large when the follower comes back."""
    followed = Followed()
    followed.put(event(7), 2 * QUEUED_BYTES)
    assert taken(followed, 1) == ["7-0"]


def test_what_was_taken_makes_room():
    followed = Followed()
    for number in range(3 * QUEUED_EVENTS):
        followed.put(event(number), QUEUED_BYTES // 2)
        assert taken(followed, 1) == [f"{number}-0"]


def test_one_that_is_given_up_takes_nothing_any_more():
    followed = Followed()
    followed.end(TooSlow())
    followed.put(event(), 1)
    with pytest.raises(TooSlow):
        taken(followed, 1)


def test_work_is_done_once_for_all_who_ask_before_it_begins():
    done: list[int] = []

    async def work():
        done.append(len(done))
        await asyncio.sleep(0)

    async def ask():
        shared = SharedWork(work)
        await asyncio.gather(*(shared.done() for _ in range(50)))
        first = shared.done()
        await asyncio.sleep(0)  # it begins
        await asyncio.gather(first, shared.done())

    asyncio.run(ask())
    assert len(done) == 3


def test_work_that_fails_fails_for_all_who_asked_and_for_no_other():
    failures = [ValueError("once")]

    async def work():
        if failures:
            raise failures.pop()

    async def ask():
        shared = SharedWork(work)
        outcomes = await asyncio.gather(shared.done(), shared.done(), return_exceptions=True)
        await shared.done()
        return outcomes

    assert [repr(outcome) for outcome in asyncio.run(ask())] == ["ValueError('once')"] * 2


def test_sizes_are_those_of_what_is_sent():
    delta = RunEvent(id=None, kind="live.delta", data={"text": "x" * 1000})
    assert 1000 < stream_topics._size(delta) < 1200
    reply = RunEvent(id="1-0", kind="model.replied", data={"text": "x" * 5000})
    assert 5000 < stream_topics._size(reply) < 5500
