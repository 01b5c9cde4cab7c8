"""A piece of somebody else's code with an end: the wait for it ends in time, or when the work is given up."""

from __future__ import annotations

import threading
import time

import pytest

from chordage.orchestrator.core.errors import OutOfTime
from chordage.orchestrator.plugins.time_limit import TookTooLong, within


@pytest.fixture
def endless():
    over = threading.Event()
    yield over.wait
    over.set()


def out_of_time() -> None:
    raise OutOfTime


def test_the_wait_ends_when_the_work_is_given_up(endless):
    began = time.monotonic()
    with pytest.raises(OutOfTime):
        within(60, endless, "endless", out_of_time)
    assert time.monotonic() - began < 2


def test_the_wait_ends_in_time(endless):
    with pytest.raises(TookTooLong):
        within(0.1, endless, "endless")


def test_a_job_that_is_done_is_not_given_up():
    assert within(60, lambda: 7, "quick", out_of_time) == 7
