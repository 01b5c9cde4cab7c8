"""Hypothesis owns the schedule: wake-ups are reordered, doubled and lost, processes die at any commit, Redis
forgets.

Whatever it chooses, after time has passed and rescue has swept every turn has ended once, in order, with each call
answered once and no finished work done again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.tx import Store
from support.fakes import rounds_of
from support.invariants import check_all, check_always
from support.play import BUDGETS, NAMED, Play
from support.world import World

place = st.integers(0, 1_000)
moves = st.one_of(
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("double"), place),
    st.tuples(st.just("drop"), place),
    st.tuples(st.just("die"), place, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("die_in_tool"), place),
    st.tuples(st.just("submit"), st.sampled_from(["a", "b", "c"]), st.sampled_from(list(Group))),
    st.tuples(st.just("sweep"), st.sampled_from([1, 31, 120]), st.booleans()),
    st.tuples(st.just("wipe")),
    st.tuples(st.just("cancel"), place),
)
schedules = st.lists(moves, min_size=5, max_size=60)
tools = st.sampled_from(["pure", "idempotent", "unsafe", "reconcilable"])


def play(world: World, tool: str, schedule) -> None:
    world.budgets.update(BUDGETS)
    world.models.script = rounds_of(2, tool=tool)
    game = Play(world)
    game.submit("a", Group.CHAT)
    for name, *arguments in schedule:
        getattr(game, name)(*arguments)
        check_always(world.store, NAMED)
    world.recover(limit=300)
    check_all(world.store)
    if tool == "unsafe":
        assert max(world.tools.ran.values(), default=0) <= 1
    ended = {run["id"]: run for run in world.rows("runs")}
    assert {run["code"] for run in ended.values() if run["reason"] == "error"} <= {"poison"}
    if tool != "unsafe":
        natural = [call for call in world.rows("calls") if ended[call["run_id"]]["reason"] == "natural_end"]
        assert {call["status"] for call in natural} <= {"succeeded"}
    assert len(world.models.prompts) <= len(world.rows("journal", kind="AssistantTurnCommitted")) + game.may_be_repeated


@pytest.fixture
def fresh_world(migrated_database_url: Callable[[str], str]):
    def make(backend: str) -> World:
        return World(Store(migrated_database_url(backend), pool_size=1))

    return make


LONG = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(LONG, max_examples=250)
@given(tool=tools, schedule=schedules)
def test_every_turn_ends_once_whatever_the_schedule(fresh_world, tool, schedule) -> None:
    world = fresh_world("sqlite")
    try:
        play(world, tool, schedule)
    finally:
        world.close()


@pytest.mark.postgres
@settings(LONG, max_examples=40)
@given(tool=tools, schedule=schedules)
def test_every_turn_ends_once_whatever_the_schedule_on_postgres(fresh_world, tool, schedule) -> None:
    world = fresh_world("postgres")
    try:
        play(world, tool, schedule)
    finally:
        world.close()
