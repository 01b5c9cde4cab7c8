"""AG-UI events of a turn: in the order that the clients enforce, and with the transcript that the moments have."""

from __future__ import annotations

from typing import Any

import pytest

from chordage.orchestrator.core.approvals import Action, Why
from chordage.orchestrator.faces.agui import APPROVAL, AguiFace, decision_in
from chordage.orchestrator.faces.moments import (
    CallProgressed,
    MessageTaken,
    StepStarted,
    SubAgentStarted,
    TextGrown,
    Waiting,
)
from chordage.orchestrator.plugins.permission import SCHEMA
from support import agui_order
from support.moments import ADD, ADD_MORE, USAGE, Script, any_script, question, reasoned, transcript

USER = {"id": "u1", "role": "user", "content": "Hello"}


def face(**fields: Any) -> AguiFace:
    return AguiFace(**{"thread_id": "t1", "run_id": "r1", "messages": [USER], **fields})


def events_of(one: AguiFace, moments: list[Any]) -> list[dict[str, Any]]:
    events = one.begin()
    for moment in moments:
        events += one.feed(moment)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def without_waits(moments: list[Any]) -> list[Any]:
    return [moment for moment in moments[:-1] if not isinstance(moment, Waiting)] + moments[-1:]


@pytest.mark.parametrize("seed", range(300))
def test_any_turn_is_told_in_order_and_whole(seed):
    moments = without_waits(any_script(seed).moments)
    events = events_of(face(), moments)

    agui_order.check(events)
    messages = agui_order.messages_of(events, [USER])
    assert agui_order.said(messages)[1:] == transcript(moments)
    assert agui_order.reasoned(messages) == reasoned(moments)
    assert agui_order.reasoned(messages) == reasoned(moments)


@pytest.mark.parametrize("seed", range(300))
def test_any_turn_read_in_parts_is_the_same_conversation(seed):
    """Each wait ends a run of the client, and its answers begin the next."""
    moments = any_script(seed).moments
    messages, answers, shown = [dict(USER)], (), []
    ends = [place for place, moment in enumerate(moments) if isinstance(moment, Waiting)]
    for end in [*ends, len(moments) - 1]:
        events = events_of(face(messages=messages, answers=answers), without_waits(moments[: end + 1]))
        agui_order.check(events)
        messages = agui_order.messages_of(events, messages)
        shown += [event["toolCallId"] for event in of_kind(events, "TOOL_CALL_START")]
        answers = [one.id for one in moments[end].questions] if isinstance(moments[end], Waiting) else ()

    assert agui_order.said(messages)[1:] == transcript(moments)
    assert len(shown) == len(set(shown)), "no call begins twice"


def test_a_plain_turn():
    moments = Script().queued().started().replied("It is ", "3.").ended().moments

    assert kinds(events_of(face(), moments)) == [
        "RUN_STARTED", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_FINISHED",
    ]  # fmt: skip


def test_a_round_of_parallel_calls_is_a_step_with_their_results():
    script = Script().started().replied("Let me add.", calls=[ADD, ADD_MORE])
    script.settled(ADD_MORE, "34").settled(ADD, "3").round_settled().replied("37").ended(output={"sum": 37})
    events = events_of(face(), script.moments)

    steps = [event["stepName"] for event in of_kind(events, "STEP_STARTED")]
    assert steps == ["inference:1", "round:2", "inference:3"]
    assert [event["toolCallId"] for event in of_kind(events, "TOOL_CALL_RESULT")] == ["c2", "c1"]
    assert {event["parentMessageId"] for event in of_kind(events, "TOOL_CALL_START")} == {"run1:1"}
    (finished,) = of_kind(events, "RUN_FINISHED")
    assert (finished["outcome"], finished["result"]) == ({"type": "success"}, {"sum": 37})
    assert finished["usage"] == [
        {
            "provider": "scripted", "model": "one", "inputTokens": 10, "outputTokens": 6, "totalTokens": 16,
            "cachedInputTokens": 0, "cacheWriteInputTokens": 0,
        }
    ]  # fmt: skip


def test_why_a_turn_waits_is_told_and_taken_back():
    events = events_of(face(), Script().queued("behind turn 7").queued("budget full").started().moments)
    notes = of_kind(events, "ACTIVITY_SNAPSHOT")

    assert [note["content"] for note in notes] == [{"why": "behind turn 7"}, {"why": "budget full"}, {}]
    assert {(note["messageId"], note["activityType"], note["replace"]) for note in notes} == {
        ("turn1:waiting", "chordage.waiting", True)
    }


def test_progress_of_a_call_is_an_activity():
    script = Script().started().replied(calls=[ADD]).say(CallProgressed(id="c1", text="half"))
    (note,) = of_kind(events_of(face(), script.moments), "ACTIVITY_SNAPSHOT")

    assert (note["activityType"], note["content"]) == ("chordage.tool", {"toolCallId": "c1", "text": "half"})


def test_text_of_a_dead_worker_is_withdrawn_and_begins_again_under_another_id():
    script = Script().started().replied("The whole.", dropped="The wh").ended()
    events = events_of(face(), script.moments)

    assert [event["messageId"] for event in of_kind(events, "TEXT_MESSAGE_START")] == ["run1:1", "run1:1.1"]
    assert of_kind(events, "MESSAGES_SNAPSHOT")[0]["messages"] == [USER]
    agui_order.check(events)
    assert [one["text"] for one in agui_order.said(agui_order.messages_of(events))] == ["Hello", "The whole."]


def test_a_plan_is_no_message():
    events = events_of(face(), Script().started().replied("1. add", is_plan=True).replied("Done.").ended().moments)

    agui_order.check(events)
    assert [one["text"] for one in agui_order.said(agui_order.messages_of(events, [USER]))] == ["Hello", "Done."]


def test_a_steered_message_is_one_of_the_user():
    script = Script().started().replied(calls=[ADD]).settled(ADD, "3").round_settled()
    script.say(MessageTaken(step=3, turn_id="turn2", sender="owner", text="And 4?")).replied("7").ended()
    events = events_of(face(), script.moments)

    assert agui_order.said(agui_order.messages_of(events, [USER]))[1:] == transcript(script.moments)


def test_own_message_that_was_steered_into_a_run_does_not_come_back():
    script = Script().started().replied(calls=[ADD]).settled(ADD, "3").round_settled()
    script.say(MessageTaken(step=3, turn_id="turn2", sender="owner", text="And 4?")).replied("7").ended()
    events = events_of(face(turns=["turn2"]), script.moments)

    assert [message["role"] for message in agui_order.messages_of(events)] == ["assistant", "tool", "assistant"]


def waiting_script() -> Script:
    script = Script().started().replied("I ask.", calls=[ADD, ADD_MORE]).asked(question(ADD)).settled(ADD_MORE, "34")
    return script.waiting(question(ADD))


def test_waiting_ends_the_run_with_an_interrupt():
    events = events_of(face(), waiting_script().moments)

    assert kinds(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert events[-1]["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                "id": "q-c1", "reason": "tool_call", "message": "May it run?", "toolCallId": "c1",
                "responseSchema": APPROVAL, "expiresAt": "2053-05-18T00:00:00+00:00",
                "metadata": {
                    "chordage": {"digest": "d1", "tool": "add", "arguments": {"a": 1, "b": 2}, "onExpiry": "deny"}
                },
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"why": "outcome_unknown", "schema": {"type": "object"}}, ("chordage:outcome_unknown", {"type": "object"})),
        ({"why": "tool"}, ("input_required", None)),
        ({"why": "tool", "schema": {"type": "string"}}, ("input_required", {"type": "string"})),
    ],
)
def test_reason_and_schema_follow_from_why_it_is_asked(fields, shown):
    script = Script().started().replied(calls=[ADD]).waiting(question(ADD, **fields))
    (interrupt,) = events_of(face(), script.moments)[-1]["outcome"]["interrupts"]

    assert (interrupt["reason"], interrupt.get("responseSchema")) == shown


def of_client(call, **fields: Any):
    return question(call, why="client_tool", **fields)


@pytest.mark.parametrize("is_old", [False, True])
def test_run_with_calls_for_the_client_succeeds_and_names_them(is_old):
    script = Script().started().replied(calls=[ADD, ADD_MORE]).settled(ADD, "3").asked(of_client(ADD_MORE))
    events = events_of(face(is_old=is_old), script.waiting(of_client(ADD_MORE)).moments)

    pending = {} if is_old else {"pendingToolCallIds": [ADD_MORE.id]}
    assert events[-1]["outcome"] == {"type": "success", **pending}


def test_question_to_a_person_comes_before_a_call_for_the_client():
    asked, other = question(ADD), of_client(ADD_MORE)
    script = Script().started().replied(calls=[ADD, ADD_MORE]).asked(asked).asked(other).waiting(asked, other)
    outcome = events_of(face(), script.moments)[-1]["outcome"]

    assert (outcome["type"], [one["id"] for one in outcome["interrupts"]]) == ("interrupt", [asked.id])


def test_result_of_the_client_is_not_sent_back_to_it():
    asked = of_client(ADD)
    script = Script().started().replied(calls=[ADD]).asked(asked).answered(asked).settled(ADD, "red").round_settled()
    script.replied("done").ended()
    said = events_of(face(), [*script.moments[:4], Waiting(questions=(asked,), usage=USAGE)])
    (message,) = [one for one in of_kind(said, "MESSAGES_SNAPSHOT")[-1]["messages"] if one["role"] == "assistant"]
    result = {"id": "mine", "role": "tool", "toolCallId": ADD.id, "content": "red"}

    events = events_of(face(messages=[message, result], answers=[asked.id]), script.moments)
    assert of_kind(events, "TOOL_CALL_RESULT") == of_kind(events, "TOOL_CALL_START") == []
    assert [one["delta"] for one in of_kind(events, "TEXT_MESSAGE_CONTENT")] == ["done"]
    (result,) = of_kind(events_of(face(), script.moments), "TOOL_CALL_RESULT")
    assert result["content"] == "red", "who reads the run from its start has no result"


BOB = SubAgentStarted(id="turn8", call_id="c1", agent="bob")
CLEO = SubAgentStarted(id="turn9", call_id="c8", agent="cleo", parent="turn8")
OF_CLEO = question(ADD, id="q9", call_id="c9", run_id="run9", asker="turn9", expires_at=None, prompt="")


def delegated() -> Script:
    return Script().started().replied(calls=[ADD]).say(BOB)


def sub_agents(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"].startswith("SUBAGENT_")]


def test_a_sub_agent_is_started_and_ends_with_its_call():
    events = events_of(face(), delegated().settled(ADD, "Done.").round_settled().replied("So.").ended().moments)

    agui_order.check(events)
    message = of_kind(events, "TOOL_CALL_START")[0]["parentMessageId"]
    assert sub_agents(events) == [
        {
            "type": "SUBAGENT_STARTED", "subagentRunId": "turn8", "name": "bob", "parentToolCallId": "c1",
            "parentMessageId": message,
        },
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "turn8", "result": "Done.", "outcome": {"type": "success"}},
    ]  # fmt: skip


def test_a_sub_agent_that_fails_ends_with_an_error_and_the_run_does_not():
    failed = delegated().settled(ADD, "It failed.", code="child_failed").round_settled().replied("So.").ended()
    events = events_of(face(), failed.moments)

    agui_order.check(events)
    assert sub_agents(events)[1:] == [
        {"type": "SUBAGENT_ERROR", "subagentRunId": "turn8", "message": "It failed.", "code": "child_failed"}
    ]
    assert events[-1]["outcome"] == {"type": "success"}


def test_a_sub_agent_of_a_plan_ends_too():
    plan = Script().started().replied(calls=[ADD], is_plan=True).say(BOB).settled(ADD, "Done.").round_settled()
    agui_order.check(events_of(face(), plan.replied("So.").ended().moments))


def test_a_question_of_a_sub_agent_names_it_and_no_call_of_this_run():
    events = events_of(face(), delegated().say(CLEO).waiting(OF_CLEO).moments)
    (interrupt,) = events[-1]["outcome"]["interrupts"]

    agui_order.check(events)
    assert interrupt["subagentRunId"] == "turn9"
    assert {"toolCallId", "expiresAt", "message"} & set(interrupt) == set()
    _, nested, *ends = sub_agents(events)
    assert nested == {
        "type": "SUBAGENT_STARTED", "subagentRunId": "turn9", "name": "cleo", "parentSubagentRunId": "turn8",
    }  # fmt: skip
    suspended = {"type": "suspended", "interruptIds": ["q9"]}
    assert [(end["type"], end["subagentRunId"], end["outcome"]) for end in ends] == [
        ("SUBAGENT_FINISHED", "turn9", suspended), ("SUBAGENT_FINISHED", "turn8", suspended),
    ]  # fmt: skip


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_sub_agent_goes_on_in_the_run_that_answers_it(asks_again):
    before = agui_order.messages_of(events_of(face(), delegated().say(CLEO).waiting(OF_CLEO).moments), [USER])
    goes_on = delegated()
    if asks_again:
        goes_on.say(CLEO).waiting(OF_CLEO)
    else:
        goes_on.settled(ADD, "Done.").round_settled().replied("So.").ended()
    events = events_of(face(messages=before, answers=["q9"]), goes_on.moments)

    agui_order.check(events)
    shown = [event["subagentRunId"] for event in of_kind(events, "SUBAGENT_STARTED")]
    assert shown == (["turn8", "turn9"] if asks_again else ["turn8"])
    assert "TOOL_CALL_START" not in kinds(events)
    assert len(of_kind(events, "TOOL_CALL_RESULT")) == (0 if asks_again else 1)


def test_clients_before_1_0_are_sent_nothing_of_sub_agents():
    waiting = events_of(face(is_old=True), delegated().say(CLEO).waiting(OF_CLEO).moments)
    ended = events_of(
        face(is_old=True), delegated().settled(ADD, "Done.").round_settled().replied("So.").ended().moments
    )

    assert "subagent" not in str([*waiting, *ended]).lower()
    assert len(of_kind(ended, "TOOL_CALL_RESULT")) == 1


def test_a_state_is_sent_back_before_an_interrupt():
    assert kinds(events_of(face(state={"page": 3}), waiting_script().moments))[-3:] == [
        "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip


def continued() -> list[Any]:
    script = waiting_script().answered(question(ADD)).settled(ADD, "3").round_settled().replied("37").ended()
    return without_waits(script.moments)


def test_after_an_answer_only_what_is_new_is_sent():
    before = agui_order.messages_of(events_of(face(), waiting_script().moments))
    events = events_of(face(messages=before, answers=["q-c1"]), continued())

    assert kinds(events) == [
        "RUN_STARTED", "STEP_STARTED", "TOOL_CALL_RESULT", "STEP_FINISHED", "STEP_STARTED", "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_FINISHED",
    ]  # fmt: skip
    assert agui_order.said(agui_order.messages_of(events, before))[1:] == transcript(continued())
    assert [usage["inputTokens"] for usage in events[-1]["usage"]] == [5], "of this run of the client alone"


@pytest.mark.parametrize("place", [0, 1])
def test_result_that_comes_before_the_answer_is_not_lost(place):
    """What is live may be ahead of what is on record: of the answer, and even of the question."""
    script = Script().started().replied(calls=[ADD])
    before = agui_order.messages_of(
        events_of(face(), [*script.moments, Waiting(questions=(question(ADD),), usage=None)])
    )
    known = [question(ADD), Script().answered(question(ADD)).moments[0]]
    known.insert(place, Script().settled(ADD, "3").moments[0])
    moments = [*script.moments, *known, *Script(step=1).replied("Done.").ended().moments]
    events = events_of(face(messages=before, answers=["q-c1"]), moments)

    agui_order.check(events)
    assert len(of_kind(events, "TOOL_CALL_RESULT")) == 1
    assert agui_order.said(agui_order.messages_of(events, before))[1:] == transcript(moments)


def test_a_client_that_sends_no_messages_with_its_answer_gets_no_old_call_again():
    events = events_of(face(messages=[], answers=["q-c1"]), continued())

    assert "TOOL_CALL_START" not in kinds(events)
    assert [event["toolCallId"] for event in of_kind(events, "TOOL_CALL_RESULT")] == ["c1"]


def test_after_an_answer_to_a_sub_agents_question_the_result_of_its_call_comes():
    """That question and its answer are moments of the sub-agent's turn, not of this one."""
    asked = question(ADD, id="q9", call_id="c9", run_id="run9")
    script = Script().started().replied(calls=[ADD]).asked(asked)
    before = agui_order.messages_of(events_of(face(), [*script.moments, Waiting(questions=(asked,), usage=None)]))
    script.settled(ADD, "from below").round_settled().replied("Done.").ended()
    events = events_of(face(messages=before, answers=["q9"]), script.moments)

    agui_order.check(events)
    assert kinds(events)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
    assert agui_order.said(agui_order.messages_of(events, before))[1:] == transcript(script.moments)


def test_an_answer_that_shows_in_no_moment_still_ends_with_the_whole_conversation():
    script = Script().started().replied("One.").ended()
    events = events_of(face(answers=["q9"]), script.moments)

    assert kinds(events) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert agui_order.said(agui_order.messages_of(events))[1:] == transcript(script.moments)


def test_a_client_with_half_of_the_reply_is_set_back_before_it_comes_again():
    half = {"id": "run1:1", "role": "assistant", "content": "The wh"}
    events = events_of(face(messages=[USER, half]), Script().started().replied("The whole.").ended().moments)

    assert kinds(events)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert [one["text"] for one in agui_order.said(agui_order.messages_of(events))] == ["Hello", "The whole."]


def test_a_client_with_half_of_the_reasoning_does_not_get_it_twice():
    """It keeps what a snapshot leaves out, so that is emptied."""
    half = {"id": "run1:1.reasoning", "role": "reasoning", "content": "It mu"}
    script = Script().started().replied("The whole.", reasoning=["It must be."]).ended()
    events = events_of(face(messages=[USER, half]), script.moments)

    assert kinds(events)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert agui_order.reasoned(agui_order.messages_of(events, [USER, half])) == ["It must be."]


def test_a_client_with_half_of_what_followed_its_answer_is_set_back_before_it_comes_again():
    before = agui_order.messages_of(events_of(face(), waiting_script().moments))
    half = [*before, {"id": "run1:3", "role": "assistant", "content": "3"}]
    events = events_of(face(messages=half, answers=["q-c1"]), continued())

    assert kinds(events)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert agui_order.said(agui_order.messages_of(events, half))[1:] == transcript(continued())


def test_a_client_that_comes_back_gets_the_conversation_first():
    events = face(is_back=True).begin()

    assert kinds(events) == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert events[1]["messages"] == [USER]


@pytest.mark.parametrize(
    ("disposition", "reason", "is_old", "end"),
    [
        ("answered", "natural_end", False, {"type": "success"}),
        ("steered", None, False, {"type": "success"}),
        ("answered", "stopped", False, {"type": "cancelled"}),
        ("cancelled", "cancelled", False, {"type": "cancelled"}),
        ("superseded", None, False, {"type": "cancelled"}),
        ("answered", "natural_end", True, {"type": "success"}),
        ("cancelled", "cancelled", True, "cancelled"),
        ("answered", "stopped", True, "cancelled"),
        ("failed", "error", False, "timeout"),
        ("expired", None, False, "expired"),
        ("failed", "error", True, "timeout"),
    ],
)
def test_how_a_turn_ends(disposition, reason, is_old, end):
    code = "timeout" if disposition == "failed" else None
    script = Script().started().ended(disposition, reason, code=code, detail="because")
    last = events_of(face(is_old=is_old), script.moments)[-1]

    if isinstance(end, str):
        assert (last["type"], last["code"], last["message"]) == ("RUN_ERROR", end, "because")
    else:
        assert (last["type"], last["outcome"]) == ("RUN_FINISHED", end)


def test_the_old_dialect_knows_no_version():
    assert face().begin()[0]["protocolVersion"] == "1.0"
    assert "protocolVersion" not in face(is_old=True).begin()[0]


def test_a_stream_that_breaks_off_is_closed_in_order():
    one = face()
    script = Script().started().say(StepStarted(step=1), TextGrown(step=1, attempt=1, text="The wh"))
    events = events_of(one, script.moments) + one.fail("The stream broke off.", "stream_lost")

    agui_order.check(events)
    assert kinds(events)[-3:] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
    assert one.is_over
    assert one.fail("again", "again") == []


def test_a_stream_that_breaks_off_before_the_answers_closes_nothing_that_it_has_not_opened():
    one = face(answers=["q1"])
    events = events_of(one, Script().started().say(StepStarted(step=1)).moments) + one.fail("It broke off.", "lost")

    assert kinds(events) == ["RUN_STARTED", "RUN_ERROR"]


def test_nothing_follows_the_end():
    one = face()
    events_of(one, Script().started().ended().moments)

    assert one.is_over
    assert one.feed(StepStarted(step=9)) == []


ANY: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("payload", "why", "schema", "decision"),
    [
        ({"approved": True}, Why.GATE, None, (Action.RESUME, {"edited_args": None})),
        ({"approved": True, "editedArgs": {"a": 9}}, Why.GATE, None, (Action.RESUME, {"edited_args": {"a": 9}})),
        ({"approved": False, "reason": "no"}, Why.GATE, None, (Action.CANCEL, {"reason": "no"})),
        ({"approved": False}, Why.TOOL, None, (Action.CANCEL, {"reason": None})),
        ("blue", Why.TOOL, None, (Action.RESUME, {"payload": "blue"})),
        ("blue", Why.TOOL, ANY, (Action.RESUME, {"payload": "blue"})),
        ({"approved": False}, Why.TOOL, ANY, (Action.RESUME, {"payload": {"approved": False}})),
        ({"approved": True}, Why.GATE, SCHEMA, (Action.RESUME, {"edited_args": None})),
        (
            {"approved": True, "remember": True}, Why.GATE, SCHEMA,
            (Action.RESUME, {"edited_args": None, "payload": {"remember": True}}),
        ),
        ({"approved": True, "note": 1}, Why.TOOL, None, (Action.RESUME, {"edited_args": None, "payload": {"note": 1}})),
    ],
)  # fmt: skip
def test_an_answer_is_a_decision(payload, why, schema, decision):
    assert decision_in(payload, why=why, schema=schema) == decision


@pytest.mark.parametrize("payload", [None, True, "yes", {"approved": "yes"}, {"approved": True, "editedArgs": [1]}])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_an_unclear_answer_never_lets_a_call_run(payload, schema):
    with pytest.raises(ValueError, match="payload"):
        decision_in(payload, why=Why.GATE, schema=schema)


def test_what_else_an_approval_may_say_is_in_its_schema():
    script = Script().started().replied(calls=[ADD]).waiting(question(ADD, schema=SCHEMA))
    (interrupt,) = events_of(face(), script.moments)[-1]["outcome"]["interrupts"]

    assert set(interrupt["responseSchema"]["properties"]) == {"approved", "editedArgs", "reason", "remember"}
