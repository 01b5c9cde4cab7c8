"""The face of chat completions: what is sent for the moments of a turn, and what OpenAI's accumulator makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from chordage.orchestrator.faces.moments import TurnMoment
from chordage.orchestrator.faces.openai_chat import ChatFace
from support.openai_moments import (
    AGENT,
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
    waiting,
    wire,
)


def face(**fields: Any) -> ChatFace:
    return ChatFace(id="chatcmpl-1", agent=AGENT, created=1, **fields)


def sent(moments: list[TurnMoment], **fields: Any) -> list[dict[str, Any]]:
    return wire(face(**fields), moments)


def whole(moments: list[TurnMoment]) -> dict[str, Any]:
    one = face()
    wire(one, moments)
    return one.completion()


def content(completion: dict[str, Any]) -> str:
    return completion["choices"][0]["message"]["content"]


def test_a_plain_answer_is_a_role_its_pieces_and_a_reason():
    chunks = sent(plain("Hel", "lo"))

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {},
    ]  # fmt: skip
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-1", "chat.completion.chunk", AGENT)
    }


def test_usage_is_a_chunk_of_its_own_for_those_who_want_it():
    last = sent(plain("Hello"), with_usage=True)[-1]

    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (
        30, 12, 42,
    )  # fmt: skip


def test_a_completion_says_which_turn_and_thread_it_is():
    assert whole(plain("Hello"))["chordage"]["thread"] == "api:t1"


@settings(deadline=None)
@given(any_turn(lost=False))
def test_the_official_accumulator_ends_with_what_the_whole_completion_has(turn: AnyTurn):
    state = ChatCompletionStreamState()
    for chunk in sent(turn.moments):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))

    assert state.get_final_completion().choices[0].message.content == content(whole(turn.moments))
    assert content(whole(turn.moments)).startswith("\n\n".join(turn.texts))


@settings(deadline=None)
@given(any_turn())
def test_a_completion_that_was_not_streamed_has_only_what_is_on_record(turn: AnyTurn):
    assert content(whole(turn.moments)).startswith("\n\n".join(turn.texts))


def test_a_lost_text_is_an_error_in_a_stream():
    chunks = sent([started(), grown("Good b"), dropped()])

    assert chunks[-1]["error"]["code"] == "stream_reset"


def test_a_loss_before_any_text_is_none():
    chunks = sent([started(), dropped(), *plain("Hello")[2:]])

    assert not any("error" in chunk for chunk in chunks)


def test_a_turn_that_waits_ends_with_its_questions():
    asks = [started(), grown("I pay."), replied("I pay.", asked("c1", "pay")), question("c1"), waiting(question("c1"))]

    completion = whole(asks)

    assert content(completion) == "I pay.\n\nMay pay run?"
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["chordage"]["status"] == "waiting"
    assert completion["chordage"]["suspensions"] == [
        {"id": "q-c1", "tool": "pay", "prompt": "May pay run?", "expires_at": None}
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(None, "stop"), ("max_tokens", "length"), ("refusal", "content_filter"), ("max_rounds", "stop")],
)
def test_the_end_of_an_answer_has_a_reason_of_openai(code: str | None, reason: str):
    moments = [queued(), started(), grown("Hello"), replied("Hello"), ended("Hello", code=code)]

    assert whole(moments)["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize(
    ("disposition", "code", "named", "kind"),
    [
        ("failed", "model_auth", "model_auth", "server_error"),
        ("cancelled", None, "cancelled", "invalid_request_error"),
        ("expired", None, "expired", "invalid_request_error"),
    ],
)
def test_a_turn_without_an_answer_is_an_error(disposition: str, code: str | None, named: str, kind: str):
    chunks = sent([queued(), ended(disposition=disposition, code=code)])

    assert (chunks[-1]["error"]["code"], chunks[-1]["error"]["type"]) == (named, kind)


def test_tools_of_the_agent_are_not_shown():
    moments = [started(), replied("", asked("c1")), settled("c1"), grown("3", step=3), replied("3", step=3), ended("3")]

    assert content(whole(moments)) == "3"


# Functions of the caller.


HANDED_OVER: list[TurnMoment] = [
    started(), grown("Let me see."), replied("Let me see.", asked("c1"), asked("c2", "pick", of=["red"])),
    question("c2", tool="pick", why="client_tool"), settled("c1", "3"),
    waiting(question("c2", tool="pick", why="client_tool")),
]  # fmt: skip


def test_calls_for_the_caller_end_the_completion():
    completion = whole(HANDED_OVER)
    (choice,) = completion["choices"]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["tool_calls"] == [
        {"id": "c2", "type": "function", "function": {"name": "pick", "arguments": '{"to": "bob"}'}}
    ]
    assert completion["chordage"]["suspensions"] == []


def test_streamed_calls_are_what_the_accumulator_makes_of_them():
    state = ChatCompletionStreamState()
    for chunk in sent(HANDED_OVER):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    choice = state.get_final_completion().choices[0]

    assert choice.finish_reason == "tool_calls"
    assert [(call.id, call.function.name) for call in choice.message.tool_calls] == [("c2", "pick")]


def test_what_comes_of_results_is_a_completion_without_what_was_before():
    moments = [
        *HANDED_OVER[:-1], answered("c2"), settled("c2", "red", tool="pick"), grown("Red.", step=4),
        replied("Red.", step=4), ended("Red."),
    ]  # fmt: skip
    one = face(since=frozenset({"q-c2", "c2"}))
    wire(one, moments)

    assert content(one.completion()) == "Red."
