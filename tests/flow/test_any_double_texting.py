"""Hypothesis writes into busy threads, with each `when_busy`, at any moment, also while a model or a tool is at work.

Whatever it chooses, every message ends once, reaches the model once and in order, and none is lost between a run that
is about to end and the next.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Placement, WhenBusy
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.groups import Group
from support.draws import examples
from support.fakes import rounds_of
from support.placements import effects, place_calls, placements
from support.play import Play
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.span_truth import check_traces
from support.world import World

threads = st.sampled_from(["a", "b"])
manners = st.sampled_from(list(WhenBusy))
groups = st.sampled_from([Group.CHAT, Group.CHORE])
schedules = schedules_of(
    st.tuples(st.just("write"), threads, manners, groups),
    st.tuples(st.just("write_during_the_next_reply"), threads, manners, groups),
    st.tuples(st.just("write_during_the_next_call"), threads, manners, groups),
    min_size=5,
)


class DoubleTexts(Play):
    """A schedule in which messages come for threads that are busy."""

    def write(self, thread: str, when_busy: WhenBusy, group: Group) -> None:
        try:
            turn = self.world.submit(f"m{len(self.turns)}", thread=thread, group=group, when_busy=when_busy)
        except Conflict:
            assert when_busy is WhenBusy.REJECT
        else:
            self.turns.append(turn)

    def write_during_the_next_reply(self, thread: str, when_busy: WhenBusy, group: Group) -> None:
        def write(prompt) -> None:
            self.world.models.before_reply = lambda prompt: None
            self.write(thread, when_busy, group)

        self.world.models.before_reply = write

    def write_during_the_next_call(self, thread: str, when_busy: WhenBusy, group: Group) -> None:
        def write(order) -> None:
            self.world.tools.before = self._not_again
            self._not_again(order)
            self.write(thread, when_busy, group)

        self.world.tools.before = write


def play(world: World, tool: str, placement: Placement, schedule) -> None:
    place_calls(world, placement)
    world.models.script = rounds_of(2, tool=tool)
    carry_out(DoubleTexts(world), schedule)
    check_traces(world)
    _every_message_is_told_once(world)
    if tool == "unsafe":
        assert max(world.tools.ran.values(), default=0) <= 1


def _every_message_is_told_once(world: World) -> None:
    told = [row["body"]["turn"] for row in world.rows("journal", kind="UserMessage")]
    assert len(told) == len(set(told))
    heard = {turn["id"] for turn in world.rows("turns") if turn["run_id"]}
    assert set(told) == heard
    silent = {turn["disposition"] for turn in world.rows("turns") if turn["id"] not in heard}
    assert silent <= {"cancelled"}, "only who was cancelled in the queue is not heard"


@settings(LONG, max_examples=examples(120))
@given(tool=effects, placement=placements, schedule=schedules)
def test_every_message_to_a_busy_thread_ends_once(migrated_database_url, tool, placement, schedule) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, tool, placement, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(20))
@given(tool=effects, placement=placements, schedule=schedules)
def test_every_message_to_a_busy_thread_ends_once_on_postgres(migrated_database_url, tool, placement, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, tool, placement, schedule)
