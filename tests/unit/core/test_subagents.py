"""Trees of runs: the position of a child, and the time in which a tree worked."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, Limits, SubAgent
from chordage.orchestrator.core.records import Kin, kin_columns, take_kin
from support.builders import NOON, a_run


def an_agent(max_depth: int) -> AgentSpec:
    return AgentSpec(name="any", model="m", limits=Limits(max_depth=max_depth))


def a_child() -> Kin:
    return subagents.kin_of_child(a_run(), an_agent(3), SubAgent(agent="bob"), "c")


def test_a_child_of_a_child_knows_its_root_and_the_tightest_limit():
    parent = a_run(id="s", thread_id="u", agent="bob", kin=a_child())
    kin = subagents.kin_of_child(parent, an_agent(9), SubAgent(agent="cleo"), "d")

    assert (kin.parent_run, kin.root_run, kin.root_thread) == ("s", "r", "t")
    assert (kin.path, kin.depth, kin.max_depth) == ("ada/bob/cleo", 2, 3)


def test_kin_read_from_a_row_is_the_kin_that_was_written():
    kin = a_child()
    row = {**kin_columns(kin), "id": "x"}

    assert take_kin(row) == kin
    assert row == {"id": "x"}
    assert take_kin(kin_columns(None)) is None


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0), ([(0, 5)], 5), ([(0, 5), (3, 8)], 8), ([(0, 9), (2, 3)], 9), ([(7, 9), (0, 2)], 4), ([(5, 3)], 0)],
)
def test_time_that_several_worked_side_by_side_counts_once(spans, seconds):
    at = [(NOON + timedelta(seconds=a), NOON + timedelta(seconds=b)) for a, b in spans]
    assert subagents.covered(at) == timedelta(seconds=seconds)
