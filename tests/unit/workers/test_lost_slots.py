"""A slot that is taken while nothing runs in it is found, and one that is merely busy is not."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from chordage.orchestrator.system.user_code import ExitAttempted
from chordage.workers.pool import ThreadPool
from chordage.workers.stalled_consumer import LostSlots


def threads_running(*ids, size=2):
    return SimpleNamespace(running_ids=set(ids), num_processes=size)


def processes_running(*ids, alive=2, size=2):
    jobs = {number: SimpleNamespace(correlation_id=each) for number, each in enumerate(ids)}
    inner = SimpleNamespace(_pool=[object()] * alive, _cache=jobs)
    return SimpleNamespace(_pool=inner, num_processes=size)


@pytest.mark.parametrize("pool", [threads_running, processes_running])
def test_a_task_that_nothing_executes_has_lost_its_slot(pool):
    lost = LostSlots()

    assert [lost.seconds(pool("a"), ["a", "b"], now) for now in (10, 15, 45)] == [0, 5, 35]


@pytest.mark.parametrize("pool", [threads_running, processes_running])
def test_tasks_that_come_and_go_have_lost_nothing(pool):
    lost = LostSlots()

    assert [lost.seconds(pool(), [f"task {now}"], now) for now in (10, 15, 45)] == [0, 0, 0]


@pytest.mark.parametrize("pool", [threads_running, processes_running])
def test_a_task_that_waits_while_all_are_busy_has_lost_nothing(pool):
    lost = LostSlots()

    assert [lost.seconds(pool("a", "b"), ["a", "b", "c"], now) for now in (10, 60)] == [0, 0]


def test_a_process_that_is_not_replaced_is_a_lost_slot():
    lost = LostSlots()

    assert [lost.seconds(processes_running(alive=1), [], now) for now in (10, 60)] == [0, 50]
    assert lost.seconds(processes_running(alive=2), [], 70) == 0


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()])
def test_thread_asked_to_end_answers_for_its_task(error):
    pool = ThreadPool(limit=1)
    answers, answered = [], threading.Event()

    def answer(result):
        answers.append(result)
        answered.set()

    def leave():
        raise error

    pool.apply_async(leave, callback=answer, correlation_id="a")
    assert answered.wait(120)
    pool.apply_async(lambda: "next", callback=lambda _: None, correlation_id="b").wait(120)
    pool.on_stop()

    ((has_failed, info, _),) = answers
    assert has_failed
    assert isinstance(info.exception.exc if hasattr(info.exception, "exc") else info.exception, ExitAttempted)
    assert pool.running_ids == set()
