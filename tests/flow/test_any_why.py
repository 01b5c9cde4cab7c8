"""Hypothesis owns the schedule: at every step of it, every row that is not terminal has exactly one reason."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import ToolMode
from chordage.orchestrator.core.errors import BrokenAgent
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.stepping import Control, StepTerms
from support.draws import examples
from support.fakes import rounds_of
from support.family import Lines, ask, settle_in
from support.one_turn import change_agent
from support.play import Play
from support.questions import asks_until_resumed
from support.reasons import check_every_open_row_has_a_reason, show_workers
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.world import World, a_persons_answer

schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b", "c"]), st.sampled_from(list(Group))),
    st.tuples(st.just("edit"), st.booleans()),
    st.tuples(st.just("answer"), st.integers(0, 9)),
    st.tuples(st.just("workers"), st.sampled_from(["none", "turns", "all"])),
    st.tuples(st.just("stepped"), st.sampled_from(["a", "b", "c"]), st.sampled_from([None, 60.0])),
    min_size=5,
)
tools = st.sampled_from(["pure", "unsafe", "reconcilable"])


class Asking(Play):
    """With questions, sub-agents, consumers and workers that come and go."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.queues: tuple[str, ...] = ()
        show_workers(world)

    def answer(self, at: int) -> None:
        asked = self.world.inbox()
        if asked:
            self.world.revive()
            self.world.decide(a_persons_answer(asked[at % len(asked)]))

    def workers(self, which: str) -> None:
        self.queues = {"none": ("system",), "turns": ("system", "chat", "task"), "all": ()}[which]
        self.world.revive()
        show_workers(self.world, *self.queues)

    def sweep(self, seconds: int, after_the_dead: bool) -> None:
        super().sweep(seconds, after_the_dead)
        show_workers(self.world, *self.queues)

    def stepped(self, thread: str, hold: float | None) -> None:
        """Its consumer never comes back: it lets it run."""
        self.world.revive()
        with suppress(BrokenAgent):
            turn = self.world.submit(thread=thread, control=Control.STEP, step=StepTerms(hold_seconds=hold))
            self.turns.append(turn)
            self.world.step(turn, "run")


def play(world: World, tool: str, mode: ToolMode, families: bool, schedule) -> None:
    if families:
        settle_in(world)
        world.models.script = Lines({"ada": [[ask("bob"), (tool, {"n": 0})]], "bob": [[(tool, {"n": 1})]]})
    else:
        change_agent(world, tool_mode=mode)
        world.models.script = rounds_of(2, tool=tool)
    world.tools.asks = asks_until_resumed(world, 0)
    carry_out(Asking(world), schedule, also=check_every_open_row_has_a_reason)


given_all = given(tool=tools, mode=st.sampled_from(list(ToolMode)), families=st.booleans(), schedule=schedules)


@settings(LONG, max_examples=examples(60))
@given_all
def test_every_open_row_has_one_reason_whatever_the_schedule(
    migrated_database_url, tool, mode, families, schedule
) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, tool, mode, families, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(10))
@given_all
def test_every_open_row_has_one_reason_on_postgres_too(migrated_database_url, tool, mode, families, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, tool, mode, families, schedule)
