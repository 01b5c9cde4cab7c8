"""The Responses face: what is sent for the moments of a turn, and what OpenAI's own accumulator makes of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from chordage.orchestrator.faces.moments import (
    CallStarted,
    ReasoningGrown,
    Replied,
    RoundSettled,
    TextGrown,
    TurnMoment,
)
from chordage.orchestrator.faces.openai_responses import ResponseFace
from chordage.orchestrator.faces.openai_sequence import CHECKSUMS, ReadersPlace, SequencePlace
from support.openai_moments import (
    AGENT,
    AT,
    AnyTurn,
    answered,
    any_turn,
    asked,
    dropped,
    ended,
    grown,
    plain,
    question,
    queued,
    replied,
    settled,
    started,
    thought,
    waiting,
    wire,
)

Wire = dict[str, Any]


def face(**fields: Any) -> ResponseFace:
    return ResponseFace(id="resp_turn-1", agent=AGENT, created_at=1, **fields)


def sent(moments: list[TurnMoment], **fields: Any) -> list[Wire]:
    return wire(face(**fields), moments)


def accumulated(events: list[Wire]) -> Any:
    """By the accumulator of the `openai` package."""
    state = ResponseStreamState(input_tools=[], text_format=openai.omit)
    for event in events:
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))
    return state._completed_response


def kinds(events: list[Wire]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def items(events: list[Wire]) -> list[tuple[str, str]]:
    return [(each["type"], each.get("status", "")) for each in events[-1]["response"]["output"]]


def texts(events: list[Wire]) -> list[str]:
    """Of the output of the last event."""
    output = events[-1]["response"]["output"]
    return [item["content"][0]["text"] for item in output if item["type"] == "message"]


# An answer.


def test_a_plain_answer_is_one_message_in_the_order_that_clients_expect():
    events = sent(plain("Hel", "lo"))

    assert kinds(events) == [
        "created", "queued", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["delta"] for event in events if "delta" in event] == ["Hel", "lo"]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["completed_at"] == int(AT.timestamp())
    assert response["output"] == [
        {
            "id": "msg_run-1_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            "phase": "final_answer",
        }
    ]
    assert response["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 42,
    }


def test_a_response_has_every_field_that_open_responses_requires():
    required = (
        "completed_at status incomplete_details previous_response_id instructions error truncation text top_p "
        "presence_penalty frequency_penalty top_logprobs temperature reasoning usage max_output_tokens max_tool_calls "
        "store background service_tier metadata safety_identifier prompt_cache_key"
    )
    assert set(required.split()) <= set(face().response())


def test_a_response_repeats_what_its_request_said():
    response = face(echo={"metadata": {"a": "b"}, "instructions": "Be short."}).response()

    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be short.")


def test_numbers_stay_below_what_a_client_can_count():
    assert SequencePlace(10_000, 99, 999_999, 4095).number < 2**53


@settings(deadline=None)
@given(any_turn())
def test_numbers_grow_whatever_happens(turn: AnyTurn):
    numbers = [event["sequence_number"] for event in sent(turn.moments)]

    assert all(before < after for before, after in pairwise(numbers))


@settings(deadline=None)
@given(any_turn())
def test_the_official_accumulator_ends_with_the_transcript(turn: AnyTurn):
    response = accumulated(sent(turn.moments))

    assert [item.content[0].text for item in response.output if item.type == "message"] == turn.texts
    assert response.output_text == "".join(turn.texts)
    assert [item.summary[0].text for item in response.output if item.type == "reasoning"] == turn.reasonings
    assert sorted(item.name for item in response.output if item.type == "mcp_call") == ["add"] * len(turn.calls)


# Texts that are lost.


def test_a_lost_text_ends_incomplete_and_the_next_attempt_is_another_item():
    events = sent([started(), grown("Good b"), dropped(), grown("Hello", attempt=1), replied("Hello"), ended("Hello")])

    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]["status"]) for event in done] == [(0, "incomplete"), (1, "completed")]
    assert len({event["item"]["id"] for event in done}) == 2
    assert texts(events) == ["Hello"]
    assert accumulated(events).output_text == "Hello"


def test_the_text_of_a_plan_is_no_message():
    events = sent([started(), grown("[plan]"), replied("[plan]", asked("c1"), is_plan=True), settled("c1"), ended()])

    assert items(events) == [("mcp_call", "completed")]


def test_a_text_that_was_growing_when_the_turn_was_cancelled_is_not_in_the_output():
    events = sent([started(), grown("Good b"), ended(disposition="cancelled")])

    assert events[-1]["response"]["output"] == []
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]


# Reasoning.


REASONED: list[TurnMoment] = [
    started(), thought("So "), thought("far."), grown("Hel"), grown("lo"), replied("Hello", reasoning="So far."),
    ended("Hello"),
]  # fmt: skip


def test_reasoning_is_an_item_that_ends_before_its_text_begins():
    events = sent(REASONED)

    assert kinds(events)[2:-1] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
        "output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip
    assert events[-1]["response"]["output"][0] == {
        "id": "rs_run-1_1", "type": "reasoning", "status": "completed",
        "summary": [{"type": "summary_text", "text": "So far."}],
    }  # fmt: skip


def test_lost_reasoning_ends_incomplete_and_is_in_no_output():
    lost = [started(), thought("No"), dropped(), thought("Ye", attempt=1), grown("H", attempt=1), dropped(attempt=1)]
    events = sent([*lost, *REASONED[1:]])

    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in done] == [
        ("reasoning", "incomplete"), ("reasoning", "completed"), ("message", "incomplete"),
        ("reasoning", "completed"), ("message", "completed"),
    ]  # fmt: skip
    assert len({item["id"] for item in done}) == 5
    assert [item.type for item in accumulated(events).output] == ["reasoning", "message"]


def test_reasoning_of_a_plan_is_no_item():
    events = sent([started(), thought("[p]"), replied("[plan]", asked("c1"), is_plan=True), settled("c1"), ended()])

    assert items(events) == [("mcp_call", "completed")]


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([thought("So ")], ["far.", "Hello"]),
        ([thought("So far."), grown("Hel")], ["", "lo"]),
        ([thought("So far, and further")], None),
        ([thought("Not so "), grown("Hel")], None),
        ([thought("No"), dropped(), thought("So ", attempt=1)], None),
        ([thought("No"), dropped(), thought("So far.", attempt=1), grown("Hel", attempt=1)], None),
        ([grown("Hel")], None),
    ],
)
def test_a_reader_goes_on_only_behind_the_reasoning_that_was_committed(seen: list[TurnMoment], left: list[str] | None):
    rest = rest_of(sent(REASONED), sent([started(), *seen])[-1]["sequence_number"])

    if left is None:
        assert [event.get("code") for event in rest] == ["stream_reset"]
    else:
        deltas = [("summary" in event["type"], event["delta"]) for event in rest if event["type"].endswith("delta")]
        assert ["".join(text for of, text in deltas if of is kind) for kind in (True, False)] == left


def test_a_reader_between_reasoning_and_text_is_told_that_another_was_committed():
    before = sent([started(), thought("Not so."), grown("Hel")])

    for place in range(5, 9):  # from the end of the reasoning to the beginning of the text
        rest = rest_of(sent(REASONED), before[place]["sequence_number"])
        assert [event.get("code") for event in rest] == ["stream_reset"], before[place]["type"]


# Going on behind a number.


def rest_of(events: list[Wire], number: int) -> list[Wire]:
    return list(ReadersPlace(number).left(events))


def shown(events: list[Wire]) -> list[Wire]:
    """With the pieces of each text joined."""
    joined: list[Wire] = []
    for event in events:
        is_delta = event["type"] in {"response.output_text.delta", "response.reasoning_summary_text.delta"}
        if is_delta and joined and joined[-1]["type"] == event["type"] and joined[-1]["item_id"] == event["item_id"]:
            joined[-1] = event | {"delta": joined[-1]["delta"] + event["delta"]}
        else:
            joined.append(event)
    return joined


@settings(max_examples=200, deadline=None)
@given(any_turn(lost=False), st.data())
def test_a_reader_goes_on_where_it_was_however_the_text_is_cut_now(turn: AnyTurn, data: st.DataObject):
    before = sent(turn.moments)
    again = sent(recut(turn.moments, data))
    number = data.draw(st.sampled_from([event["sequence_number"] for event in before]))

    seen = [event for event in before if event["sequence_number"] <= number]

    assert shown(seen + rest_of(again, number)) == shown(before)


def recut(moments: list[TurnMoment], data: st.DataObject) -> list[TurnMoment]:
    """The same facts in a replay: each text in one piece, or in characters, and no notes."""
    whole = data.draw(st.booleans())
    replay: list[TurnMoment] = []
    for moment in moments:
        match moment:
            case CallStarted():
                continue
            case TextGrown() | ReasoningGrown():
                make = grown if isinstance(moment, TextGrown) else thought
                replay += [] if whole else [make(each, step=moment.step) for each in moment.text]
            case Replied():
                replay += [thought(moment.reasoning, step=moment.step)] if whole and moment.reasoning else []
                replay += [grown(moment.text, step=moment.step)] if whole and moment.text else []
                replay.append(moment)
            case _:
                replay.append(moment)
    return replay


def test_a_reader_with_a_text_that_was_dropped_is_told_so():
    before = sent([started(), grown("Good b")])
    again = sent(plain("Hello, ", "world"))

    rest = rest_of(again, before[-1]["sequence_number"])

    assert [event.get("code") for event in rest] == ["stream_reset"]


@pytest.mark.parametrize("committed", ["", "Go"], ids=["no text", "a shorter text"])
def test_a_reader_with_more_of_a_text_than_was_committed_is_told_so(committed: str):
    before = sent([started(), grown("Good b")])
    again = sent([started(), *([grown(committed)] if committed else []), replied(committed), ended()])

    assert [event.get("code") for event in rest_of(again, before[-1]["sequence_number"])] == ["stream_reset"]


def test_a_reader_in_a_text_that_followed_a_lost_one_begins_again():
    before = sent([started(), grown("Good b"), dropped(), grown("Hel", attempt=1)])
    again = sent(plain("Hello"))

    assert [event.get("code") for event in rest_of(again, before[-1]["sequence_number"])] == ["stream_reset"]


def test_a_reader_behind_a_text_that_followed_a_lost_one_goes_on():
    lost = [started(), grown("Good b"), dropped(), grown("Hello", attempt=1), replied("Hello"), ended("Hello")]
    before = sent(lost)
    number = next(event["sequence_number"] for event in before if event["type"] == "response.output_text.done")

    assert kinds(rest_of(sent(plain("Hello")), number)) == ["content_part.done", "output_item.done", "completed"]


def test_the_checksum_tells_two_texts_of_one_length_apart():
    one, other = (sent([started(), grown(text)])[-1]["sequence_number"] for text in ("Hello", "Hallo"))

    assert one // CHECKSUMS == other // CHECKSUMS
    assert one != other


# Calls.


PARALLEL = [asked("c1"), asked("c2"), asked("c3")]


def round_of(*ends: TurnMoment) -> list[TurnMoment]:
    return [started(), replied("", *PARALLEL), *ends, RoundSettled(step=2), replied("3", step=3), ended("3")]


def test_calls_of_a_round_are_shown_at_once_with_their_arguments():
    events = sent([started(), replied("", asked("c1", a=1), asked("c2", a=2)), CallStarted(id="c1")])

    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    arguments = [event["arguments"] for event in events if event["type"] == "response.mcp_call_arguments.done"]
    assert [(item["name"], item["status"], item["server_label"]) for item in added] == [
        ("add", "in_progress", AGENT)
    ] * 2
    assert arguments == ['{"a": 1}', '{"a": 2}']


@given(st.permutations(["c1", "c2", "c3"]))
def test_calls_end_in_the_order_in_which_they_were_asked_for(order: list[str]):
    in_order = sent(round_of(*map(settled, ["c1", "c2", "c3"])))

    assert sent(round_of(*map(settled, order))) == in_order


def test_a_call_that_is_done_waits_only_for_those_before_it():
    one = face()
    wire(one, [started(), replied("", *PARALLEL), CallStarted(id="c1"), settled("c2")])

    assert kinds(one.take(settled("c1"))) == ["mcp_call.completed", "output_item.done"] * 2


def test_a_call_that_failed_has_an_error_and_no_output():
    events = sent(round_of(settled("c1", "no such account", code="failed"), settled("c2"), settled("c3")))

    item = events[-1]["response"]["output"][0]
    assert (item["status"], item["output"]) == ("failed", None)
    assert item["error"]["content"] == [{"type": "text", "text": "no such account"}]
    assert "mcp_call.failed" in kinds(events)


# Approvals.


def test_a_call_that_needs_an_approval_is_a_request_and_no_call():
    events = sent(
        [started(), replied("", asked("c1"), asked("c2")), question("c2"), settled("c1"), waiting(question("c2"))]
    )

    assert items(events) == [("mcp_call", "completed"), ("mcp_approval_request", "")]
    shown_calls = [event["item"]["id"] for event in events if event.get("item", {}).get("type") == "mcp_call"]
    assert set(shown_calls) == {"mcp_c1"}, "nothing says that the other is at work"
    request = events[-1]["response"]["output"][1]
    assert (request["id"], request["name"], request["arguments"]) == ("q-c2", "pay", '{"to": "bob"}')
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["chordage"]["status"] == "waiting"
    assert accumulated(events).status == "completed"


def test_a_tool_that_asks_while_it_runs_leaves_its_item_incomplete():
    asks = [started(), replied("", asked("c1")), question("c1", why="tool"), waiting(question("c1"))]
    events = sent(asks)

    assert items(events) == [("mcp_approval_request", "")]
    incomplete = [event["item"]["id"] for event in events if event.get("item", {}).get("status") == "incomplete"]
    assert incomplete == ["mcp_c1"]
    assert accumulated(events).output[0].type == "mcp_approval_request"


def test_a_question_of_a_sub_agent_is_asked_too_and_its_call_left_open():
    child = question("c9", tool="wipe")
    asks = [started(), replied("", asked("c1", "ask_bob")), question("c1", why="child"), CallStarted(id="c1")]
    events = sent([*asks, waiting(child)])

    assert items(events) == [("mcp_approval_request", "")]
    assert events[-1]["response"]["output"][0]["id"] == "q-c9"
    assert accumulated(events) is not None


APPROVED = [
    started(), grown("I pay."), replied("I pay.", asked("c1", "pay")), question("c1"), RoundSettled(step=2),
    answered("c1"), settled("c1", "paid", tool="pay"), RoundSettled(step=3), grown("Done.", step=4),
    replied("Done.", step=4), ended("Done."),
]  # fmt: skip


def test_what_comes_of_an_answer_is_a_response_without_what_was_before():
    events = sent(APPROVED, since=frozenset({"q-c1"}))

    assert kinds(events)[:2] == ["created", "in_progress"]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == [0, 1]
    assert items(events) == [("mcp_call", "completed"), ("message", "completed")]
    call = events[-1]["response"]["output"][0]
    assert (call["id"], call["approval_request_id"], call["output"]) == ("mcp_q-c1", "q-c1", "paid")
    assert accumulated(events).output_text == "Done."


def test_a_result_that_is_seen_before_the_answer_is_of_the_new_response():
    before, answer, result, after = APPROVED[:5], APPROVED[5], APPROVED[6], APPROVED[7:]
    events = sent([*before, result, answer, *after], since=frozenset({"q-c1", "c1"}))

    assert items(events) == [("mcp_call", "completed"), ("message", "completed")]


def test_a_replay_has_both_what_was_before_an_answer_and_what_came_of_it():
    events = sent(APPROVED)

    assert items(events) == [
        ("message", "completed"),
        ("mcp_approval_request", ""),
        ("mcp_call", "completed"),
        ("message", "completed"),
    ]
    assert accumulated(events).output_text == "I pay.Done."


def test_numbers_of_a_replay_are_those_of_both_streams():
    before_answer = sent([*APPROVED[:5], waiting(question("c1"))])[1:-1]
    after_answer = sent(APPROVED, since=frozenset({"q-c1"}))[2:]
    replay = [event["sequence_number"] for event in sent(APPROVED)][1:]

    assert [event["sequence_number"] for event in before_answer + after_answer] == replay
    assert sent([*APPROVED[:5], waiting(question("c1"))])[-1]["sequence_number"] < after_answer[0]["sequence_number"]


def test_a_question_that_is_left_open_is_asked_again_with_the_next_response():
    calls = [asked("c1", "pay"), asked("c2", "pay")]
    moments = [
        started(), replied("", *calls), question("c1"), question("c2"), RoundSettled(step=2), answered("c1"),
        settled("c1"), RoundSettled(step=3), waiting(question("c2")),
    ]  # fmt: skip
    events = sent(moments, since=frozenset({"q-c1"}))

    assert items(events) == [("mcp_call", "completed"), ("mcp_approval_request", "")]


def test_an_answer_to_a_sub_agent_begins_with_the_result_of_its_call():
    moments = [
        started(), replied("", asked("c1", "ask_bob")), question("c1", why="child"), answered("c1"),
        settled("c1", "bob says yes"), replied("Yes.", step=4), ended("Yes."),
    ]  # fmt: skip
    events = sent(moments, since=frozenset({"q-c9", "c1"}))

    assert items(events) == [("mcp_call", "completed")]


# Ends.


@pytest.mark.parametrize(
    ("disposition", "code", "kind", "status", "cut_short"),
    [
        ("answered", None, "completed", "completed", None),
        ("answered", "no_match", "completed", "completed", None),
        ("answered", "max_tokens", "incomplete", "incomplete", "max_output_tokens"),
        ("answered", "refusal", "incomplete", "incomplete", "content_filter"),
        ("answered", "max_rounds", "incomplete", "incomplete", "max_messages"),
        ("steered", None, "incomplete", "incomplete", "steered"),
        ("failed", "model_auth", "failed", "failed", None),
        ("cancelled", None, "incomplete", "cancelled", None),
        ("expired", None, "incomplete", "cancelled", None),
        ("superseded", None, "incomplete", "cancelled", None),
    ],
)
def test_the_end_of_a_turn_has_a_status_of_openai(
    disposition: str, code: str | None, kind: str, status: str, cut_short: str | None
):
    last = sent([queued(), ended(disposition=disposition, code=code)])[-1]

    assert last["type"] == f"response.{kind}"
    assert last["response"]["status"] == status
    assert last["response"]["incomplete_details"] == (cut_short and {"reason": cut_short})
    assert last["response"]["chordage"]["disposition"] == disposition


def test_a_failed_turn_says_why():
    response = sent([started(), ended(disposition="failed", code="model_auth")])[-1]["response"]

    assert response["error"] == {"code": "server_error", "message": "model_auth"}


# Functions of the caller.


OF_CALLER = question("c2", tool="pick", why="client_tool")
HANDED_OVER: list[TurnMoment] = [
    started(), replied("", asked("c1"), asked("c2", "pick", of=["red"])), OF_CALLER, settled("c1", "3"),
    RoundSettled(step=2), waiting(OF_CALLER),
]  # fmt: skip
HANDED_BACK: list[TurnMoment] = [
    *HANDED_OVER[:-1], answered("c2"), settled("c2", "red", tool="pick"), RoundSettled(step=3), grown("Red.", step=4),
    replied("Red.", step=4), ended("Red."),
]  # fmt: skip


def test_a_call_that_the_caller_carries_out_is_a_function_call():
    events = sent(HANDED_OVER)
    item = events[-1]["response"]["output"][-1]

    assert items(events) == [("mcp_call", "completed"), ("function_call", "completed")]
    assert (item["call_id"], item["name"], item["arguments"]) == ("c2", "pick", '{"to": "bob"}')
    of_item = [each for each in events if each.get("output_index") == 1 or each.get("item_id") == item["id"]]
    assert kinds(of_item) == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    assert accumulated(events).output[-1].call_id == "c2"


def test_what_comes_of_an_output_is_a_response_without_the_call():
    events = sent(HANDED_BACK, since=frozenset({"q-c2", "c2"}))

    assert (items(events), texts(events)) == ([("message", "completed")], ["Red."])
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))


def test_a_replay_has_the_call_and_what_came_of_it():
    assert [kind for kind, _ in items(sent(HANDED_BACK))] == ["mcp_call", "function_call", "message"]
