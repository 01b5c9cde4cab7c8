"""Turns with a time limit, in any schedule: whichever process dies, each ends in time or has failed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fakes import rounds_of
from support.play import Play
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.world import World

schedules = schedules_of(
    st.tuples(st.just("limited"), st.sampled_from(["a", "b", "c"]), st.sampled_from([20, 100])), min_size=5
)
tools = st.sampled_from(["pure", "unsafe", "reconcilable"])


def play(world: World, tool: str, schedule) -> None:
    """Time passes in the calls as well; that what is answered was in time is among the invariants."""
    world.models.script = rounds_of(2, tool=tool)
    world.models.before_reply = lambda _: world.clock.pass_by(15)
    game = Play(world)
    carry_out(game, schedule)
    if tool == "unsafe":
        assert max(world.tools.ran.values(), default=0) <= 1
    assert {run["code"] for run in world.rows("runs") if run["reason"] == "error"} <= {"poison", "timeout"}


@settings(LONG, max_examples=100)
@given(tool=tools, schedule=schedules)
def test_every_turn_ends_in_time_or_has_failed(migrated_database_url, tool, schedule) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, tool, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=15)
@given(tool=tools, schedule=schedules)
def test_every_turn_ends_in_time_or_has_failed_on_postgres(migrated_database_url, tool, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, tool, schedule)
