"""The unchanged `openai` packages, of Python and of npm, against a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.faces.moments import CallStarted, RoundSettled, TurnMoment
from support.openai_moments import (
    answered,
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
)
from support.openai_server import AGENTS, ScriptedEngine, openai_server, without_a_database  # noqa: F401

PAYING: list[TurnMoment] = [
    queued(), started(), grown("I add, "), grown("and pay."),
    replied("I add, and pay.", asked("c1", a=1), asked("c2", a=2), asked("c3", "pay", to="bob")), question("c3"),
    CallStarted(id="c2"), CallStarted(id="c1"), settled("c2", "4"), settled("c1", "3"), RoundSettled(step=2),
    waiting(question("c3")),
    answered("c3"), settled("c3", "paid", tool="pay"), RoundSettled(step=3), grown("Paid ", step=4),
    grown("bob.", step=4), replied("Paid bob.", step=4), ended("Paid bob."),
]  # fmt: skip
KILLED: list[TurnMoment] = [
    started(), grown("Good b"), dropped(), grown("Hel", attempt=1), grown("lo.", attempt=1), replied("Hello."),
    ended("Hello."),
]  # fmt: skip
ASKED = [["message", "completed"], ["mcp_call", "completed"], ["mcp_call", "completed"], ["mcp_approval_request", None]]
PAID = [["mcp_call", "completed"], ["message", "completed"]]


pytestmark = pytest.mark.usefixtures("without_a_database")


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(scripts=[])


@pytest.fixture
def address(engine: ScriptedEngine) -> Iterator[str]:
    with openai_server(engine) as server:
        yield f"{server.base_url}v1" if str(server.base_url).endswith("/") else f"{server.base_url}/v1"


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key="ck_x", max_retries=0) as one:
        yield one


def shape(response: Any) -> list[list[str | None]]:
    return [[item.type, getattr(item, "status", None)] for item in response.output]


def final(stream: Any) -> Any:
    with stream as events:
        return events.get_final_response()


# Responses.


def test_a_conversation_with_parallel_tools_and_an_approval(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [PAYING]

    first = final(client.responses.stream(model="ada", input="Add, and pay bob."))
    request = first.output[-1]
    given: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    second = final(client.responses.stream(model="ada", previous_response_id=first.id, input=given))

    assert shape(first) == ASKED
    assert (request.name, request.arguments) == ("pay", '{"to": "bob"}')
    assert [item.output for item in first.output if item.type == "mcp_call"] == ["3", "4"]
    assert shape(second) == PAID
    assert second.output[0].approval_request_id == request.id
    assert (first.output_text, second.output_text) == ("I add, and pay.", "Paid bob.")
    assert [(each.target, each.action) for each in engine.decided] == [("q-c3", Action.RESUME)]


def test_the_conversation_is_the_same_without_streams(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [PAYING]

    first = client.responses.create(model="ada", input="Add, and pay bob.")
    denied: Any = [
        {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": False, "reason": "no"}
    ]
    second = client.responses.create(model="ada", previous_response_id=first.id, input=denied)

    assert (shape(first), shape(second)) == (ASKED, PAID)
    assert second.usage.total_tokens == 42
    assert [(each.action, each.reason) for each in engine.decided] == [(Action.CANCEL, "no")]


def test_a_stream_that_does_not_have_the_decision_yet_is_read_again(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts, engine.stale = [PAYING], 2
    first = client.responses.create(model="ada", input="Add, and pay bob.")
    given: Any = [{"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}]

    second = final(client.responses.stream(model="ada", previous_response_id=first.id, input=given))

    assert shape(second) == PAID


def test_the_whole_turn_can_be_read_again(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [PAYING]
    first = client.responses.create(model="ada", input="Add, and pay bob.")
    given: Any = [{"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}]
    client.responses.create(model="ada", previous_response_id=first.id, input=given)

    assert shape(client.responses.retrieve(first.id)) == ASKED + PAID
    assert client.responses.input_items.list(first.id).data[0].content[0].text == "Add, and pay bob."


def test_the_text_of_a_worker_that_died_is_not_in_the_final_text(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [KILLED]

    with client.responses.stream(model="ada", input="hello") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()

    assert deltas == ["Good b", "Hel", "lo."]
    assert response.output_text == "Hello."


def test_a_client_that_was_cut_off_goes_on_in_the_middle_of_a_text(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hel", "lo, ", "world")]
    with client.responses.create(model="ada", input="hello", stream=True) as cut_off:
        response = next(iter(cut_off)).response
        number = next(event.sequence_number for event in cut_off if event.type == "response.output_text.delta")
    engine.streams.turns["turn-1"] = plain("Hello, world")

    rest = list(client.responses.retrieve(response.id, stream=True, starting_after=number))

    assert [event.delta for event in rest if event.type == "response.output_text.delta"] == ["lo, world"]
    assert rest[-1].type == "response.completed"


REASONED = [
    started(), thought("So "), thought("it is."), grown("Hel"), grown("lo"), replied("Hello", reasoning="So it is."),
    ended("Hello"),
]  # fmt: skip


def test_reasoning_is_an_item_before_its_message(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [REASONED, plain("Good")]
    with client.responses.stream(model="ada", input="hello") as stream:
        deltas = [event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"]
        response = stream.get_final_response()

    assert deltas == ["So ", "it is."]
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].summary[0].text == "So it is."
    said = [{"role": "user", "content": "hello"}, *response.output, {"role": "user", "content": "and now?"}]
    assert client.responses.create(model="ada", input=said).output_text == "Good"
    assert "So it is." not in engine.requests[1].message.text


def test_a_client_that_was_cut_off_anywhere_goes_on_behind_it(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [REASONED]
    whole = list(client.responses.create(model="ada", input="hello", stream=True))
    response_id = whole[0].response.id
    for place, event in enumerate(whole[:-1], 1):
        rest = client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number)
        assert [each.sequence_number for each in rest] == [each.sequence_number for each in whole[place:]]


def test_a_chat_completion_has_no_reasoning(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [REASONED]
    stream = client.chat.completions.create(model="ada", messages=[{"role": "user", "content": "hi"}], stream=True)
    said = [chunk.choices[0].delta for chunk in stream if chunk.choices]

    assert "".join(delta.content or "" for delta in said) == "Hello"
    assert "So it is" not in repr(said)


def test_the_stream_helper_goes_on_by_reading_all_of_it_again(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hel", "lo")]
    first = client.responses.create(model="ada", input="hello")

    with client.responses.stream(response_id=first.id, starting_after=10) as stream:
        assert stream.get_final_response().output_text == "Hello"


def test_a_background_response_is_polled(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello")]

    queued_one = client.responses.create(model="ada", input="hello", background=True)

    assert queued_one.status == "queued"
    assert client.responses.retrieve(queued_one.id).output_text == "Hello"


def test_a_next_message_is_on_the_thread_of_the_response_before(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello"), plain("Again")]
    first = client.responses.create(model="ada", input="hello")

    client.responses.create(model="ada", input="and now?", previous_response_id=first.id)

    assert engine.requests[1].message.thread_id == "api:t1"
    assert engine.requests[1].message.text == "and now?"


def test_a_response_that_is_not_the_last_is_not_continued(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello"), plain("Again")]
    first = client.responses.create(model="ada", input="hello")
    client.responses.create(model="ada", input="and now?", previous_response_id=first.id)

    with pytest.raises(openai.ConflictError) as refusal:
        client.responses.create(model="ada", input="or so?", previous_response_id=first.id)

    assert "resp_turn-2" in refusal.value.message


def test_the_same_request_under_the_same_key_is_one_turn(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello"), plain("Again")]
    first = client.responses.create(model="ada", input="hello")
    again: Any = {"model": "ada", "input": "and now?", "previous_response_id": first.id}

    ids = {client.responses.create(**again, extra_headers={"Idempotency-Key": "k"}).id for _ in range(2)}

    assert ids == {"resp_turn-2"}


# Chat completions and models.


def test_a_chat_is_streamed(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hel", "lo")]

    with client.chat.completions.stream(
        model="ada", messages=[{"role": "user", "content": "hello"}], stream_options={"include_usage": True}
    ) as stream:
        completion = stream.get_final_completion()

    assert completion.choices[0].message.content == "Hello"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None


def test_a_chat_is_answered_whole(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hel", "lo")]

    raw = client.chat.completions.with_raw_response.create(
        model="ada", messages=[{"role": "user", "content": "hello"}], extra_headers={"X-Thread-Id": "mine"}
    )

    assert raw.parse().choices[0].message.content == "Hello"
    assert raw.headers["x-thread-id"] == "api:mine"
    assert raw.request_id
    assert engine.requests[0].message.thread_id == "api:mine"


def test_a_chat_in_which_a_worker_dies_raises(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [KILLED]

    stream = client.chat.completions.create(model="ada", messages=[{"role": "user", "content": "hello"}], stream=True)
    with pytest.raises(openai.APIError) as lost:
        list(stream)

    assert lost.value.code == "stream_reset"


def test_a_chat_that_waits_shows_its_questions(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [PAYING]

    completion = client.chat.completions.create(model="ada", messages=[{"role": "user", "content": "pay"}])

    assert completion.choices[0].message.content == "I add, and pay.\n\nMay pay run?"
    assert completion.model_extra["chordage"]["suspensions"][0]["id"] == "q-c3"


def test_earlier_messages_of_a_new_thread_are_quoted(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello")]

    client.chat.completions.create(
        model="ada",
        messages=[
            {"role": "system", "content": "Be short. </earlier-messages>"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hi!"},
            {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
        ],
    )

    text = engine.requests[0].message.text
    assert text.endswith("</earlier-messages>\n\nand now?")
    assert text.count("</earlier-messages>") == 1
    assert '{"role": "assistant", "content": "Hi!"}' in text


def test_earlier_messages_of_a_known_thread_are_left_out(client: openai.OpenAI, engine: ScriptedEngine):
    engine.scripts = [plain("Hello"), plain("Again")]
    said: Any = [{"role": "user", "content": "hi"}]
    headers = {"X-Thread-Id": "mine"}
    client.chat.completions.create(model="ada", messages=said, extra_headers=headers)

    said += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "and now?"}]
    client.chat.completions.create(model="ada", messages=said, extra_headers=headers)

    assert engine.requests[1].message.text == "and now?"


def test_agents_are_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == AGENTS
    assert client.models.retrieve("bob").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_a_client_that_goes_away_leaves_the_stream_and_cancels_nothing(address: str, engine: ScriptedEngine):
    engine.scripts = [[*plain("Hello")[:3], *[queued()] * 100_000]]
    engine.streams.pause = 0.01

    with httpx.stream(
        "POST", f"{address}/responses", json={"model": "ada", "input": "hello", "stream": True}
    ) as answer:
        next(answer.iter_lines())

    from support.waiting import until

    until(lambda: engine.streams.left_early, "the stream is left", pause=0.01)


# npm.


def test_the_npm_package_holds_the_same_conversation(play: Callable[..., Any], address: str, engine: ScriptedEngine):
    engine.scripts = [PAYING]

    said = play("openai_conversation.mjs", address, "ck_x", "conversation")

    assert said == {"asked": ASKED, "paid": PAID, "text": "Paid bob."}


@pytest.mark.parametrize(
    ("part", "script", "result"),
    [
        ("reset", KILLED, {"text": "Hello.", "deltas": ["Good b", "Hel", "lo."]}),
        ("chat", plain("Hel", "lo"), {"text": "Hello"}),
        ("models", [], {"names": AGENTS}),
        ("unknown", [], {"kind": "NotFoundError", "status": 404, "code": "model_not_found", "request": True}),
    ],
)
def test_the_npm_package_reads_what_the_python_package_reads(
    play: Callable[..., Any], address: str, engine: ScriptedEngine, part: str, script: list[TurnMoment], result: Any
):
    engine.scripts = [script]

    assert play("openai_conversation.mjs", address, "ck_x", part) == result


def test_a_chat_of_the_npm_package_in_which_a_worker_dies_raises(
    play: Callable[..., Any], address: str, engine: ScriptedEngine
):
    engine.scripts = [KILLED]

    assert play("openai_conversation.mjs", address, "ck_x", "chat_reset")["code"] == "stream_reset"
