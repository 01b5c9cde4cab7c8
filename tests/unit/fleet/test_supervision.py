"""What is said of members that die, and how soon they are started again."""

from __future__ import annotations

import signal

import pytest

from chordage.workers import stalled_consumer
from chordage.workers.fleet import supervision
from chordage.workers.fleet.supervision import RESTART, describe_end


def test_pauses_grow_with_every_death_up_to_a_limit():
    assert [RESTART.delay(deaths) for deaths in (1, 2, 3, 7, 50)] == [0.5, 1.0, 2.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (70, "received no messages, or had lost a slot, and ended itself"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (1, "ended with code 1"),
        (0, "ended with code 0"),
    ],
)
def test_end_of_a_member_is_described_in_text(code, words):
    assert describe_end(code) == words


def test_stalled_worker_is_recognised_by_the_code_it_ends_with():
    assert supervision.STALLED == stalled_consumer.EXIT_CODE
