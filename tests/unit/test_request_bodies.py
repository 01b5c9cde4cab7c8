"""Bodies on their way in: how large, how long, how many at once, and who pays when it is too much."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from chordage.orchestrator.loops.server import BodyBroken, BodyCrowdedOut, BodyTooLarge, BodyTooSlow, RequestBodies

ENOUGH = 1000


def event(body=b"", *, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


class Sender:
    """What a client sends, piece by piece; `send` from outside."""

    def __init__(self, *events):
        self._events = asyncio.Queue()
        for one in events:
            self.send(one)

    async def receive(self):
        return await self._events.get()

    def send(self, one):
        self._events.put_nowait(one)


class Read:
    """A body that is read beside the test."""

    def __init__(self, bodies, sender, tasks, limit=ENOUGH, **headers):
        self.outcome = None
        tasks.start_soon(self._read, bodies, sender, limit, headers)

    async def _read(self, bodies, sender, limit, headers):
        try:
            self.outcome = await bodies.read(headers, sender.receive, limit)
        except Exception as error:
            self.outcome = type(error)


def run(test):
    async def bounded():
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                await test(tasks)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()

    anyio.run(bounded)


READ = {
    "whole": ([event(b"abc")], b"abc"),
    "in pieces": ([event(b"a", more=True), event(b"", more=True), event(b"bc")], b"abc"),
    "none": ([event()], b""),
    "too much": ([event(b"x" * 600, more=True), event(b"x" * 401)], BodyTooLarge),
    "as much as may be": ([event(b"x" * 600, more=True), event(b"x" * 400)], b"x" * 1000),
    "broken off": ([event(b"a", more=True), {"type": "http.disconnect"}], BodyBroken),
}


@pytest.mark.parametrize(("events", "outcome"), READ.values(), ids=READ)
def test_a_body_is_read_as_far_as_it_may_go(events, outcome):
    async def test(tasks):
        bodies = RequestBodies()
        for _ in range(3):
            read = Read(bodies, Sender(*events), tasks)
            await anyio.wait_all_tasks_blocked()
            assert read.outcome == outcome
        assert (bodies._bytes, len(bodies._incoming)) == (0, 0), "nothing of it is kept"

    run(test)


def test_what_announces_too_much_is_not_read():
    async def test(tasks):
        read = Read(RequestBodies(), Sender(), tasks, **{"content-length": "1001"})
        await anyio.wait_all_tasks_blocked()
        assert read.outcome is BodyTooLarge

    run(test)


def test_the_time_is_that_of_the_whole_body_and_not_of_a_piece():
    async def test(tasks):
        bodies, sender = RequestBodies(seconds=0.3), Sender()
        read = Read(bodies, sender, tasks)
        began = anyio.current_time()
        while read.outcome is None:
            sender.send(event(b"x", more=True))
            await anyio.sleep(0.02)
        assert read.outcome is BodyTooSlow
        assert anyio.current_time() - began < 60, "its pieces have no end"
        assert bodies._bytes == 0

    run(test)


def test_when_too_many_come_the_first_one_is_dropped():
    async def test(tasks):
        bodies, slow = RequestBodies(at_once=3), [Sender(event(b"x", more=True)) for _ in range(3)]
        waiting = []
        for sender in slow:
            waiting.append(Read(bodies, sender, tasks))
            await anyio.wait_all_tasks_blocked()
        quick = [Read(bodies, Sender(event(b"abc")), tasks) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()

        assert [one.outcome for one in quick] == [b"abc"] * 2
        assert waiting[0].outcome is BodyCrowdedOut
        slow[2].send(event(b"y"))
        await anyio.wait_all_tasks_blocked()
        assert waiting[2].outcome == b"xy"

    run(test)


def test_when_they_hold_too_much_the_first_one_is_dropped():
    async def test(tasks):
        bodies = RequestBodies(bytes_at_once=1500)
        first, second = (Sender(event(b"x" * 700, more=True)) for _ in range(2))
        reads = []
        for sender in (first, second):
            reads.append(Read(bodies, sender, tasks))
            await anyio.wait_all_tasks_blocked()
        assert [one.outcome for one in reads] == [None, None]
        quick = Read(bodies, Sender(event(b"x" * 200)), tasks)
        await anyio.wait_all_tasks_blocked()

        assert (reads[0].outcome, reads[1].outcome, quick.outcome) == (BodyCrowdedOut, None, b"x" * 200)
        assert bodies._bytes == 700

    run(test)


def test_single_body_that_is_too_large_is_dropped_itself():
    async def test(tasks):
        read = Read(RequestBodies(bytes_at_once=100), Sender(event(b"x" * 101, more=True)), tasks)
        while read.outcome is None:
            await anyio.lowlevel.checkpoint()
        assert read.outcome is BodyCrowdedOut

    run(test)
