"""The heartbeat waits for no service, Redis included."""

from __future__ import annotations

import threading

from chordage.workers.timers import BackgroundCall
from support.waiting import until


def test_beat_does_not_wait_for_marks_and_leaves_out_those_that_come_meanwhile():
    going_on, done = threading.Event(), []
    aside = BackgroundCall()

    def slow():
        going_on.wait(20)
        done.append("first")

    aside(slow)
    aside(lambda: done.append("meanwhile"))
    assert done == []

    going_on.set()
    until(lambda: done == ["first"], "the first is done")
    until(lambda: not aside._thread.is_alive(), "its thread has ended")
    aside(lambda: done.append("next"))
    until(lambda: done == ["first", "next"], "the next is done")
