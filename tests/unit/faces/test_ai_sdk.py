"""The chunks of the AI SDK: in the order that its reducer wants, in both dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from chordage.orchestrator.faces.ai_sdk import AiSdkDialect, AiSdkFace
from chordage.orchestrator.faces.moments import (
    CallProgressed,
    MessageTaken,
    QuestionAnswered,
    StepStarted,
    TextGrown,
    Waiting,
)
from support.moments import ADD, ADD_MORE, Script, any_script, question

SIX, SEVEN = AiSdkDialect.SIX, AiSdkDialect.SEVEN
BOTH = pytest.mark.parametrize("dialect", [SIX, SEVEN])
ONLY_SEVEN = {"reset-step", "steering-message", "tool-approval-response", "custom"}


def chunks_of(moments: Iterable[Any], dialect: AiSdkDialect = SIX, answers: Iterable[str] = ()) -> list[dict[str, Any]]:
    face = AiSdkFace(turn_id="turn1", dialect=dialect, answers=list(answers))
    chunks = face.begin()
    for moment in moments:
        chunks += face.feed(moment)
    return chunks


def kinds(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


def of_kind(chunks: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [chunk for chunk in chunks if chunk["type"] == kind]


def of_client(call, **fields: Any):
    return question(call, why="client_tool", **fields)


@BOTH
def test_call_that_the_client_carries_out_is_no_approval(dialect):
    script = Script().started().replied(calls=[ADD, ADD_MORE]).settled(ADD, "3").asked(of_client(ADD_MORE))
    chunks = chunks_of(script.waiting(of_client(ADD_MORE)).moments, dialect)

    assert of_kind(chunks, "tool-approval-request") == []
    assert [chunk["input"] for chunk in of_kind(chunks, "tool-input-available")] == [ADD.arguments, ADD_MORE.arguments]
    assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}


def test_result_of_the_client_is_not_sent_back_to_it():
    asked = of_client(ADD)
    script = Script().started().replied(calls=[ADD]).asked(asked).answered(asked).settled(ADD, '{"a": 1}')
    script.round_settled().replied("done").ended()

    assert of_kind(chunks_of(script.moments, answers=[asked.id]), "tool-output-available") == []
    (result,) = of_kind(chunks_of(script.moments), "tool-output-available")
    assert result["output"] == '{"a": 1}', "who reads the turn from its start has no result"


def test_result_that_another_has_decided_is_sent_to_the_client():
    asked, other = of_client(ADD), of_client(ADD_MORE)
    script = Script().started().replied(calls=[ADD, ADD_MORE]).asked(asked).asked(other)
    script.answered(asked).settled(ADD, "3").answered(other, "cancel").settled(ADD_MORE, "expired", "denied")
    script.round_settled().replied("done").ended()

    chunks = chunks_of(script.moments, answers=[asked.id])
    assert [chunk["toolCallId"] for chunk in of_kind(chunks, "tool-output-denied")] == [ADD_MORE.id]


def without_waits(moments: list[Any]) -> list[Any]:
    return [moment for moment in moments[:-1] if not isinstance(moment, Waiting)] + moments[-1:]


@BOTH
@pytest.mark.parametrize("seed", range(200))
def test_any_turn_is_told_in_order(seed, dialect):
    """Texts are open or not, steps too, and of a call nothing is said before its input."""
    chunks = chunks_of(without_waits(any_script(seed).moments), dialect)
    texts, has_step, calls, before_text = set(), False, set(), True
    for chunk in chunks:
        match chunk["type"]:
            case "text-start" | "reasoning-start":
                assert has_step
                assert not texts, "one is open at a time"
                assert before_text, "reasoning comes first"
                before_text = chunk["type"] == "reasoning-start"
                texts.add(chunk["id"])
            case "text-delta" | "reasoning-delta":
                assert chunk["id"] in texts
            case "text-end" | "reasoning-end":
                texts.remove(chunk["id"])
            case "reset-step":
                texts.clear()
                before_text = True
            case "start-step":
                assert not has_step
                has_step = before_text = True
            case "finish-step":
                assert has_step
                assert not texts
                has_step = False
            case "tool-input-start":
                assert chunk["toolCallId"] not in calls
                calls.add(chunk["toolCallId"])
            case kind if kind.startswith("tool-"):
                assert chunk["toolCallId"] in calls
    assert kinds(chunks)[0] == "start"
    assert kinds(chunks)[-1] in {"finish", "error"}
    assert dialect is SEVEN or not ONLY_SEVEN & set(kinds(chunks)), "version 6 refuses chunks that it does not know"


@BOTH
def test_reasoning_of_a_dead_worker_is_withdrawn(dialect):
    script = Script().started().replied("Yes.", reasoning=["So."], dropped="", lost_reasoning="No").ended()
    chunks = chunks_of(script.moments, dialect)

    shown = kinds(chunks)[2:5]
    if dialect is SEVEN:
        assert shown == ["reasoning-start", "reasoning-delta", "reset-step"]
        assert [chunk["delta"] for chunk in chunks if "delta" in chunk] == ["No", "So.", "Yes."]
    else:
        assert shown == ["reasoning-start", "reasoning-delta", "reasoning-end"]
        assert kinds(chunks)[-2:] == ["finish-step", "error"]


@BOTH
def test_a_plain_turn(dialect):
    chunks = chunks_of(Script().queued().started().replied("It is ", "3.").ended().moments, dialect)

    assert chunks == [
        {"type": "start", "messageId": "turn1"},
        {"type": "start-step"},
        {"type": "text-start", "id": "text-1"},
        {"type": "text-delta", "id": "text-1", "delta": "It is "},
        {"type": "text-delta", "id": "text-1", "delta": "3."},
        {"type": "text-end", "id": "text-1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]


@BOTH
def test_parallel_calls_and_their_results(dialect):
    script = Script().started().replied("Let me add.", calls=[ADD, ADD_MORE])
    script.say(CallProgressed(id="c1", text="half")).settled(ADD_MORE, "broken", "tool_error").settled(ADD, "3")
    chunks = chunks_of(script.round_settled().replied("37").ended().moments, dialect)

    inputs = [chunk for chunk in chunks if chunk["type"].startswith("tool-input-")]
    assert kinds(inputs) == ["tool-input-start", "tool-input-delta", "tool-input-available"] * 2
    assert [chunk["inputTextDelta"] for chunk in of_kind(chunks, "tool-input-delta")] == [
        '{"a": 1, "b": 2}',
        '{"a": 30}',
    ]
    begun = {"tool-input-start", "tool-input-delta"}
    assert [chunk for chunk in chunks if chunk["type"].startswith("tool-") and chunk["type"] not in begun] == [
        {
            "type": "tool-input-available",
            "toolCallId": "c1",
            "toolName": "add",
            "input": {"a": 1, "b": 2},
            "dynamic": True,
        },
        {"type": "tool-input-available", "toolCallId": "c2", "toolName": "add", "input": {"a": 30}, "dynamic": True},
        {"type": "tool-output-available", "toolCallId": "c1", "output": "half", "dynamic": True, "preliminary": True},
        {"type": "tool-output-error", "toolCallId": "c2", "errorText": "broken", "dynamic": True},
        {"type": "tool-output-available", "toolCallId": "c1", "output": "3", "dynamic": True},
    ]
    assert kinds(chunks).count("start-step") == kinds(chunks).count("finish-step") == 2


def test_why_a_turn_waits_is_transient_data():
    chunks = chunks_of(Script().queued("behind turn 7").moments)

    assert chunks[1] == {
        "type": "data-chordage", "data": {"why": "behind turn 7", "status": "queued"}, "transient": True,
    }  # fmt: skip


def test_version_7_withdraws_the_text_of_a_dead_worker():
    chunks = chunks_of(Script().started().replied("The whole.", dropped="The wh").ended().moments, SEVEN)

    assert kinds(chunks)[1:8] == [
        "start-step", "text-start", "text-delta", "reset-step", "text-start", "text-delta", "text-end",
    ]  # fmt: skip


def test_version_6_gets_an_error_for_the_text_of_a_dead_worker_and_nothing_more():
    chunks = chunks_of(Script().started().replied("The whole.", dropped="The wh").ended().moments, SIX)

    assert kinds(chunks)[-2:] == ["finish-step", "error"]
    assert "again" in chunks[-1]["errorText"]


def test_a_worker_that_died_before_it_said_anything_is_not_noticed():
    chunks = chunks_of(Script().started().replied("The whole.", dropped="").ended().moments, SIX)

    assert kinds(chunks)[-1] == "finish"


def test_a_steered_message_is_shown_by_version_7():
    taken = MessageTaken(step=3, turn_id="turn2", sender="owner", text="And 4?")
    script = Script().started().replied(calls=[ADD]).settled(ADD, "3").round_settled().say(taken).replied("7").ended()

    (chunk,) = of_kind(chunks_of(script.moments, SEVEN), "steering-message")
    assert (chunk["id"], chunk["parts"]) == ("turn2", [{"type": "text", "text": "And 4?"}])
    assert of_kind(chunks_of(script.moments, SIX), "steering-message") == []


@BOTH
def test_answer_to_a_steered_message_begins_where_the_run_took_it_in(dialect):
    taken = MessageTaken(step=3, turn_id="turn1", sender="owner", text="And 4?")
    script = Script(turn="turn0").started().replied(calls=[ADD]).settled(ADD, "3").round_settled()
    chunks = chunks_of(script.say(taken).replied("7").ended().moments, dialect)

    assert kinds(chunks) == [
        "start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip


def waiting_script() -> Script:
    script = Script().started().replied("I ask.", calls=[ADD, ADD_MORE]).asked(question(ADD)).settled(ADD_MORE, "34")
    return script.waiting(question(ADD))


@BOTH
def test_a_question_is_an_approval_request(dialect):
    chunks = chunks_of(waiting_script().moments, dialect)

    (request,) = of_kind(chunks, "tool-approval-request")
    assert (request["approvalId"], request["toolCallId"]) == ("q-c1", "c1")
    assert request.get("reason") == ("May it run?" if dialect is SEVEN else None)
    assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}


@BOTH
def test_after_an_answer_only_what_is_new_is_sent(dialect):
    script = waiting_script().answered(question(ADD)).settled(ADD, "3").round_settled().replied("37").ended()
    chunks = chunks_of(without_waits(script.moments), dialect, ["q-c1"])

    assert kinds(chunks) == [
        "start", "tool-output-available", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1])
def test_result_that_comes_before_the_answer_is_not_lost(place):
    """What is live may be ahead of what is on record: of the answer, and even of the question."""
    script = Script().started().replied(calls=[ADD])
    known = [question(ADD), QuestionAnswered(id="q-c1", call_id="c1", action="resume")]
    known.insert(place, Script().settled(ADD, "3").moments[0])
    chunks = chunks_of([*script.moments, *known, *Script(step=1).replied("Done.").ended().moments], SIX, ["q-c1"])

    assert kinds(chunks)[:3] == ["start", "tool-output-available", "start-step"]


def test_question_about_a_call_with_a_result_is_not_asked_again():
    script = Script().started().replied(calls=[ADD]).settled(ADD, "3").asked(question(ADD)).answered(question(ADD))

    assert of_kind(chunks_of(script.replied("Done.").ended().moments), "tool-approval-request") == []


def test_a_denied_call_is_shown_as_denied():
    script = waiting_script().answered(question(ADD), "cancel", "no").settled(ADD, "It was denied.", "denied")
    chunks = chunks_of(without_waits(script.round_settled().replied("Well.").ended().moments), SIX, ["q-c1"])

    assert chunks[1] == {"type": "tool-output-denied", "toolCallId": "c1"}


def test_a_question_of_a_sub_agent_is_a_call_of_its_own():
    asked = question(ADD_MORE, id="q9", call_id="c9", run_id="run9")
    script = Script().started().replied(calls=[ADD]).asked(asked)
    chunks = chunks_of([*script.moments, Waiting(questions=(asked,), usage=None)])

    assert [chunk["toolCallId"] for chunk in of_kind(chunks, "tool-input-available")] == ["c1", "c9"]
    assert [chunk["toolCallId"] for chunk in of_kind(chunks, "tool-approval-request")] == ["c9"]

    script.say(QuestionAnswered(id="q9", call_id="c9", action="resume")).settled(ADD, "3").replied("Done.").ended()
    outputs = of_kind(chunks_of(script.moments, SIX, ["q9"]), "tool-output-available")
    assert [(chunk["toolCallId"], chunk["output"]) for chunk in outputs] == [("c9", "approved"), ("c1", "3")]


def test_an_answer_that_shows_in_no_moment_still_ends_with_results_and_text():
    asked = question(ADD_MORE, id="q9", call_id="c9", run_id="run9")
    script = Script().started().replied(calls=[ADD]).asked(asked).settled(ADD, "3").replied("Done.").ended(text="Done.")
    chunks = chunks_of(script.moments, SIX, ["q9"])

    assert kinds(chunks)[1:] == [
        "tool-output-available", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("disposition", "reason", "stop", "last"),
    [
        ("answered", "natural_end", "end", {"type": "finish", "finishReason": "stop"}),
        ("answered", "natural_end", "max_tokens", {"type": "finish", "finishReason": "length"}),
        ("answered", "natural_end", "refusal", {"type": "finish", "finishReason": "content-filter"}),
        ("answered", "stopped", "end", {"type": "finish", "finishReason": "other"}),
        ("cancelled", "cancelled", "end", {"type": "finish", "finishReason": "other"}),
        ("failed", "error", "end", {"type": "error", "errorText": "because"}),
        ("expired", None, "end", {"type": "error", "errorText": "because"}),
    ],
)
def test_how_a_turn_ends(disposition, reason, stop, last):
    script = Script().started().replied("Yes.", stop=stop).ended(disposition, reason, detail="because")
    chunks = chunks_of(script.moments)

    assert chunks[-1] == last
    assert of_kind(chunks, "abort") == ([{"type": "abort", "reason": "because"}] if disposition == "cancelled" else [])


def test_a_stream_that_breaks_off_is_closed_in_order():
    face = AiSdkFace(turn_id="turn1")
    script = Script().started().say(StepStarted(step=1), TextGrown(step=1, attempt=1, text="The wh"))
    for moment in script.moments:
        face.feed(moment)

    assert kinds(face.fail("It broke off.", "lost")) == ["text-end", "finish-step", "error"]
    assert face.fail("again", "again") == []
