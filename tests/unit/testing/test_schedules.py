"""Schedules are written and read as tokens, drawn by a seed, and made smaller as long as they fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.testing import FaultKind, FaultSchedule, ScheduleRefused
from chordage.testing.schedules import PLAIN, FaultPlaces, ScheduledFault, random_schedules, shrink, single_faults

schedules = st.builds(
    FaultSchedule,
    faults=st.frozensets(st.builds(ScheduledFault, st.sampled_from(FaultKind), st.integers(1, 30)), max_size=8),
    here=st.booleans(),
)
PLACES = FaultPlaces(deliveries=3, may_be_late={2}, commits={2, 3, 4}, transactions={1, 3}, tools=2, effects=1)


@given(schedule=schedules)
def test_a_token_is_read_as_the_schedule_it_was_made_of(schedule):
    assert FaultSchedule.read(schedule.token) == schedule


@pytest.mark.parametrize(
    "token", ["", "drop", "drop:0", "drop:x", "drop:1 ", "drop:1,,drop:2", "DROP:1", "plain,drop:1"]
)
def test_what_is_no_token_is_refused(token):
    with pytest.raises(ScheduleRefused, match="separate them by commas, or write 'plain'"):
        FaultSchedule.read(token)


def test_plain_is_a_token_too():
    assert FaultSchedule.read("plain") == PLAIN


def test_each_place_is_tried_with_each_fault_that_it_may_have():
    tokens = [schedule.token for schedule in single_faults(PLACES, here=False)]

    assert sorted(tokens) == sorted(
        [f"{kind}:{at}" for kind in ("kill-before-tool", "kill-after-tool", "stall-in-tool") for at in (1, 2)]
        + ["kill-after-effect:1", "kill-before-commit:3", *(f"kill-after-commit:{at}" for at in (2, 3, 4)), "delay:2"]
        + [f"{kind}:{at}" for kind in ("drop", "double", "lose-redis") for at in (1, 2, 3)]
    )


def test_a_seed_draws_the_same_schedules_and_another_draws_others():
    drawn = [list(random_schedules(PLACES, seed, 50)) for seed in (7, 7, 8)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert all(schedule.faults for schedule in drawn[0])


@given(schedule=schedules, needed=schedules)
def test_shrinking_leaves_what_is_needed_and_nothing_else(schedule, needed):
    both = FaultSchedule(faults=schedule.faults | needed.faults, here=schedule.here or needed.here)

    def fails(candidate):
        return needed.faults <= candidate.faults and (candidate.here or not needed.here)

    assert shrink(both, fails, most=10_000) == needed


def test_shrinking_moves_a_fault_to_the_first_place_at_which_it_still_fails():
    def fails(candidate):
        return any(fault.kind is FaultKind.DROP and fault.at >= 4 for fault in candidate.faults)

    assert shrink(FaultSchedule.read("drop:27,double:3"), fails).token == "drop:4"


def test_shrinking_ends_after_as_many_runs_as_it_may_take():
    runs = []

    def fails(candidate):
        runs.append(candidate)
        return True

    shrink(FaultSchedule.read("drop:900,double:900,delay:900"), fails, most=3)

    assert len(runs) == 3
