"""Structured output with strategies that plan, and with one's own: it is the answer that has to fit, and no plan."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.model import UserSays
from chordage.orchestrator.core.moves import Finish, Infer
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.transcript import ACTION_RESULTS, REFUSED
from support.fakes import spoken
from support.invariants import check_all
from support.one_turn import change_agent, kinds
from support.outputs import BAD, GOOD, PROSE, demand, refusals, saying
from support.world import Died

ONE_TOOL = json.dumps(
    {"next_action": "execute", "execution_commands": [{"tool_name": "pure", "tool_kwargs": {"n": 1}}]}
)
NO_MORE = json.dumps({"next_action": "response"})


def planned(*answers):
    """One round, and then these answers."""
    answer = saying(*answers)

    def reply(prompt):
        first = prompt.said[0]
        if not (isinstance(first, UserSays) and first.text.startswith('{"input"')):
            return answer(prompt)
        return spoken(NO_MORE if json.loads(first.text)["info"]["round_index"] else ONE_TOOL)

    return reply


def start(world, *answers) -> str:
    demand(world)
    change_agent(world, strategy="plan_execute", plan=PlanSpec())
    world.models.script = planned(*answers)
    return world.submit(strategy="plan_execute")


def test_the_answer_behind_the_plans_is_put_right_and_no_plan_is_made_again(world):
    turn = start(world, PROSE, GOOD)
    world.run_dry()

    assert views.turn(world.store, turn).output == {"n": 7}
    assert kinds(world).count("PlanCommitted") == 2
    assert kinds(world)[-4:] == ["AssistantTurnCommitted", "OutputRefused", "AssistantTurnCommitted", "RunFinished"]
    assert world.tools.ran.total() == 1
    check_all(world.store)


def test_the_planner_is_shown_no_demand_and_the_second_answer_all_that_was_done(world):
    start(world, BAD, GOOD)
    world.run_dry()

    plan, _, answer, again = world.models.prompts
    assert (plan.output, "exactly one JSON value" in plan.system) == (None, False)
    assert answer.output == again.output is not None
    told = [said.text for said in again.said]
    assert any(text.startswith(REFUSED) for text in told)
    assert told[-1].startswith(ACTION_RESULTS)


def test_two_answers_that_do_not_fit_are_an_error_and_the_records_are_kept(world):
    turn = start(world, PROSE, BAD)
    world.run_dry()

    assert views.turn(world.store, turn).code == "output_invalid"
    body = world.row("journal", kind="RunFinished")["body"]
    assert [log["result"] for log in body["extra"]["tool_logs"]] == ["pure1"]


@pytest.mark.parametrize("at", range(1, 9))
def test_death_at_any_commit_changes_nothing(world, at):
    turn = start(world, PROSE, GOOD)
    world.die_at = world.commits + at
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None
    world.recover()

    assert views.turn(world.store, turn).output == {"n": 7}
    assert (len(refusals(world)), kinds(world).count("PlanCommitted")) == (1, 2)
    check_all(world.store)


def test_custom_strategy_must_meet_the_output_schema_too(world, monkeypatch):
    module = ModuleType("own_code")
    module.once = lambda view: Infer() if view.reply is None else Finish(ending=NATURAL_END)
    monkeypatch.setitem(sys.modules, "own_code", module)
    demand(world)
    change_agent(world, strategy="own_code:once")
    world.models.script = saying(PROSE, GOOD)
    turn = world.submit()
    world.run_dry()

    assert views.turn(world.store, turn).output == {"n": 7}
    assert len(refusals(world)) == 1
