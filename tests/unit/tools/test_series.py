"""Several calls one after the other in one side thread, and the one that overstays."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from types import SimpleNamespace

import pytest

from chordage import Context, tool
from chordage.orchestrator.core.errors import Aborted
from support.waiting import PATIENCE as PATIENT
from support.waiting import until
from tests.unit.tools.conftest import AGENT


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def begin(bench, function, *numbers):
    return bench.box(function).begin(AGENT, [bench.order(function, number=number) for number in numbers])


def contents(outcomes):
    return [None if outcome is None else outcome.content for outcome in outcomes]


def test_calls_run_one_after_the_other_in_one_thread(bench):
    threads = []

    @tool
    def square(number: int) -> int:
        threads.append(threading.get_ident())
        return number * number

    series = begin(bench, square, 2, 3, 4)
    outcomes = series.wait(PATIENT)

    assert contents(outcomes) == ["4", "9", "16"]
    assert all(outcome.seconds > 0 for outcome in outcomes)
    assert series.under_way is None
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_side_thread_is_kept_for_the_next_series(bench):
    @tool
    def where(number: int) -> int:
        return threading.get_ident()

    box = bench.box(where)
    first, second = (box.begin(AGENT, [bench.order(where, number=1)]).wait(PATIENT) for _ in range(2))

    assert contents(first) == contents(second)


def test_coroutines_and_failures_are_outcomes_like_any_other(bench):
    @tool
    async def maybe(number: int) -> int:
        await asyncio.sleep(0)
        if number == 2:
            raise ValueError("not two")
        if number == 3:
            raise SystemExit(3)
        return number

    outcomes = begin(bench, maybe, 1, 2, 3, 4).wait(PATIENT)

    assert [outcome.ok for outcome in outcomes] == [True, False, False, True]
    assert "not two" in outcomes[1].content


def test_arguments_that_do_not_fit_are_an_outcome_and_nothing_runs(bench):
    ran = []

    @tool
    def square(number: int) -> int:
        ran.append(number)
        return number * number

    outcomes = begin(bench, square, 2, "two", 4).wait(PATIENT)

    assert [outcome.code for outcome in outcomes] == [None, "invalid_arguments", None]
    assert ran == [2, 4]


def test_failure_that_another_attempt_may_mend_is_no_outcome(bench):
    @tool(retries=1, retry_on=ConnectionError)
    def fetch(number: int) -> int:
        if number == 1:
            raise ConnectionError("away")
        if number == 2:
            raise ValueError("wrong")
        return number

    outcomes = begin(bench, fetch, 1, 2, 3).wait(PATIENT)

    assert [outcome and outcome.ok for outcome in outcomes] == [None, False, True]


def test_call_that_overstays_stops_those_behind_it_and_is_waited_for(bench, gate):
    begun = []

    @tool
    def slow(number: int, ctx: Context) -> int:
        begun.append(number)
        if number == 2:
            ctx.progress("waiting")
            gate.wait(PATIENT)
        return number

    series = begin(bench, slow, 1, 2, 3)
    until(lambda: begun == [1, 2], "the first is over, and the second has begun")
    outcomes = series.wait(0.1)

    assert contents(outcomes) == ["1", None, None]
    assert series.under_way == 1
    gate.set()
    assert series.finish(abort=bench.calm, on_progress=bench.notes.append).content == "2"
    assert bench.notes == ["waiting"]
    assert begun == [1, 2]


def test_no_call_begins_once_nobody_waits_for_it(bench):
    """The side thread gets its turn on the processor only after the bound."""
    jobs, ran = [], []

    class Late:
        def take(self):
            return SimpleNamespace(submit=jobs.append)

        def give_back(self, side): ...

    @tool
    def note(number: int) -> None:
        ran.append(number)

    box = bench.box(note)
    box._sides = Late()
    series = box.begin(AGENT, [bench.order(note, number=1)])
    assert series.wait(0) == [None]
    jobs.pop()()

    assert series.under_way is None
    assert ran == []


def test_call_that_overstays_has_its_timeout(bench, gate):
    begun, cancelled = threading.Event(), []

    @tool(timeout=0.2)
    def hangs(number: int, ctx: Context) -> None:
        begun.set()
        gate.wait(PATIENT)
        cancelled.append(ctx.cancelled)

    series = begin(bench, hangs, 1)
    assert begun.wait(PATIENT)
    series.wait(0.01)
    outcome = series.finish(abort=bench.calm, on_progress=bench.notes.append)
    gate.set()

    assert outcome.code == "timeout"
    until(lambda: cancelled == [True], "the function sees that it was given up")


def test_call_that_overstays_can_be_cancelled(bench, gate):
    class Cancelled:
        def check(self):
            raise Aborted

    begun, seen = threading.Event(), threading.Event()

    @tool
    async def waits(number: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENT)
        finally:
            seen.set()

    series = begin(bench, waits, 1)
    assert begun.wait(PATIENT)
    series.wait(0.05)
    with pytest.raises(Aborted):
        series.finish(abort=Cancelled(), on_progress=bench.notes.append)

    assert seen.wait(PATIENT)


def test_each_call_has_the_context_variables_of_who_began_it(bench):
    tenant = contextvars.ContextVar("tenant", default="none")

    @tool
    def whose(number: int) -> str:
        found = tenant.get()
        tenant.set(f"call {number}")
        return found

    tenant.set("acme")

    assert contents(begin(bench, whose, 1, 2).wait(PATIENT)) == ["acme", "acme"]
