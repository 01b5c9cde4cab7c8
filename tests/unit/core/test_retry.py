"""Delays between attempts, and what a server asks for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chordage.orchestrator.core.retry import Backoff, retry_after

NOW = datetime(2026, 10, 21, 7, 28, 30, tzinfo=UTC)


def test_delay_doubles_with_each_failure_up_to_the_longest():
    backoff = Backoff(first=0.5, longest=30.0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 6, 7, 100_000)] == [0.5, 1, 2, 16, 30, 30]


@pytest.mark.parametrize(("jitter", "shortest"), [(0.0, 4.0), (0.25, 3.0), (0.5, 2.0), (1.0, 0.0)])
def test_chance_takes_at_most_the_jitter_off_a_delay(jitter, shortest):
    backoff = Backoff(first=1.0, longest=30.0, jitter=jitter)
    assert (backoff.delay(3, 1.0), backoff.delay(3, 0.0)) == (4.0, shortest)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:10 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT"}, 90.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 -0000", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
    ],
)
def test_retry_after_is_read_in_every_form(headers, seconds):
    assert retry_after(headers, NOW) == seconds
