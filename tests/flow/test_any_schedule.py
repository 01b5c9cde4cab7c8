"""Hypothesis owns the schedule: wake-ups are reordered, doubled and lost, processes die at any commit, Redis
forgets.

Whatever it chooses, after time has passed and rescue has swept every turn has ended once, in order, with each call
answered once and no finished work done again.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.core.groups import Group
from support.draws import examples
from support.fakes import rounds_of
from support.placements import place_calls, placements
from support.play import Play
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.span_truth import check_traces
from support.world import World

schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b", "c"]), st.sampled_from(list(Group))),
    st.tuples(st.just("edit"), st.booleans()),
    min_size=5,
)
taken_for_dead = [("deliver", 0), ("deliver", 0), ("deliver", 0), ("linger", 0, 31)]
tools = st.sampled_from(["pure", "idempotent", "unsafe", "reconcilable"])


def play(world: World, tool: str, placement: Placement, carries: bool, schedule) -> None:
    place_calls(world, placement)
    world.carries = carries
    world.models.script = rounds_of(2, tool=tool)
    game = Play(world)
    carry_out(game, schedule)
    check_traces(world)
    if tool == "unsafe":
        assert max(world.tools.ran.values(), default=0) <= 1
    ended = {run["id"]: run for run in world.rows("runs")}
    assert {run["code"] for run in ended.values() if run["reason"] == "error"} <= {"poison"}
    if tool != "unsafe":
        natural = [call for call in world.rows("calls") if ended[call["run_id"]]["reason"] == "natural_end"]
        assert {call["status"] for call in natural} <= {"succeeded"}
    natural = {call["id"]: call for call in world.rows("calls") if ended[call["run_id"]]["reason"] == "natural_end"}
    assert {natural[one]["status"] for one in game.lingered & set(natural)} <= {"succeeded"}, "a true result is kept"
    assert len(world.models.prompts) <= len(world.rows("journal", kind="AssistantTurnCommitted")) + game.may_be_repeated


@settings(LONG, max_examples=examples(210))
@given(tool=tools, placement=placements, carries=st.booleans(), schedule=schedules)
@example(tool="unsafe", placement=Placement.SPREAD, carries=False, schedule=taken_for_dead)
@example(tool="unsafe", placement=Placement.HERE, carries=True, schedule=taken_for_dead)
def test_every_turn_ends_once_whatever_the_schedule(migrated_database_url, tool, placement, carries, schedule) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, tool, placement, carries, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(25))
@given(tool=tools, placement=placements, carries=st.booleans(), schedule=schedules)
@example(tool="unsafe", placement=Placement.SPREAD, carries=False, schedule=taken_for_dead)
@example(tool="unsafe", placement=Placement.HERE, carries=True, schedule=taken_for_dead)
def test_every_turn_ends_once_on_postgres_too(migrated_database_url, tool, placement, carries, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, tool, placement, carries, schedule)
