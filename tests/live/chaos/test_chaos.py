"""Turns of every kind while machines, network, clock, Redis, database and disk fail: none is lost or doubled.

`just chaos --minutes 60 --seed 7` is the trial at length. It prints what was done, and how long recoveries took; the
same seed draws the same turns and the same faults, at times that depend on the machine.
"""

from __future__ import annotations

import time

import pytest

from support.chaos_checks import violations
from support.chaos_fleet import chaos_fleet
from support.chaos_trial import Trial, report, story

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]

SHORT = 0.4  # minutes


def test_nothing_is_lost_doubled_or_left_whatever_fails(tmp_path, start_valkey, request, capsys):
    minutes, seed = request.config.getoption("--minutes") or SHORT, request.config.getoption("--seed")
    with chaos_fleet(tmp_path, start_valkey("broker", appendonly=False)) as fleet:
        trial, began = Trial(fleet, seed), time.monotonic()
        strikes = trial.run(minutes * 60, turns=40)
        found = violations(trial)
        with capsys.disabled():
            print("", *report(trial, strikes, time.monotonic() - began), f"violations: {len(found)}", *found, sep="\n")

        assert found == [], story(strikes)
        assert strikes
