"""A script tells requests for plans from others, and a request in one round from the same in the next."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.model import AssistantSays, ToolAsk, ToolSays, UserSays
from chordage.orchestrator.core.planning.prompts import PlannerRequest, planner_prompt
from chordage.orchestrator.gateways.models.script_files import load
from support.fake_providers import a_prompt, a_script

PLANNING = """
- {when: {plan: true}, text: first plan}
- {when: {plan: true}, text: second plan}
- {when: {plan: true, round: 3}, text: third plan}
- {when: {plan: false}, text: the answer}
"""


def reply_text(tmp_path, script, prompt):
    return load(a_script(tmp_path, script))(prompt, 1).text


def plan(number):
    return planner_prompt(PlannerRequest(user_input="hi", tools=(), round_index=number, max_rounds=5))


def test_plans_come_in_their_order_and_the_answer_is_another_reply(tmp_path):
    assert [reply_text(tmp_path, PLANNING, plan(n)) for n in range(3)] == ["first plan", "second plan", "third plan"]
    assert reply_text(tmp_path, PLANNING, a_prompt("hi")) == "the answer"


def test_a_repeated_call_is_distinguished_from_the_first_by_its_round(tmp_path):
    script = "- {when: {round: 2}, text: again}\n- {when: {round: 1}, text: once}\n- {text: else}\n"
    call = ToolAsk(id="a", name="look", arguments={}, raw="{}")
    again = (AssistantSays(text="", asks=(call,)), ToolSays(ask_id="a", name="look", content="x"))
    first = a_prompt("hi")
    assert reply_text(tmp_path, script, first) == "once"
    assert reply_text(tmp_path, script, a_prompt(UserSays(text="hi"), *again)) == "again"


def test_a_wrong_value_of_plan_is_reported(tmp_path):
    with pytest.raises(RoomError, match=r"when\.plan must be a valid boolean, not .maybe"):
        load(a_script(tmp_path, "- {when: {plan: maybe}, text: x}\n"))
