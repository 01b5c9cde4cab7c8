"""Hypothesis owns the schedule, and people decide in it: early, late, twice, otherwise, while processes die.

Whatever it chooses, an answer is applied once or not at all, a call runs no more often than it was allowed to, and the
run comes to its end.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import MixedRound, Placement, ToolMode
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, ResumeMode, Why
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.groups import Group
from support.draws import examples
from support.fakes import rounds_of
from support.one_turn import change_agent
from support.placements import effects, place_calls, placements
from support.play import Play
from support.questions import check_leave
from support.schedules import LONG, carry_out, fresh_world, place, schedules_of
from support.span_truth import check_traces
from support.world import Died, World

QUESTIONS = [
    Question(why=Why.TOOL, prompt="?", resume_mode=mode, expires_in=expires)
    for mode in ResumeMode
    for expires in (None, 90.0)
]
keys = st.sampled_from([None, "k", "l"])
schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b"]), st.sampled_from([Group.CHAT, Group.CHORE])),
    st.tuples(st.just("decide"), place, st.sampled_from(list(Action)), keys),
    st.tuples(st.just("decide"), place, st.sampled_from(list(Action)), keys),
    st.tuples(st.just("decide_and_die"), place, st.booleans()),
    min_size=8,
)


class Deciding(Play):
    def __init__(self, world: World, question: Question) -> None:
        super().__init__(world)
        self.asked: Counter[str] = Counter()
        self.question = question
        world.tools.asks = self._ask

    def _ask(self, order) -> Question | None:
        """The second call of a round asks twice, the first not at all."""
        if order.arguments["n"] != 1 or self.asked[order.call_id] >= 2:
            return None
        self.asked[order.call_id] += 1
        return self.question

    def decide(self, at: int, action: Action, key: str | None) -> None:
        rows = self.world.rows("suspensions")
        if not rows:
            return
        row = rows[at % len(rows)]
        payload = {"answer": "failed"} if row["why"] == "outcome_unknown" else True
        said = payload if action is Action.RESUME else None
        request = DecisionRequest(target=row["id"], action=action, payload=said, key=key)
        try:
            (taken,) = self.world.decide(request)
        except Conflict:
            assert row["status"] != "open", "a question that is open takes an answer"
        else:
            assert taken.duplicate == (row["status"] != "open")

    def decide_and_die(self, at: int, before: bool) -> None:
        world = self.world
        world.die_at, world.die_before = world.commits + 1, before
        try:
            self.decide(at, Action.RESUME, None)
        except Died:
            world.revive()
        world.die_at = None


def play(
    world: World, tool: str, placement: Placement, question: Question, mode: ToolMode, mixed: MixedRound, schedule
) -> None:
    change_agent(world, tool_mode=mode, mixed_round=mixed)
    place_calls(world, placement)
    world.models.script = rounds_of(3, tool=tool)
    carry_out(Deciding(world, question), schedule, before_recovery=check_traces)
    check_traces(world)
    assert max(Counter(row["suspension_id"] for row in world.rows("decisions")).values(), default=0) <= 1
    if tool == "unsafe":
        check_leave(world)


SETTING = {
    "tool": effects, "placement": placements, "question": st.sampled_from(QUESTIONS),
    "mode": st.sampled_from(list(ToolMode)), "mixed": st.sampled_from(list(MixedRound)), "schedule": schedules,
}  # fmt: skip


@settings(LONG, max_examples=examples(80))
@given(**SETTING)
def test_an_answer_is_applied_once_whatever_the_schedule(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, **chosen)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(12))
@given(**SETTING)
def test_an_answer_is_applied_once_on_postgres(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, **chosen)
