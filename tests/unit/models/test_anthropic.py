"""Anthropic's Messages format, request and answer, without a network."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.model import (
    AssistantSays,
    Fault,
    Reply,
    StopReason,
    ToolAsk,
    ToolOffer,
    ToolSays,
    Usage,
)
from chordage.orchestrator.gateways.models.anthropic import AnthropicWire
from chordage.orchestrator.gateways.models.wire import AttemptFailed, Target
from support.fake_providers import a_prompt

WIRE = AnthropicWire()
TARGET = Target(provider="anthropic", model="claude")
ADD = ToolOffer(name="add", description="Adds.", schema={"type": "object"})
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}


def body(*as_history, stream=False, **prompt):
    return WIRE.body(a_prompt(*as_history, **prompt), TARGET, stream=stream)


def asking(*ids, text=""):
    return AssistantSays(text=text, asks=tuple(ToolAsk(id=one, name="add", arguments={"a": 1}) for one in ids))


def result(ask_id, content="3", **more):
    return ToolSays(ask_id=ask_id, name="add", content=content, **more)


def as_history(reply: Reply) -> AssistantSays:
    return AssistantSays(text=reply.text, asks=reply.asks, extra=reply.extra)


def answer(*content, stop="end_turn", **usage):
    return {"type": "message", "content": list(content), "stop_reason": stop, "usage": usage}


def read(*content, stop="end_turn", **usage):
    return WIRE.whole(answer(*content, stop=stop, **usage), TARGET)


def stream(*events):
    reader = WIRE.reader(TARGET)
    text = [reader.feed(json.dumps(event)) for event in events]
    return "".join(text), reader.reply()


def block(index, start, *deltas):
    begin = {"type": "content_block_start", "index": index, "content_block": start}
    more = ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
    return [begin, *more, {"type": "content_block_stop", "index": index}]


def ending(stop="end_turn"):
    return [{"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {}}, {"type": "message_stop"}]


def test_results_come_together_directly_after_their_calls_and_before_the_users_addition():
    sent = body("hi", asking("c1", "c2", text="Wait."), result("c1"), result("c2", "no", is_error=True), "and?")
    user, assistant, answers = sent["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert [one["type"] for one in assistant["content"]] == ["text", "tool_use", "tool_use"]
    assert answers["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
        {"type": "text", "text": "and?"},
    ]


def test_user_messages_in_a_row_become_one():
    (message,) = body("one", "two")["messages"]
    assert [one["text"] for one in message["content"]] == ["one", "two"]


def test_assistant_messages_in_a_row_become_one():
    sent = body("hi", AssistantSays(text="a"), AssistantSays(text="b"), "go")["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]


def test_empty_text_is_left_out_and_the_user_always_begins():
    sent = body(AssistantSays(text="a"), "go", AssistantSays(text=" "), "on")["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    assert [one["text"] for one in sent[2]["content"]] == ["go", "on"]


def test_duplicate_and_invalid_ids_of_other_providers_are_replaced_in_pairs():
    sent = body("hi", asking("f.a:0"), result("f.a:0"), asking("f.a:0"), result("f.a:0", "4"))["messages"]
    uses = [one["content"][0]["id"] for one in sent if one["role"] == "assistant"]
    results = [one["content"][0]["tool_use_id"] for one in sent if one["content"][0]["type"] == "tool_result"]
    assert uses == results == ["f_a_0", "f_a_0_2"]


def test_system_prompt_and_token_limit_are_fields_beside_the_messages():
    assert body("hi")["system"] == "Be brief."
    assert "system" not in body("hi", system="")
    assert body("hi")["max_tokens"] == 8192
    assert body("hi", params={"max_tokens": 5})["max_tokens"] == 5
    assert body("hi", stream=True)["stream"] is True


def test_parameters_of_the_other_format_are_translated():
    sent = body("hi", params={"max_completion_tokens": 7, "stop": "END", "openai": {"seed": 1}})
    assert (sent["max_tokens"], sent["stop_sequences"]) == (7, ["END"])
    assert not {"stop", "seed", "openai", "max_completion_tokens"} & set(sent)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("add", {"type": "tool", "name": "add"}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_a_tool_choice_is_translated(choice, sent):
    assert body("hi", offers=(ADD,), params={"tool_choice": choice})["tool_choice"] == sent


def test_a_history_with_calls_declares_its_tools_also_when_none_is_offered():
    sent = body("hi", asking("c"), result("c"), params={"tool_choice": "required"})
    assert ([one["name"] for one in sent["tools"]], sent["tool_choice"]) == (["add"], {"type": "none"})
    assert not {"tools", "tool_choice"} & set(body("hi", params={"tool_choice": "auto"}))


def test_a_paused_turn_is_sent_back_unchanged():
    paused = read({"type": "text", "text": "Looking."}, SEARCH, stop="pause_turn")
    assert (paused.stop, paused.text, paused.asks) == (StopReason.PAUSE_TURN, "Looking.", ())
    back = body("hi", as_history(paused))["messages"]
    assert back[1] == {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, SEARCH]}


def test_the_container_of_the_providers_own_tools_goes_back_with_a_paused_turn_streamed_or_not():
    box = {"container": {"id": "box", "expires_at": "later"}}
    whole = WIRE.whole({**answer(SEARCH, stop="pause_turn"), **box}, TARGET)
    last = {"type": "message_delta", "delta": {"stop_reason": "pause_turn", **box}, "usage": {}}
    _, streamed = stream(*block(0, SEARCH), last, {"type": "message_stop"})
    assert streamed == whole
    assert body("hi", as_history(whole))["container"] == "box"
    assert "container" not in body("hi", as_history(read(SEARCH, stop="pause_turn")))


def test_tools_of_the_provider_are_listed_beside_ours():
    search = {"type": "web_search_20250305", "name": "web_search"}
    sent = body("hi", offers=(ADD,), params={"anthropic": {"tools": [search]}})
    assert [one["name"] for one in sent["tools"]] == ["add", "web_search"]
    assert body("hi", params={"anthropic": {"tools": [search]}})["tools"] == [search]


def test_signed_thoughts_go_back_with_their_calls_streamed_or_not():
    thought = {"type": "thinking", "thinking": "hm, so", "signature": "sig"}
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}
    deltas = [{"type": "thinking_delta", "thinking": one} for one in ("hm, ", "so")]
    signed = {"type": "signature_delta", "signature": "sig"}
    parts = [{"type": "input_json_delta", "partial_json": one} for one in ('{"a"', ": 1}")]
    _, streamed = stream(
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, signed),
        *block(1, {**use, "input": {}}, *parts),
        *ending("tool_use"),
    )
    whole = read(thought, use, stop="tool_use")
    assert streamed == whole
    assert whole.reasoning == "hm, so"
    assert body("hi", as_history(whole), result("c"))["messages"][1]["content"] == [thought, use]


def test_thoughts_before_the_text_are_its_reasoning_streamed_or_not():
    def thinking(text):
        return {"type": "thinking", "thinking": text, "signature": "s"}

    def thought(index, *texts):
        deltas = [{"type": "thinking_delta", "thinking": text} for text in texts]
        return block(index, thinking(""), *deltas)

    events = [
        *thought(0, "One, ", "two."), *thought(1), *block(2, {"type": "redacted_thinking", "data": "x"}),
        *thought(3, "Three."), *block(4, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"}),
        *thought(5, "Late."), *ending(),
    ]  # fmt: skip
    reader = WIRE.reader(TARGET)
    shown = [(reader.feed(json.dumps(event)), reader.reasoning.taken()) for event in events]
    contents = [thinking("One, two."), thinking(""), thinking("Three."), {"type": "text", "text": "Hi"}]
    whole = read(*contents, thinking("Late."))

    assert [pair for pair in shown if any(pair)] == [("", "One, "), ("", "two."), ("", "\n\nThree."), ("Hi", "")]
    assert reader.reply().reasoning == whole.reasoning == "One, two.\n\nThree."
    foreign = AssistantSays(text="t", extra={**whole.extra, "provider": "other"})
    assert "Three" not in json.dumps(body("hi", foreign))


def test_blocks_are_rebuilt_for_other_calls_or_another_provider():
    reply = read({"type": "thinking", "thinking": "a", "signature": "b"}, {"type": "text", "text": "t"})
    changed = AssistantSays(text="t", asks=asking("new").asks, extra=reply.extra)
    assert [one["type"] for one in body("hi", changed, result("new"))["messages"][1]["content"]] == ["text", "tool_use"]
    foreign = AssistantSays(text="t", extra={**reply.extra, "provider": "other"})
    assert body("hi", foreign)["messages"][1]["content"] == [{"type": "text", "text": "t"}]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", StopReason.END),
        ("stop_sequence", StopReason.END),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("pause_turn", StopReason.PAUSE_TURN),
        ("refusal", StopReason.REFUSAL),
        ("tool_use", StopReason.END),  # nothing was asked for, so there is nothing to run
        ("something_new", StopReason.UNKNOWN),
    ],
)
def test_stop_reasons(reason, stop):
    assert read({"type": "text", "text": "a"}, stop=reason).stop is stop


def test_cached_tokens_count_as_read():
    usage = read(
        {"type": "text", "text": "a"},
        input_tokens=5,
        cache_read_input_tokens=20,
        cache_creation_input_tokens=3,
        output_tokens=2,
    ).usage
    assert usage == Usage(input_tokens=28, output_tokens=2, cached_tokens=20, cache_write_tokens=3)


def test_of_streamed_usage_the_last_value_counts():
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
    _, reply = stream(start, {"type": "ping"}, {"type": "new_kind"}, last, {"type": "message_stop"})
    assert reply.usage == Usage(input_tokens=5, output_tokens=9)


def test_blocks_that_come_mixed_are_separated_by_index():
    one, two = ({"type": "tool_use", "id": one, "name": "add", "input": {}} for one in ("x", "y"))
    (a0, a1, a2, a3), (b0, b1, b2, b3) = (
        block(index, use, *({"type": "input_json_delta", "partial_json": part} for part in ('{"a":', f"{index}}}")))
        for index, use in enumerate((one, two))
    )
    _, reply = stream(a0, b0, b1, a1, b2, a2, a3, b3, *ending("tool_use"))
    assert [(ask.id, ask.arguments) for ask in reply.asks] == [("x", {"a": 0}), ("y", {"a": 1})]


def test_a_call_without_streamed_arguments_has_none():
    _, reply = stream(*block(0, {"type": "tool_use", "id": "c", "name": "now", "input": {}}), *ending("tool_use"))
    assert reply.asks[0].arguments == {}


def test_broken_arguments_are_kept_and_go_back_as_an_empty_object():
    _, reply = stream(
        *block(
            0,
            {"type": "tool_use", "id": "c", "name": "add", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a": '},
        ),
        *ending("tool_use"),
    )
    assert (reply.asks[0].arguments, reply.asks[0].raw) == (None, '{"a": ')
    assert body("hi", as_history(reply), result("c"))["messages"][1]["content"][0]["input"] == {}


def test_text_is_passed_on_and_thoughts_are_not():
    text, reply = stream(
        *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "secret"}),
        *block(
            1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"}, {"type": "text_delta", "text": "b"}
        ),
        *ending(),
    )
    assert text == reply.text == "ab"


def test_citations_stay_with_their_text():
    cited = {"type": "citations_delta", "citation": {"url": "u"}}
    text = block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"}, cited)
    _, reply = stream(*block(0, SEARCH), *text, *ending())
    assert reply.extra["content"][1] == {"type": "text", "text": "a", "citations": [{"url": "u"}]}


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"content": None, "stop_reason": "end_turn"},
        {"content": ["x"], "stop_reason": "end_turn"},
        {"content": [], "stop_reason": None},
        answer({"type": "tool_use", "name": "add", "input": {}}, stop="tool_use"),
        answer({"type": "tool_use", "id": "c", "input": {}}, stop="tool_use"),
    ],
)
def test_an_answer_of_the_wrong_shape_is_malformed(sent):
    with pytest.raises(AttemptFailed) as failed:
        WIRE.whole(sent, TARGET)
    assert failed.value.fault is Fault.MALFORMED


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_delta", "index": 4, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_start", "index": 0},
        {"type": "message_start"},
        {"type": "message_delta"},
        ["not", "an", "object"],
    ],
)
def test_an_event_of_the_wrong_shape_is_malformed(event):
    with pytest.raises(AttemptFailed) as failed:
        stream(event)
    assert failed.value.fault is Fault.MALFORMED


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("overloaded_error", Fault.OVERLOADED),
        ("rate_limit_error", Fault.RATE_LIMIT),
        ("authentication_error", Fault.AUTH),
        ("billing_error", Fault.QUOTA),
        ("request_too_large", Fault.CONTEXT),
        ("timeout_error", Fault.TIMEOUT),
        ("invalid_request_error", Fault.REJECTED),
        ("api_error", Fault.SERVER),
    ],
)
def test_error_event_becomes_its_error(kind, fault):
    error = {"type": "error", "error": {"type": kind, "message": "why"}}
    with pytest.raises(AttemptFailed, match="why") as streamed:
        stream(error)
    with pytest.raises(AttemptFailed) as whole:
        WIRE.whole(error, TARGET)
    assert streamed.value.fault is whole.value.fault is fault


def test_a_stream_without_message_stop_is_truncated():
    with pytest.raises(AttemptFailed, match="without a message_stop, after 4 characters") as failed:
        stream(*block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "half"}), ending()[0])
    assert failed.value.fault is Fault.TRUNCATED
