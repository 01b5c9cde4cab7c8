"""Whatever users' code raises is its own failure; a signal alone is a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar

import pytest

from chordage.orchestrator.core.errors import OutOfTime
from chordage.orchestrator.system import user_code
from chordage.orchestrator.system.user_code import ExitAttempted, TookTooLong, within

CALLER = ContextVar("CALLER", default="nobody")


def beside(job):
    """What comes of the job in a thread that is not the main one."""
    results = []

    def run():
        try:
            results.append(job())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def leaves(error):
    def job():
        raise error

    return job


def test_a_result_and_an_error_come_back_as_they_are_from_any_thread():
    error = LookupError("no")
    assert user_code.call(lambda: 1) == 1
    assert beside(lambda: user_code.call(lambda: 1)) == 1
    assert beside(lambda: user_code.call(leaves(error))) is error
    with pytest.raises(LookupError) as raised:
        user_code.call(leaves(error))
    assert raised.value is error


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()])
def test_the_end_of_the_process_is_an_error_of_the_code(error):
    found = beside(lambda: user_code.call(leaves(error)))
    assert isinstance(found, ExitAttempted)
    assert repr(error) in str(found)
    with pytest.raises(ExitAttempted):
        user_code.call(leaves(error))


def test_signal_reaches_a_wait_in_the_main_thread():
    going_on = threading.Event()

    def job():
        os.kill(os.getpid(), signal.SIGINT)
        going_on.wait(120)

    with pytest.raises(KeyboardInterrupt):
        user_code.call(job)
    going_on.set()


def test_code_runs_in_one_thread_that_is_kept_and_never_in_the_main_one():
    threads = {user_code.call(threading.get_ident), user_code.call(threading.get_ident)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_thread_is_kept_after_an_error_and_an_exit():
    before = user_code.call(threading.get_ident)
    with pytest.raises(ExitAttempted):
        user_code.call(leaves(SystemExit(2)))
    with pytest.raises(LookupError):
        user_code.call(leaves(LookupError()))
    assert user_code.call(threading.get_ident) == before


def test_what_one_call_sets_in_its_context_the_next_does_not_see():
    user_code.call(lambda: CALLER.set("the first"))
    assert user_code.call(CALLER.get) == "nobody"


FORKED = """
import os, sys
from chordage.orchestrator.system import user_code

user_code.call(os.getpid)
child = os.fork()
if child == 0:
    os._exit(0 if user_code.call(os.getpid) == os.getpid() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_child_has_a_thread_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_context_variables_come_along():
    token = CALLER.set("somebody")
    try:
        assert user_code.call(CALLER.get) == "somebody"
    finally:
        CALLER.reset(token)


def test_an_import_fails_by_an_exit_and_only_a_ctrl_c_may_stop_it():
    assert SystemExit in user_code.failures()
    assert KeyboardInterrupt not in user_code.failures()
    assert KeyboardInterrupt in beside(user_code.failures)


@pytest.fixture
def endless():
    over = threading.Event()
    yield over.wait
    over.set()


def out_of_time() -> None:
    raise OutOfTime


def test_wait_ends_when_the_work_is_given_up(endless):
    began = time.monotonic()
    with pytest.raises(OutOfTime):
        within(60, endless, "endless", out_of_time)
    assert time.monotonic() - began < 30, "it did not wait for its minute to be over"


def test_the_wait_ends_in_time(endless):
    with pytest.raises(TookTooLong):
        within(0.1, endless, "endless")


def test_a_thread_that_hangs_is_not_used_again(endless):
    with pytest.raises(TookTooLong):
        within(0.1, endless, "endless")
    assert within(60, lambda: 7, "quick") == 7


def test_finished_job_is_not_given_up():
    assert within(60, lambda: 7, "quick", out_of_time) == 7
