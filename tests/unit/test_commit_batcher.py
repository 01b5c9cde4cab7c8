"""What is asked for at the same moment is done at once, and each gets what is his."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.orchestrator.loops.hook import CommitBatcher
from support.waiting import until


def nothing(results):
    """Afterwards there is nothing to do."""


def test_alone_one_is_served_at_once():
    asked = []
    batcher = CommitBatcher(lambda line: [asked.append(list(line)) or one * 2 for one in line], nothing)

    assert [batcher(1), batcher(2)] == [2, 4]
    assert asked == [[1], [2]]


def test_requests_that_arrive_during_a_commit_share_the_next():
    gate, lines = threading.Event(), []

    def work(line):
        lines.append(sorted(line))
        assert gate.wait(120)
        return [one * 2 for one in line]

    batcher = CommitBatcher(work, nothing, batch_max=3)
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(batcher, 0)
        until(lambda: lines == [[0]], "the first is being served")
        others = [threads.submit(batcher, number) for number in range(1, 5)]
        until(lambda: len(batcher._queue) == 4, "the others stand in line")
        gate.set()
        results = [one.result(120) for one in (first, *others)]

    assert results == [0, 2, 4, 6, 8]
    assert [len(line) for line in lines] == [1, 3, 1]


def test_an_exception_is_raised_for_whom_it_is():
    batcher = CommitBatcher(lambda line: [ValueError("three") if one == 3 else one for one in line], nothing)

    assert batcher(1) == 1
    with pytest.raises(ValueError, match="three"):
        batcher(3)


def test_failing_work_leaves_no_caller_waiting():
    batcher = CommitBatcher(lambda line: 1 / 0, nothing)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            batcher(1)


def test_afterwards_is_done_when_the_next_may_lead():
    seen = []
    batcher = CommitBatcher(
        lambda line: line, lambda results: seen.append((list(results), batcher._work_lock.locked()))
    )

    batcher(1)

    assert seen == [([1], False)]
