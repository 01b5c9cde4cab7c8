"""How a call is carried out: what it knows, what it raises, how often it is tried, and how its time is bounded."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from contextvars import ContextVar

import pytest

from chordage import Context, Suspend, tool
from chordage.orchestrator.core.approvals import ResumeMode
from chordage.orchestrator.core.errors import Aborted, HandedOver
from chordage.orchestrator.gateways.tools.attempt import Reports, ToolAttempt, nothing_around
from chordage.orchestrator.system.user_code import SideThreads
from support.waiting import PATIENCE

REQUEST = ContextVar("REQUEST", default="none")


class AbortOn:
    """Raises at the given check, counted from 1, or in the first wait."""

    def __init__(self, check=0, error=Aborted):
        self.left = check
        self.error = error

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise self.error

    def wait(self, seconds):
        raise self.error


@tool
def quick(word: str) -> str:
    return word


def test_sync_and_async_functions_return_their_results(bench):
    @tool
    async def slow(word: str) -> str:
        await asyncio.sleep(0)
        return word

    assert bench.call(quick, word="a").content == "a"
    assert bench.call(slow, word="b").content == "b"


def test_B45_context_describes_the_call(bench):
    @tool
    def whoami(ctx: Context) -> list:
        return [ctx.run_id, ctx.thread_id, ctx.call_id, ctx.idempotency_key, ctx.attempt, ctx.cancelled]

    assert bench.call(whoami).content == '["run-1","thread-1","call-1","key-1",1,false]'


def test_context_variables_come_along_and_do_not_leak_back(bench):
    @tool
    def peek() -> str:
        seen = REQUEST.get()
        REQUEST.set("changed")
        return seen

    token = REQUEST.set("mine")
    assert bench.call(peek).content == "mine"
    assert REQUEST.get() == "mine"
    REQUEST.reset(token)


def test_an_exception_is_an_outcome_without_a_traceback_and_the_log_has_it(bench, caplog):
    @tool
    def fail() -> None:
        raise LookupError("no such book")

    outcome = bench.call(fail)
    assert (outcome.code, outcome.content) == ("raised", "ToolError: LookupError: no such book")
    assert "Traceback" in caplog.text
    assert "tool fail (" in caplog.text


def test_exception_without_text_or_with_too_much_is_reported_all_the_same(bench):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    @tool
    def fail(how: str) -> None:
        raise {"bare": KeyError(), "long": ValueError("x" * 9999), "mute": Mute()}[how]

    assert bench.call(fail, how="bare").content == "ToolError: KeyError"
    assert len(bench.call(fail, how="long").content) < 4100
    assert bench.call(fail, how="mute").content == "ToolError: Mute: (its text cannot be read: RuntimeError)"


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_a_tool_that_would_end_the_process_has_failed(bench, leaving):
    @tool
    def leave() -> None:
        raise leaving(2)

    @tool
    async def leave_async() -> None:
        raise leaving(2)

    for function in (leave, leave_async):
        outcome = bench.call(function)
        assert outcome.code == "raised"
        assert f"{function.__name__} tried to end its process with {leaving.__name__}(2)" in outcome.content


def test_arguments_that_argparse_does_not_know_are_an_error_of_the_tool(bench):
    @tool
    def parse(line: str) -> str:
        parser = argparse.ArgumentParser()
        parser.add_argument("--count", type=int)
        return str(parser.parse_args(line.split()).count)

    assert bench.call(parse, line="--count 3").content == "3"
    assert bench.call(parse, line="--no-such-thing").code == "raised"


def test_a_coroutine_that_cancels_itself_is_an_outcome(bench):
    @tool
    async def confused() -> None:
        raise asyncio.CancelledError

    assert bench.call(confused).content == "ToolError: CancelledError"


def test_tool_that_suspends_itself_asks_and_is_not_tried_again(bench):
    @tool
    def ask(ctx: Context) -> str:
        ctx.suspend("May I?", expires_in=60)

    @tool(retries=3)
    async def ask_async() -> str:
        raise Suspend("May I?", resume_mode="use_decision_as_tool_result")

    first, second = bench.call(ask), bench.call(ask_async)

    assert (first.question.prompt, first.question.expires_in) == ("May I?", 60)
    assert (second.question.resume_mode, bench.calm.waited) == (ResumeMode.USE_AS_RESULT, [])


def test_a_declared_exception_is_tried_again_with_growing_pauses(bench):
    attempts = []

    @tool(retries=3, retry_on=OSError)
    def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) < 4:
            raise ConnectionError
        return "at last"

    outcome = bench.call(flaky)
    assert outcome.content == "at last"
    assert attempts == [1, 2, 3, 4]
    for pause, most in zip(bench.calm.waited, [0.5, 1.0, 2.0], strict=True):
        assert most / 2 <= pause <= most


def test_other_exceptions_are_not_tried_again(bench):
    @tool(retries=3, retry_on=OSError)
    def broken() -> str:
        raise ValueError("no")

    assert bench.call(broken).code == "raised"
    assert bench.calm.waited == []


def test_tries_end_and_the_last_error_is_reported(bench):
    @tool(retries=2)
    def broken() -> str:
        raise ValueError("no")

    outcome = bench.call(broken)
    assert (outcome.code, outcome.content) == ("raised", "ToolError: ValueError: no")
    assert len(bench.calm.waited) == 2


def test_cancelling_ends_the_pause_between_two_tries(bench):
    @tool(retries=2)
    def broken() -> str:
        raise ValueError

    with pytest.raises(HandedOver):
        bench.call(broken, abort=AbortOn(error=HandedOver))


def test_a_call_that_is_cancelled_already_does_not_start(bench):
    started = threading.Event()

    @tool
    def start() -> None:
        started.set()

    with pytest.raises(Aborted):
        bench.call(start, abort=AbortOn(check=1))
    assert not started.is_set()


def test_function_over_its_time_is_abandoned_and_reported(bench):
    told = threading.Event()

    @tool(timeout=0.1)
    def endless(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        ctx.progress("nobody hears this")
        told.set()

    outcome = bench.call(endless)
    assert outcome.code == "timeout"
    assert "endless did not finish within 0.1 s" in outcome.content
    assert told.wait(PATIENCE)
    assert bench.call(quick, word="next").content == "next"


def test_a_timeout_is_never_tried_again(bench):
    @tool(timeout=0.1, retries=5)
    async def endless() -> None:
        await asyncio.sleep(60)

    assert bench.call(endless).code == "timeout"
    assert bench.calm.waited == []


def test_the_tools_own_timeout_error_is_an_exception_like_any_other(bench):
    @tool(retries=1, retry_on=TimeoutError)
    def impatient() -> None:
        raise TimeoutError("the shop is closed")

    outcome = bench.call(impatient)
    assert (outcome.code, len(bench.calm.waited)) == ("raised", 1)


def test_a_coroutine_over_its_time_is_cancelled_and_cleans_up(bench):
    cleaned = threading.Event()

    @tool(timeout=1)
    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    assert bench.call(endless).code == "timeout"
    assert cleaned.is_set()


def test_a_coroutine_that_blocks_or_refuses_to_end_is_left(bench, monkeypatch):
    monkeypatch.setattr("chordage.orchestrator.gateways.tools.attempt.CLEAN_UP_SECONDS", 0.1)
    release = threading.Event()

    @tool(timeout=0.1)
    async def blocking() -> None:
        release.wait(PATIENCE)

    assert bench.call(blocking).code == "timeout"
    release.set()


def test_cancelling_leaves_a_function_that_is_running(bench):
    told = threading.Event()

    @tool
    def endless(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        told.set()

    with pytest.raises(Aborted):
        bench.call(endless, abort=AbortOn(check=2))
    assert told.wait(PATIENCE)


def test_cancelling_cancels_a_coroutine_that_is_running(bench):
    cleaned = threading.Event()

    @tool
    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    with pytest.raises(Aborted):
        bench.call(endless, abort=AbortOn(check=2))
    assert cleaned.is_set()


def test_a_note_in_between_does_not_shorten_the_time_to_clean_up(bench):
    cleaned, reports = threading.Event(), Reports()

    async def endless():
        reports.put("begun")
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    class Interrupting(AbortOn):
        def check(self):
            reports.put("a note nobody has read yet") if self.left == 1 else None
            super().check()

    attempt = ToolAttempt(endless, Context(), reports, str, around=nothing_around)
    with pytest.raises(Aborted):
        attempt.run(SideThreads(), timeout=9, abort=Interrupting(check=2), on_progress=print)
    assert cleaned.is_set()


def test_coroutine_abandoned_before_it_began_ends_at_once(bench):
    context, reports = Context(), Reports()
    context.cancel()
    attempt = ToolAttempt(lambda: asyncio.sleep(60), context, reports, str, around=nothing_around)
    ended = attempt.run(SideThreads(), timeout=5, abort=bench.calm, on_progress=print)
    assert isinstance(ended.error, asyncio.CancelledError)


def test_time_limit_from_outside_passes_through_and_cancels_the_tool(bench):
    told = threading.Event()

    class SoftLimit(Exception): ...

    @tool
    def endless(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        told.set()

    with pytest.raises(SoftLimit):
        bench.call(endless, abort=AbortOn(check=2, error=SoftLimit))
    assert told.wait(PATIENCE)


def test_a_result_that_is_there_wins_over_a_cancellation(bench):
    assert bench.call(quick, word="done", abort=AbortOn(check=2)).content == "done"


def test_progress_is_passed_on_from_the_calling_thread(bench):
    heard = []

    @tool
    def report(ctx: Context) -> str:
        ctx.progress(0.4, "reading")
        return threading.current_thread().name

    def listen(note):
        heard.append((note, threading.current_thread() is here))

    here = threading.current_thread()
    outcome = bench.box(report).run(None, bench.order(report), abort=bench.calm, on_progress=listen)
    assert heard == [("40% reading", True)]
    assert outcome.content != here.name


def test_of_many_notes_at_once_the_newest_is_kept(bench):
    @tool
    def chatter(ctx: Context) -> None:
        for number in range(10_000):
            ctx.progress(f"page {number}")

    bench.call(chatter)
    assert bench.notes[-1] == "page 9999"
    assert bench.notes == sorted(bench.notes, key=lambda note: int(note.split()[1]))


def test_a_listener_that_fails_does_not_fail_the_call(bench, caplog):
    @tool
    def report(ctx: Context) -> str:
        ctx.progress(1)
        return "done"

    def failing_listener(note):
        raise OSError

    outcome = bench.box(report).run(None, bench.order(report), abort=bench.calm, on_progress=failing_listener)
    assert outcome.content == "done"
    assert "a progress note was lost" in caplog.text


def test_a_listener_may_abort(bench):
    @tool
    def report(ctx: Context) -> str:
        ctx.progress(1)
        return "done"

    def stop(note):
        raise Aborted

    with pytest.raises(Aborted):
        bench.box(report).run(None, bench.order(report), abort=bench.calm, on_progress=stop)


def test_a_call_costs_microseconds(bench):
    box, order = bench.box(quick), bench.order(quick, word="x")
    costs = []
    for _ in range(200):
        began = time.perf_counter()
        box.run(None, order, abort=bench.calm, on_progress=print)
        costs.append(time.perf_counter() - began)
    assert min(costs) < 0.000_5  # measured: 0.000 09; ten threads started per call would not fit


def test_no_warning_is_logged_for_a_good_call(bench, caplog):
    with caplog.at_level(logging.DEBUG):
        bench.call(quick, word="x")
    assert caplog.records == []


FORKED = """
import os, sys
from chordage import tool
from chordage.orchestrator.gateways.ports import CallOrder
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

@tool
def who() -> int:
    return os.getpid()

class Calm:
    def check(self): ...
    def wait(self, seconds): ...

box = ToolBox(lambda agent: {"who": declared_on(who)})
order = CallOrder(call_id="c", run_id="r", thread_id="t", tool="who", arguments={}, idempotency_key="k")
def run():
    return int(box.run(None, order, abort=Calm(), on_progress=print).content)
assert run() == os.getpid()
child = os.fork()
if child == 0:
    os._exit(0 if run() == os.getpid() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@tool
def thread_number() -> int:
    return threading.get_ident()


@tool(timeout=0.05)
def stuck() -> None:
    HOLD.wait(PATIENCE)


HOLD = threading.Event()


def test_the_side_thread_is_used_again(bench):
    box, order = bench.box(thread_number), bench.order(thread_number)
    seen = {box.run(None, order, abort=bench.calm, on_progress=print).content for _ in range(5)}
    assert len(seen) == 1
    assert seen != {str(threading.get_ident())}


def test_a_stuck_tool_does_not_hold_up_the_next(bench):
    box = bench.box(thread_number, stuck)
    first = box.run(None, bench.order(thread_number), abort=bench.calm, on_progress=print).content
    assert box.run(None, bench.order(stuck), abort=bench.calm, on_progress=print).code == "timeout"
    second = box.run(None, bench.order(thread_number), abort=bench.calm, on_progress=print).content
    HOLD.set()
    assert first != second


def test_threads_of_a_pool_do_not_wait_for_each_other(bench):
    together = threading.Barrier(2, timeout=PATIENCE)

    @tool
    def meet() -> int:
        return together.wait()

    box, answers = bench.box(meet), []

    def work():
        answers.append(box.run(None, bench.order(meet), abort=bench.calm, on_progress=print).content)

    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(answers) == ["0", "1"]


def test_a_side_thread_ends_with_its_box(bench):
    found = []

    @tool
    def find() -> None:
        found.append(threading.current_thread())

    bench.call(find)
    gc.collect()
    found[0].join(PATIENCE)
    assert not found[0].is_alive()


def test_a_forked_child_gets_side_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
