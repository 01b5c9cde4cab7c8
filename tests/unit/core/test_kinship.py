"""Trees of runs: where a child stands, and how long a tree has been at work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator.core import kinship
from support.builders import NOON

ROOT = {"id": "r", "thread_id": "t", "agent": "ada"}


def test_a_child_of_a_child_knows_its_root_and_the_tightest_limit():
    first = kinship.child_of(ROOT, None, call_id="c", agent="bob", max_depth=3)
    second = kinship.child_of(
        {"id": "s", "thread_id": "u", "agent": "bob"}, first, call_id="d", agent="cleo", max_depth=9
    )

    assert (second.parent_run, second.root_run, second.root_thread) == ("s", "r", "t")
    assert (second.path, second.depth, second.max_depth) == ("ada/bob/cleo", 2, 3)


def test_what_is_written_of_kin_can_be_read_again():
    kin = kinship.child_of(ROOT, None, call_id="c", agent="bob", max_depth=3)
    row = {**kinship.columns(kin), "id": "x"}

    assert kinship.taken_from(row) == kin
    assert row == {"id": "x"}
    assert kinship.taken_from(kinship.columns(None)) is None


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0), ([(0, 5)], 5), ([(0, 5), (3, 8)], 8), ([(0, 9), (2, 3)], 9), ([(7, 9), (0, 2)], 4), ([(5, 3)], 0)],
)
def test_time_that_several_worked_side_by_side_counts_once(spans, seconds):
    at = [(NOON + timedelta(seconds=a), NOON + timedelta(seconds=b)) for a, b in spans]
    assert kinship.covered(at) == timedelta(seconds=seconds)
