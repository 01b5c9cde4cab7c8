"""What is said of members that die, and how soon they are started again."""

from __future__ import annotations

import signal

import pytest

from chordage.workers import deafness
from chordage.workers.fleet import supervision
from chordage.workers.fleet.supervision import RESTART, how_it_ended


def test_pauses_grow_with_every_death_up_to_a_limit():
    assert [RESTART.delay(deaths) for deaths in (1, 2, 3, 7, 50)] == [0.5, 1.0, 2.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (70, "had gone deaf and ended itself"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (1, "ended with code 1"),
        (0, "ended with code 0"),
    ],
)
def test_end_of_a_member_is_told_in_words(code, words):
    assert how_it_ended(code) == words


def test_deaf_worker_is_known_by_the_code_it_ends_with():
    assert supervision.DEAF == deafness.EXIT_CODE
