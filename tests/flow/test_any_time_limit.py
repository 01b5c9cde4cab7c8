"""Turns with a time limit, in any schedule: whichever process dies, each ends in time or has failed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Placement
from support.draws import examples
from support.fakes import rounds_of
from support.placements import place_calls, placements
from support.play import Play
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.world import World

schedules = schedules_of(
    st.tuples(st.just("limited"), st.sampled_from(["a", "b", "c"]), st.sampled_from([20, 100])), min_size=5
)
tools = st.sampled_from(["pure", "idempotent", "unsafe", "reconcilable"])


def play(world: World, tool: str, placement: Placement, schedule) -> None:
    """Time passes in the calls as well; that what is answered was in time is among the invariants."""
    place_calls(world, placement)
    world.models.script = rounds_of(2, tool=tool)
    world.models.before_reply = lambda _: world.clock.pass_by(15)
    game = Play(world)
    carry_out(game, schedule)
    if tool == "unsafe":
        assert max(world.tools.ran.values(), default=0) <= 1
    assert {run["code"] for run in world.rows("runs") if run["reason"] == "error"} <= {"poison", "timeout"}


@settings(LONG, max_examples=examples(100))
@given(tool=tools, placement=placements, schedule=schedules)
def test_every_turn_ends_in_time_or_has_failed(migrated_database_url, tool, placement, schedule) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, tool, placement, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(15))
@given(tool=tools, placement=placements, schedule=schedules)
def test_every_turn_ends_in_time_or_has_failed_on_postgres(migrated_database_url, tool, placement, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, tool, placement, schedule)
