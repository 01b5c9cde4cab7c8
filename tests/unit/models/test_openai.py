"""OpenAI's chat completions, request and answer, without a network."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.model import AssistantSays, Fault, StopReason, ToolAsk, ToolOffer, ToolSays
from chordage.orchestrator.gateways.models import wire
from chordage.orchestrator.gateways.models.openai import OpenAIWire
from chordage.orchestrator.gateways.models.wire import AttemptFailed, Target, encoded
from support.fake_providers import a_prompt

WIRE = OpenAIWire()
TARGET = Target(provider="acme", model="big")
ADD = ToolOffer(name="add", description="Adds.", schema={"type": "object"})


def body(*said, target=TARGET, stream=False, **prompt):
    return WIRE.body(a_prompt(*said, **prompt), target, stream=stream)


def message(finish="stop", **fields):
    return {"choices": [{"message": {"role": "assistant", **fields}, "finish_reason": finish}]}


def read(answer):
    return WIRE.whole(answer, TARGET)


def stream(*deltas, finish="stop"):
    reader = WIRE.reader(TARGET)
    for delta in deltas:
        reader.feed(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
    reader.feed(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    return reader.reply()


def call(index=None, ask_id=None, name=None, arguments="", **more):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    part = {"index": index, "id": ask_id, "function": function, **more}
    return {"tool_calls": [{key: value for key, value in part.items() if value is not None}]}


def test_a_conversation_with_tools_becomes_messages():
    asks = (ToolAsk(id="c1", name="add", arguments={"a": 1}), ToolAsk(id="c2", name="add", arguments={}))
    results = (ToolSays(ask_id="c1", name="add", content="1"), ToolSays(ask_id="c2", name="add", content="2"))
    sent = body("hi", AssistantSays(text="", asks=asks), *results, "and?", offers=(ADD,))
    assert [one["role"] for one in sent["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert sent["messages"][2]["content"] is None
    assert sent["messages"][2]["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    assert [one["tool_call_id"] for one in sent["messages"][3:5]] == ["c1", "c2"]
    assert sent["tools"][0]["function"] == {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}


def test_arguments_that_were_no_json_go_back_as_an_empty_object():
    broken = AssistantSays(text="", asks=(ToolAsk(id="c", name="add", arguments=None, raw='{"a": '),))
    assert body("hi", broken)["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_streaming_requests_usage():
    assert body("hi", stream=True)["stream_options"] == {"include_usage": True}
    assert "stream" not in body("hi")


def test_parameters_are_passed_except_those_of_the_other_format_and_none_removes_a_field():
    params = {"temperature": 0.5, "openai": {"seed": 1, "stream_options": None}, "anthropic": {"top_k": 3}}
    sent = body("hi", stream=True, params=params)
    assert (sent["temperature"], sent["seed"]) == (0.5, 1)
    assert not {"openai", "anthropic", "top_k", "stream_options"} & set(sent)


def test_max_tokens_gets_the_name_its_provider_wants():
    new = Target(provider="openai", model="m", max_tokens_key="max_completion_tokens")
    assert body("hi", params={"max_tokens": 9}, target=new)["max_completion_tokens"] == 9
    assert "max_tokens" not in body("hi", params={"max_tokens": 9}, target=new)
    assert body("hi", params={"max_tokens": 9})["max_tokens"] == 9


def test_tool_choice_is_one_string_and_only_sent_with_tools():
    assert body("hi", offers=(ADD,), params={"tool_choice": "required"})["tool_choice"] == "required"
    named = body("hi", offers=(ADD,), params={"tool_choice": "add"})["tool_choice"]
    assert named == {"type": "function", "function": {"name": "add"}}
    assert "tool_choice" not in body("hi", params={"tool_choice": "required"})


def test_tools_of_the_provider_are_listed_beside_ours():
    sent = body("hi", offers=(ADD,), params={"openai": {"tools": [{"type": "web_search"}]}})
    assert [one["type"] for one in sent["tools"]] == ["function", "web_search"]


def test_text_no_encoding_has_does_not_break_the_request():
    assert b"half ?" in encoded({"text": "half \ud83d"})


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", StopReason.END),
        ("length", StopReason.MAX_TOKENS),
        ("tool_calls", StopReason.END),  # nothing was asked for, so there is nothing to run
        ("content_filter", StopReason.REFUSAL),
        ("something_new", StopReason.UNKNOWN),
        (None, StopReason.UNKNOWN),
    ],
)
def test_finish_reasons(finish, stop):
    assert read(message(finish, content="a")).stop is stop


@pytest.mark.parametrize(("finish", "stop"), [("stop", StopReason.TOOL_USE), ("length", StopReason.MAX_TOKENS)])
def test_calls_are_run_also_with_finish_reason_stop_but_not_when_they_were_cut(finish, stop):
    asked = read(message(finish, content=None, **call(0, "c", "add")))
    assert (asked.stop, len(asked.asks)) == (stop, 1)


def test_a_refusal_is_text_and_a_reason():
    refused = read(message(content=None, refusal="I will not."))
    assert (refused.text, refused.stop) == ("I will not.", StopReason.REFUSAL)


@pytest.mark.parametrize(
    ("sent", "arguments", "raw"),
    [
        ('{"a": 1}', {"a": 1}, ""),
        ("", {}, ""),
        ({"a": 1}, {"a": 1}, ""),
        ('{"a": ', None, '{"a": '),
        ("[1]", None, "[1]"),
        ('{"a": NaN}', None, '{"a": NaN}'),
        ('{"a": 1e999}', None, '{"a": 1e999}'),
        ("[" * 100_000, None, "[" * 100_000),
    ],
)
def test_arguments(sent, arguments, raw):
    (ask,) = read(message("tool_calls", **call(0, "c", "add", sent))).asks
    assert (ask.arguments, ask.raw) == (arguments, raw)


def test_calls_without_ids_get_ids_of_their_own():
    asked = read(message("tool_calls", tool_calls=[{"function": {"name": "a"}}, {"function": {"name": "b"}}])).asks
    assert [ask.name for ask in asked] == ["a", "b"]
    assert len({ask.id for ask in asked} - {""}) == 2


def test_text_in_parts_is_joined():
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(message(content=parts)).text == "ab"


def test_an_emoji_in_two_halves_is_joined_and_nul_is_dropped():
    assert stream({"content": "a\x00\ud83d"}, {"content": "\ude00"}).text == "a\U0001f600"


def test_interleaved_calls_are_separated_by_index():
    asked = stream(
        call(0, "x", "add", ""),
        call(1, "y", "sub", ""),
        call(0, arguments='{"a":'),
        call(1, arguments='{"b":'),
        call(1, arguments="2}"),
        call(0, arguments="1}"),
        finish="tool_calls",
    ).asks
    assert [(ask.id, ask.name, ask.arguments) for ask in asked] == [("x", "add", {"a": 1}), ("y", "sub", {"b": 2})]


@pytest.mark.parametrize("index", [None, 0])
def test_calls_of_a_server_that_does_not_count_are_separated_by_id(index):
    asked = stream(call(index, "x", "add", '{"a": 1}'), call(index, "y", "sub", '{"b": 2}'), finish="tool_calls").asks
    assert [(ask.id, ask.arguments) for ask in asked] == [("x", {"a": 1}), ("y", {"b": 2})]


def test_calls_without_index_and_id_are_separated_by_their_names():
    asked = stream(call(None, None, "add", '{"a": 1}'), call(None, None, "sub", "{}"), finish="stop").asks
    assert [(ask.name, ask.arguments) for ask in asked] == [("add", {"a": 1}), ("sub", {})]


def test_what_a_provider_attaches_to_a_call_goes_back_to_it_alone():
    reply = read(message("tool_calls", **call(0, "c", "add", "{}", extra_content={"signature": "s"})))
    said = AssistantSays(text=reply.text, asks=reply.asks, extra=reply.extra)
    back = body("hi", said)["messages"][2]["tool_calls"][0]
    assert back["extra_content"] == {"signature": "s"}
    elsewhere = body("hi", said, target=Target(provider="other", model="m"))["messages"][2]["tool_calls"][0]
    assert "extra_content" not in elsewhere


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": "x"},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"message": "x"}]},
        message(content=7),
        message(7, content="a"),
        message(tool_calls="x"),
        message(tool_calls=[{"id": "c"}]),
        message(tool_calls=[{"id": "c", "function": {"name": 7}}]),
    ],
)
def test_an_answer_of_the_wrong_shape_is_malformed(answer):
    with pytest.raises(AttemptFailed) as failed:
        read(answer)
    assert failed.value.fault is Fault.MALFORMED


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"message": "slow down", "code": 429}, Fault.RATE_LIMIT),
        ({"message": "upstream", "code": 502}, Fault.SERVER),
        ({"message": "x", "type": "insufficient_quota"}, Fault.QUOTA),
        ("something broke", Fault.SERVER),
    ],
)
def test_error_that_comes_with_200_becomes_its_error(error, fault):
    with pytest.raises(AttemptFailed) as whole:
        read({"error": error})
    with pytest.raises(AttemptFailed) as streamed:
        WIRE.reader(TARGET).feed(json.dumps({"error": error}))
    assert whole.value.fault is streamed.value.fault is fault


def test_a_stream_that_ends_in_an_error_is_a_server_fault():
    with pytest.raises(AttemptFailed) as failed:
        stream({"content": "a"}, finish="error")
    assert failed.value.fault is Fault.SERVER


def test_stream_without_a_finish_reason_is_truncated_even_with_a_done_line():
    reader = WIRE.reader(TARGET)
    reader.feed('{"choices": [{"delta": {"content": "half an ans"}}]}')
    reader.feed("[DONE]")
    with pytest.raises(AttemptFailed, match="without a finish_reason, after 11 characters") as failed:
        reader.reply()
    assert failed.value.fault is Fault.TRUNCATED


def test_a_wrong_token_count_does_not_cost_the_answer():
    answer = {**message(content="a"), "usage": {"prompt_tokens": None, "completion_tokens": "7"}}
    assert read(answer).usage.output_tokens == 0


def shown(*deltas):
    """The reasoning and the text of each event, in the order in which a watcher gets them."""
    reader, pieces = WIRE.reader(TARGET), []
    for delta in deltas:
        text = reader.feed(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        pieces.append((reader.reasoning.taken(), text))
    return pieces


@pytest.mark.parametrize("names", [("reasoning_content",), ("reasoning",), ("reasoning", "reasoning_content")])
def test_reasoning_of_other_servers_is_kept_apart_from_the_text_streamed_or_not(names):
    def thought(piece):
        return dict.fromkeys(names, piece)

    deltas = [{"role": "assistant", "content": "", **thought("Hm, ")}, thought("so."), {"content": "Hi"}]
    whole = read(message(content="Hi", **thought("Hm, so.")))

    assert shown(*deltas) == [("Hm, ", ""), ("so.", ""), ("", "Hi")]
    assert (whole.reasoning, whole.text) == ("Hm, so.", "Hi")
    assert stream(*deltas) == whole
    assert "Hm" not in json.dumps(body("hi", AssistantSays(text=whole.text, extra=whole.extra), "and?"))


def test_what_is_reasoned_when_the_text_has_begun_is_left_out():
    deltas = [{"reasoning": "Hm. "}, {"reasoning": "So: ", "content": "Hi"}, {"reasoning": "late", "content": "!"}]

    assert shown(*deltas) == [("Hm. ", ""), ("So: ", "Hi"), ("", "!")]
    assert stream(*deltas).reasoning == "Hm. So: "


@pytest.mark.parametrize("odd", [None, "", 3, {"effort": "high"}, ["a"]])
def test_reasoning_that_is_no_text_is_no_reason_to_throw_an_answer_away(odd):
    reply = read(message(content="Hi", reasoning=odd))

    assert (reply.text, reply.reasoning) == ("Hi", "")


def test_reasoning_has_a_bound_streamed_or_not(monkeypatch):
    monkeypatch.setattr(wire, "REASONING_LIMIT", 5)

    assert shown({"reasoning": "abc"}, {"reasoning": "def"}, {"reasoning": "g"}) == [("abc", ""), ("de", ""), ("", "")]
    assert read(message(content="Hi", reasoning="abcdefg")).reasoning == "abcde"


@pytest.mark.parametrize(("told", "counted"), [(7, 7), (-5, 0), (1.5, 0), ("7", 0), (2**70, 0), (3_000_000_000, 0)])
def test_number_of_tokens_that_no_reply_can_have_counts_as_none(told, counted):
    assert wire.count({"prompt_tokens": told}, "prompt_tokens") == counted
