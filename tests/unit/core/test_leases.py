"""How long a claim holds."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.leases import LeaseRules
from support.builders import NOON


def test_a_lease_ends_so_many_seconds_from_now():
    assert LeaseRules(seconds=30).until(NOON) == NOON + timedelta(seconds=30)


def test_unclaimed_wake_up_is_repeated_less_and_less_often():
    rules = LeaseRules(seconds=30)

    waits = [(rules.until_after_resend(NOON, resends) - NOON).total_seconds() for resends in range(8)]

    assert waits == [30, 60, 60, 60, 60, 60, 60, 60]


@given(seconds=st.floats(0.1, 3600), resends=st.integers(0, 10_000))
def test_the_wait_is_bounded_however_often_it_was_sent(seconds, resends):
    rules = LeaseRules(seconds=seconds)

    assert rules.until(NOON) <= rules.until_after_resend(NOON, resends) <= NOON + timedelta(seconds=2 * seconds + 1)


def test_by_default_two_heartbeats_may_be_missed():
    rules = LeaseRules()

    assert 2 * rules.beat < rules.seconds
    assert rules.sweep < rules.seconds
    assert rules.poison_after == 3
