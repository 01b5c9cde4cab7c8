"""Hypothesis owns the schedule of trees: wake-ups are lost and doubled, processes die, people decide and cancel."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import Placement, ToolMode
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.groups import Group
from support.draws import examples
from support.family import Lines, ask, settle_in
from support.placements import effects, place_calls, placements
from support.play import Play
from support.questions import asks_until_resumed, check_leave
from support.schedules import LONG, carry_out, fresh_world, place, schedules_of
from support.span_truth import check_traces
from support.world import World

schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b"]), st.sampled_from([Group.CHAT, Group.CHORE])),
    st.tuples(st.just("decide"), place, st.sampled_from(list(Action))),
    st.tuples(st.just("cancel_any"), place),
    min_size=8,
)


def tree_of(tool: str) -> Lines:
    """Three deep, with calls beside the children."""
    call = (tool, {"n": 0})
    return Lines(
        {"ada": [[ask("bob"), call, ask("bob")]], "bob": [[call, ask("cleo")]], "cleo": [[(tool, {"n": 1}), call]]}
    )


class Family(Play):
    def __init__(self, world: World, mode: ToolMode, tool: str, placement: Placement) -> None:
        super().__init__(world)
        settle_in(world, tool_mode=mode)
        place_calls(world, placement)
        world.models.script = tree_of(tool)
        world.tools.asks = asks_until_resumed(world, 1)

    def decide(self, at: int, action: Action) -> None:
        """Of all that waits: a person's question is answered, a child is denied."""
        waiting = self.world.rows("suspensions", status="open")
        if waiting:
            row = waiting[at % len(waiting)]
            is_child = row["why"] == "child"
            action = Action.CANCEL if is_child else action
            answer = {"answer": "failed"} if row["why"] == "outcome_unknown" else True
            payload = None if action is Action.CANCEL else answer
            self.world.decide(DecisionRequest(target=row["id"], action=action, payload=payload))

    def cancel_any(self, at: int) -> None:
        """A turn of a tree, as often as not a child."""
        found = self.world.rows("turns")
        if at % 3 == 0:
            self.world.pending += stages.cancel_turn(self.world.runtime, found[at % len(found)]["id"])[1]


def play(world: World, mode: ToolMode, tool: str, placement: Placement, schedule) -> None:
    carry_out(Family(world, mode, tool, placement), schedule, before_recovery=check_traces)
    check_traces(world)
    if tool == "unsafe":
        check_leave(world)
    rows = world.rows("turns")
    by_call = Counter(row["parent_call"] for row in rows if row["parent_call"])
    assert max(by_call.values(), default=1) == 1, "two children of one call"
    done = {row["run_id"]: row["disposition"] for row in rows}
    left = [row for row in rows if row["parent_run"] and row["cancel_asked"] and row["status"] != "done"]
    assert left == [], "a child outlived its parent"
    assert set(done.values()) <= {"answered", "cancelled", "superseded", "failed"}


SETTING = {
    "mode": st.sampled_from(list(ToolMode)), "tool": effects, "placement": placements, "schedule": schedules,
}  # fmt: skip


@settings(LONG, max_examples=examples(30))
@given(**SETTING)
def test_a_tree_comes_to_its_end_whatever_the_schedule(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, **chosen)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(6))
@given(**SETTING)
def test_a_tree_comes_to_its_end_on_postgres(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, **chosen)
