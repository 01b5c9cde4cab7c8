"""Whether there is another plan, and whether a plan is carried out. The loop of these tests is the rule and no more."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import OutOfScope, PlanSpec
from chordage.orchestrator.core.planning.plan import Command, PlanEnd
from chordage.orchestrator.core.planning.reading import normalise
from chordage.orchestrator.core.planning.records import PlanRecord, PlanRound, PlanStatus, done_plans
from chordage.orchestrator.core.planning.state import REFUSED_BATCH, Converge, Execute, Planning, asks_of, is_stuck

OFFERED = frozenset({"search", "read"})
OK, ERROR = PlanStatus.OK, PlanStatus.ERROR


def commands(*tools: str):
    return tuple(Command(purpose=f"Use {tool}", tool_name=tool, kwargs={}) for tool in tools)


def a_plan(*tools: str):
    return normalise({"next_action": "execute", "execution_commands": [{"tool_name": tool} for tool in tools]})


def a_round(index: int, *ended: tuple[str, PlanStatus]):
    return PlanRound(
        index=index,
        records=tuple(
            PlanRecord(purpose="p", tool_name=tool, kwargs={}, todo_suggestion="", status=status, result="")
            for tool, status in ended
        ),
    )


def planning(rounds=(), *, offered=OFFERED, overdue=False, **spec):
    """After these rounds, or after so many."""
    known = [PlanRound(index=index, records=()) for index in range(rounds)] if isinstance(rounds, int) else rounds
    return Planning(spec=PlanSpec(**spec), rounds=tuple(known), offered=frozenset(offered), overdue=overdue)


def play(planner, *, status=OK, **limits):
    """How often the planner was asked, the rounds, and why it ended. The planner is given the rounds so far."""
    rounds, asked = [], 0
    while True:
        state = planning(rounds, **limits)
        if state.ends is not None:
            return asked, rounds, state.ends
        asked += 1
        move = state.judge(normalise(planner(rounds)))
        if isinstance(move, Converge):
            return asked, rounds, move.reason
        rounds.append(a_round(len(rounds), *((command.tool_name, status) for command in move.commands)))


def always(_):
    return {"execution_commands": [{"tool_name": "search"}]}


def test_without_tools_no_planner_is_called():
    """A1 and A44: a loop is switched off by offering nothing."""
    assert play(always, offered=()) == (0, [], PlanEnd.NO_TOOLS)


def test_limit_is_five_rounds_unless_configured():
    """A2"""
    assert PlanSpec().max_rounds == 5
    assert len(play(always)[1]) == 5


@pytest.mark.parametrize("most", [1, 2, 5, 40])
def test_a_limit_of_rounds_costs_no_plan_that_is_thrown_away(most):
    """A5, beaten: asked behind the plan, the limit costs one more planner call, whose commands are not carried out."""
    asked, rounds, why = play(always, max_rounds=most)

    assert (asked, len(rounds), why) == (most, most, PlanEnd.MAX_ROUNDS)


def test_no_rounds_cost_no_plan():
    """A6, beaten"""
    assert play(always, max_rounds=0) == (0, [], PlanEnd.MAX_ROUNDS)


def test_a_round_without_records_counts():
    """A11"""
    rounds = [PlanRound(index=0, records=())]

    assert planning(rounds, max_rounds=1).ends is PlanEnd.MAX_ROUNDS
    assert planning(rounds).ends is None


def test_without_a_limit_planning_ends_only_on_the_planners_word():
    def until(rounds):
        return "{}" if len(rounds) == 300 else always(rounds)

    assert play(until, max_rounds=None)[2] is PlanEnd.NO_COMMANDS
    assert len(play(until, max_rounds=None)[1]) == 300


def test_bad_arguments_do_not_end_the_loop():
    """A25: a failed record, and the planner is asked again."""
    rounds = [a_round(0, ("search", PlanStatus.BAD_INPUT))]

    assert planning(rounds).ends is None


def test_garbage_leads_to_an_answer_without_tools():
    """A42"""
    assert play(lambda _: "I do not know.") == (1, [], PlanEnd.UNREADABLE)


def test_the_deadline_ends_planning_before_and_behind_the_plan():
    """A52: a limit that is asked only when all is over is none."""
    assert planning(overdue=True).ends is PlanEnd.DEADLINE
    assert planning(overdue=True).judge(a_plan("search")) == Converge(reason=PlanEnd.DEADLINE)


def test_a_tool_that_was_not_offered_does_not_run_and_the_others_do():
    """A53, beaten: named is not offered."""
    move = planning().judge(a_plan("search", "erase", "read"))

    assert isinstance(move, Execute)
    assert {place: record.status for place, record in move.refused.items()} == {1: PlanStatus.NOT_OFFERED}
    assert move.commands == commands("search", "erase", "read")
    assert [ask.name for ask in asks_of(move.commands, move.refused, 1, None).values()] == ["search", "read"]


def test_a_plan_of_nothing_that_was_offered_is_a_round_that_failed():
    """A53"""
    move = planning().judge(a_plan("erase"))

    assert isinstance(move, Execute)
    assert (asks_of(move.commands, move.refused, 1, None), len(move.refused)) == ({}, 1)


def test_an_agent_may_refuse_such_a_plan_as_a_whole_and_every_command_has_a_record():
    """A53"""
    move = planning(out_of_scope=OutOfScope.REFUSE_BATCH).judge(a_plan("search", "erase"))

    assert isinstance(move, Converge)
    assert move.reason is PlanEnd.NOT_OFFERED
    assert [record.status for record in move.records] == [PlanStatus.CANCELLED, PlanStatus.NOT_OFFERED]
    assert move.records[0].error == REFUSED_BATCH


def test_such_an_agent_carries_out_a_plan_in_which_all_was_offered():
    move = planning(out_of_scope=OutOfScope.REFUSE_BATCH).judge(a_plan("search"))

    assert move == Execute(commands=commands("search"))


@pytest.mark.parametrize("padded", [" search", "Search", "sear"])
def test_a_name_that_is_nearly_right_was_not_offered(padded):
    move = planning().judge(a_plan(padded))

    assert isinstance(move, Execute)
    assert "Tools you may use: read, search." in move.refused[0].error


STUCK = [a_round(0, ("read", ERROR)), a_round(1, ("read", ERROR))]
STOPS = {
    PlanEnd.RESPONSE: lambda: planning().judge(normalise({"next_action": "response"})).reason,
    PlanEnd.USE_TOOL_FALSE: lambda: planning().judge(normalise({"use_tool": False})).reason,
    PlanEnd.NO_COMMANDS: lambda: planning().judge(normalise({})).reason,
    PlanEnd.UNREADABLE: lambda: planning().judge(normalise("?")).reason,
    PlanEnd.NO_TOOLS: lambda: planning(offered=()).judge(a_plan("read")).reason,
    PlanEnd.MAX_ROUNDS: lambda: planning(5).judge(a_plan("read")).reason,
    PlanEnd.DEADLINE: lambda: planning(overdue=True).judge(a_plan("read")).reason,
    PlanEnd.STUCK: lambda: planning(STUCK).ends,
    PlanEnd.NOT_OFFERED: lambda: planning(out_of_scope=OutOfScope.REFUSE_BATCH).judge(a_plan("x")).reason,
}


@pytest.mark.parametrize("reason", STOPS)
def test_every_stop_has_a_reason_of_its_own(reason):
    assert STOPS[reason]() is reason


def test_every_reason_is_tested_except_that_of_a_failed_request():
    assert set(PlanEnd) - set(STOPS) == {PlanEnd.PLANNER_ERROR}


def test_planners_verdict_comes_before_a_limit():
    move = planning(5, overdue=True).judge(normalise({"next_action": "response"}))

    assert move == Converge(reason=PlanEnd.RESPONSE)


@pytest.mark.parametrize(
    ("before", "after", "stuck"),
    [
        ([("read", ERROR)], [("read", ERROR)], True),
        ([("read", PlanStatus.TIMEOUT)], [("read", PlanStatus.DENIED), ("search", ERROR)], True),
        ([("read", ERROR)], [("search", ERROR)], False),  # it tries something else
        ([("read", ERROR), ("search", OK)], [("read", ERROR)], False),
        ([("read", ERROR)], [("read", ERROR), ("search", OK)], False),
        ([("read", PlanStatus.WAITING)], [("read", PlanStatus.WAITING)], False),
        ([("read", ERROR)], [], False),
    ],
)
def test_the_same_failure_twice_running_and_nothing_else_is_enough(before, after, stuck):
    assert is_stuck([a_round(1, *after), a_round(0, *before)]) is stuck


def test_only_the_last_two_rounds_count():
    rounds = [a_round(0, ("read", ERROR)), a_round(1, ("read", ERROR)), a_round(2, ("search", OK))]

    assert not is_stuck(rounds)
    assert is_stuck([a_round(0, ("search", OK)), a_round(1, ("read", ERROR)), a_round(2, ("read", ERROR))])
    assert not is_stuck(rounds[:1])
    assert not is_stuck([])


def test_a_planner_that_repeats_a_failing_call_is_stopped():
    asked, rounds, why = play(always, status=ERROR, max_rounds=None)

    assert (asked, why) == (2, PlanEnd.STUCK)
    assert len(done_plans(rounds)) == 2
