"""Whether there is another plan, and whether a plan is carried out. The loop of these tests is the rule and no more."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import OutOfScope
from chordage.orchestrator.core.planning.deciding import (
    BESIDE,
    MAX_ROUNDS,
    Converge,
    Execute,
    before_planning,
    decide,
    is_stuck,
)
from chordage.orchestrator.core.planning.plan import Command, PlanEnd
from chordage.orchestrator.core.planning.reading import normalise
from chordage.orchestrator.core.planning.records import PlanRecord, PlanRound, PlanStatus, done_plans

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


def play(planner, *, status=OK, offered=OFFERED, **limits):
    """How often the planner was asked, the rounds, and why it ended. The planner is given the rounds so far."""
    rounds, asked = [], 0
    while True:
        over = before_planning(round_index=len(rounds), offered=offered, rounds=rounds, **limits)
        if over is not None:
            return asked, rounds, over.reason
        asked += 1
        said = decide(normalise(planner(rounds)), round_index=len(rounds), offered=offered, **limits)
        if isinstance(said, Converge):
            return asked, rounds, said.reason
        rounds.append(a_round(len(rounds), *((one.tool_name, status) for one in said.commands)))


def always(_):
    return {"execution_commands": [{"tool_name": "search"}]}


def test_without_tools_no_planner_is_called():
    """A1"""
    assert play(always, offered=()) == (0, [], PlanEnd.NO_TOOLS)


def test_limit_is_five_rounds_unless_configured():
    """A2"""
    assert MAX_ROUNDS == 5
    assert len(play(always)[1]) == 5


@pytest.mark.parametrize("most", [1, 2, 5, 40])
def test_a_limit_of_rounds_costs_no_plan_that_is_thrown_away(most):
    """A5, beaten: asked behind the plan, the limit costs one more planner call, whose commands nobody carries out."""
    asked, rounds, why = play(always, max_rounds=most)

    assert (asked, len(rounds), why) == (most, most, PlanEnd.MAX_ROUNDS)


def test_no_rounds_cost_no_plan():
    """A6, beaten"""
    assert play(always, max_rounds=0) == (0, [], PlanEnd.MAX_ROUNDS)


def test_a_round_without_records_counts():
    """A11"""
    rounds = [PlanRound(index=0, records=())]

    assert before_planning(round_index=1, max_rounds=1, offered=OFFERED, rounds=rounds) == Converge(
        reason=PlanEnd.MAX_ROUNDS
    )
    assert before_planning(round_index=1, offered=OFFERED, rounds=rounds) is None


def test_without_a_limit_planning_ends_only_on_the_planners_word():
    def until(rounds):
        return "{}" if len(rounds) == 300 else always(rounds)

    assert play(until, max_rounds=None)[2] is PlanEnd.NO_COMMANDS
    assert len(play(until, max_rounds=None)[1]) == 300


def test_bad_arguments_do_not_end_the_loop():
    """A25: a failed record, and the planner is asked again."""
    rounds = [a_round(0, ("search", PlanStatus.BAD_INPUT))]

    assert before_planning(round_index=1, offered=OFFERED, rounds=rounds) is None


def test_garbage_leads_to_an_answer_without_tools():
    """A42"""
    assert play(lambda _: "I do not know.") == (1, [], PlanEnd.UNREADABLE)


def test_disabled_loop_calls_no_planner():
    """A44"""
    assert play(always, use_tool=False) == (0, [], PlanEnd.TOOLS_OFF)


def test_the_deadline_ends_planning_before_and_behind_the_plan():
    """A52: a limit that is asked only when all is over is none."""
    due = Converge(reason=PlanEnd.DEADLINE)

    assert before_planning(round_index=0, offered=OFFERED, overdue=True) == due
    assert decide(a_plan("search"), round_index=0, offered=OFFERED, overdue=True) == due


def test_a_tool_that_was_not_offered_does_not_run_and_the_others_do():
    """A53, beaten: named is not offered."""
    said = decide(a_plan("search", "erase", "read"), round_index=0, offered=OFFERED)

    assert isinstance(said, Execute)
    assert said.runnable == ((0, commands("search")[0]), (2, commands("read")[0]))
    assert {place: one.status for place, one in said.refused.items()} == {1: PlanStatus.NOT_OFFERED}
    assert said.commands == commands("search", "erase", "read")


def test_a_plan_of_nothing_that_was_offered_is_a_round_that_failed():
    """A53"""
    said = decide(a_plan("erase"), round_index=0, offered=OFFERED)

    assert isinstance(said, Execute)
    assert (said.runnable, len(said.refused)) == ((), 1)


def test_an_agent_may_refuse_such_a_plan_as_a_whole_and_every_command_has_a_record():
    """A53"""
    plan = a_plan("search", "erase")
    said = decide(plan, round_index=0, offered=OFFERED, out_of_scope=OutOfScope.REFUSE_BATCH)

    assert isinstance(said, Converge)
    assert said.reason is PlanEnd.NOT_OFFERED
    assert [one.status for one in said.records] == [PlanStatus.CANCELLED, PlanStatus.NOT_OFFERED]
    assert said.records[0].error == BESIDE


def test_such_an_agent_carries_out_a_plan_in_which_all_was_offered():
    said = decide(a_plan("search"), round_index=0, offered=OFFERED, out_of_scope=OutOfScope.REFUSE_BATCH)

    assert said == Execute(commands=commands("search"))


@pytest.mark.parametrize("padded", [" search", "Search", "sear"])
def test_a_name_that_is_nearly_right_was_not_offered(padded):
    said = decide(a_plan(padded), round_index=0, offered=OFFERED)

    assert isinstance(said, Execute)
    assert "Tools you may use: read, search." in said.refused[0].error


STOPS = {
    PlanEnd.RESPONSE: lambda: decide(normalise({"next_action": "response"}), round_index=0, offered=OFFERED),
    PlanEnd.USE_TOOL_FALSE: lambda: decide(normalise({"use_tool": False}), round_index=0, offered=OFFERED),
    PlanEnd.NO_COMMANDS: lambda: decide(normalise({}), round_index=0, offered=OFFERED),
    PlanEnd.UNREADABLE: lambda: decide(normalise("?"), round_index=0, offered=OFFERED),
    PlanEnd.TOOLS_OFF: lambda: decide(a_plan("read"), round_index=0, offered=OFFERED, use_tool=False),
    PlanEnd.NO_TOOLS: lambda: decide(a_plan("read"), round_index=0, offered=()),
    PlanEnd.MAX_ROUNDS: lambda: decide(a_plan("read"), round_index=5, offered=OFFERED),
    PlanEnd.DEADLINE: lambda: decide(a_plan("read"), round_index=0, offered=OFFERED, overdue=True),
    PlanEnd.STUCK: lambda: before_planning(
        round_index=2, offered=OFFERED, rounds=[a_round(0, ("read", ERROR)), a_round(1, ("read", ERROR))]
    ),
    PlanEnd.NOT_OFFERED: lambda: decide(
        a_plan("x"), round_index=0, offered=OFFERED, out_of_scope=OutOfScope.REFUSE_BATCH
    ),
}


@pytest.mark.parametrize("reason", STOPS)
def test_every_stop_has_a_reason_of_its_own(reason):
    assert STOPS[reason]().reason is reason


def test_every_reason_is_tested_except_that_of_a_failed_request():
    assert set(PlanEnd) - set(STOPS) == {PlanEnd.PLANNER_ERROR}


def test_planners_verdict_comes_before_a_limit():
    said = decide(normalise({"next_action": "response"}), round_index=5, offered=OFFERED, overdue=True)

    assert said == Converge(reason=PlanEnd.RESPONSE)


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
