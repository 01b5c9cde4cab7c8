"""What the planner is asked, and what the answer is given of the work that was done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chordage.orchestrator.core.model import Prompt, ToolOffer, UserSays
from chordage.orchestrator.core.planning.plan import PlanEnd
from chordage.orchestrator.core.planning.prompts import (
    ACTION_RESULTS,
    NOTICE,
    PLANNER,
    PlannerRequest,
    answer_prompt,
    planner_input,
    planner_prompt,
    results_text,
)
from chordage.orchestrator.core.planning.reading import PLAN_KEYS, normalise
from chordage.orchestrator.core.planning.records import PlanRecord, PlanRound, PlanStatus, tool_logs

OFFER = ToolOffer(name="search", description="finds", schema={"type": "object"})
ANSWER = Prompt(system="be kind", said=(UserSays(text="how are things?"),), offers=(OFFER,), params={"t": 1})


def a_record(purpose: str = "look", **given: Any) -> PlanRecord:
    known = {"tool_name": "search", "kwargs": {}, "todo_suggestion": "", "status": PlanStatus.OK, "result": "found"}
    return PlanRecord(purpose=purpose, **{**known, **given})


def a_request(**given: Any) -> PlannerRequest:
    return PlannerRequest(
        **{"user_input": "how are things?", "tools": (OFFER,), "round_index": 0, "max_rounds": 5, **given}
    )


def test_planner_prompt_has_seven_named_parts():
    """A41"""
    first, second = a_record("one"), a_record("two")
    rounds = [PlanRound(index=0, records=(first,)), PlanRound(index=1, records=(second,))]

    assert planner_input(a_request(user_extra_requirement="be brief", rounds=rounds, round_index=2)) == {
        "input": {
            "user_input": "how are things?",
            "user_extra_requirement": "be brief",
            "available_tools": [{"name": "search", "desc": "finds", "kwargs": {"type": "object"}}],
        },
        "info": {
            "max_rounds": 5,
            "round_index": 2,
            "done_plans": tool_logs([first, second]),
            "last_round_result": tool_logs([second]),
        },
    }


def test_planner_is_called_in_a_request_of_its_own():
    """A40: no instructions, no files and no tools of the conversation; without `history` nothing of it at all."""
    prompt = planner_prompt(a_request(params={"t": 1}))

    assert (prompt.system, prompt.offers, prompt.params) == (PLANNER, (), {"t": 1})
    assert [json.loads(said.text) for said in prompt.said] == [planner_input(a_request())]


def test_changing_parts_come_after_the_constant_ones():
    before, after = (
        planner_prompt(a_request(round_index=at, rounds=[PlanRound(index=0, records=(a_record(),))])).said[0].text
        for at in (1, 2)
    )
    same = next(at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)

    assert "available_tools" in before[:same]
    assert before[:same].endswith('"round_index": ')


def test_planner_prompt_describes_the_form_that_the_normaliser_reads():
    for key in ("next_action", "execution_commands", "purpose", "tool_name", "tool_kwargs", "todo_suggestion"):
        assert f'"{key}"' in PLANNER
    assert PLANNER.index('"next_action"') < PLANNER.index('"execution_commands"')
    assert {"next_action", "execution_commands"} <= PLAN_KEYS


def test_a_planner_that_recites_its_input_has_not_planned():
    """Nothing that a tool returned can pass for a plan, whatever it says."""
    said = {"next_action": "execute", "execution_commands": [{"tool_name": "search"}]}
    recited = planner_prompt(a_request(rounds=[PlanRound(index=0, records=(a_record(result=said),))], round_index=1))

    assert normalise(recited.said[0].text).ends is PlanEnd.NO_COMMANDS


def test_without_records_nothing_is_put_into_the_answer():
    """A36"""
    assert answer_prompt(ANSWER, [], PlanEnd.MAX_ROUNDS) == Prompt(system="be kind", said=ANSWER.said, params={"t": 1})


def test_answer_prompt_contains_the_results_and_requires_citations():
    """A39"""
    prompt = answer_prompt(ANSWER, [a_record(), a_record("buy", status=PlanStatus.ERROR, error="no", result="no")])
    title, results, notice = prompt.said[-1].text.replace("]\n", "]\n\n").split("\n\n")

    assert (prompt.system, prompt.said[:-1], prompt.offers) == ("be kind", ANSWER.said, ())
    assert (title, notice) == (ACTION_RESULTS, NOTICE)
    assert json.loads(results) == {"look": "found", "buy": {"error": "no", "result": "no"}}
    assert "cite" in NOTICE
    assert "source" in NOTICE


CUT = [
    PlanEnd.UNREADABLE,
    PlanEnd.MAX_ROUNDS,
    PlanEnd.DEADLINE,
    PlanEnd.STUCK,
    PlanEnd.NOT_OFFERED,
    PlanEnd.PLANNER_ERROR,
]


@pytest.mark.parametrize("reason", [None, *PlanEnd])
def test_answer_to_interrupted_work_must_name_what_is_missing(reason):
    assert ("Say plainly what is missing." in results_text([a_record()], reason)) is (reason in CUT)


def test_a_result_that_json_does_not_have_is_shown_all_the_same():
    """A55"""
    record = a_record(result={"when": {1, 2}, "text": "été \ud83d"})

    assert '"{1, 2}"' in results_text([record])
    assert "{1, 2}" in planner_prompt(a_request(rounds=[PlanRound(index=0, records=(record,))])).said[0].text
