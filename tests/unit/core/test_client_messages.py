"""Messages of a consumer: what is allowed where, and how the model sees it."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.model import AssistantSays, StopReason, ToolSays, UserSays
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.transcript import build
from support.builders import a_call, a_reply, an_ask, an_entry

REPLY = a_reply(StopReason.TOOL_USE, an_ask("a"), an_ask("b"), text="let me see")
LINK = {"role": "assistant", "reply": "r:1"}
USER = {"role": "user", "text": "no"}


def result(ask_id: str, content: str = "done") -> dict[str, object]:
    return {"role": "tool", "ask_id": ask_id, "content": content}


def normal(*messages, before=()):
    return client_messages.normal(messages, before, REPLY, "r:1")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"role": "user", "text": " "}], "messages.0"),
        ([{"role": "system", "text": "x"}], "messages.0"),
        ([{"role": "user", "text": "x", "extra": 1}], "messages.0"),
        ([{"role": "assistant", "text": ""}], "messages.0"),
        ([{"role": "assistant", "reply": "r:9"}], "messages.0.reply"),
        ([LINK, LINK], "messages.1"),
        ([{"role": "assistant", "text": "", "asks": [{"id": "a"}]}], "messages.0.asks.0"),
        (
            [{"role": "assistant", "text": "", "asks": [{"id": "a", "name": "t", "arguments": {}}] * 2}],
            "messages.0.asks",
        ),
        ([result("a")], "messages.0.ask_id"),
        ([LINK, USER, result("a")], "messages.2.ask_id"),
        ([LINK, result("z")], "messages.1.ask_id"),
        ([LINK, result("a"), result("a")], "messages.2.ask_id"),
    ],
)
def test_invalid_client_message_is_refused_with_its_place(messages, field):
    with pytest.raises(InvalidMessage) as refused:
        normal(*messages)

    assert refused.value.field == field


def test_an_equal_message_is_the_reply_that_is_held():
    asks = [{"id": ask.id, "name": ask.name, "arguments": ask.arguments} for ask in REPLY.asks]

    (equal,) = normal({"role": "assistant", "text": REPLY.text, "asks": asks})
    (other,) = normal({"role": "assistant", "text": "let me think", "asks": asks})

    assert (equal["linked"], other["linked"]) == (True, False)


def test_results_pushed_later_answer_the_message_pushed_before():
    before = normal(LINK)

    assert normal(result("b"), before=before)
    assert [ask.id for ask in client_messages.open_asks([*before, *normal(result("b"), before=before)])] == ["a"]


def test_calls_that_can_no_longer_be_answered_are_found():
    assert client_messages.left_open(normal(LINK, result("a"), USER)) == ["b"]
    assert client_messages.left_open(normal(LINK)) == []
    assert client_messages.left_open(normal(LINK, result("b"), result("a"), USER)) == []


def prompt_after(*messages, calls=(), replaces=False):
    entries = [
        an_entry(1, Checkpoint.USER_MESSAGE, {"text": "hi"}, step=0),
        an_entry(2, Checkpoint.CLIENT_MESSAGES, {"messages": list(messages), "replaces": replaces}),
    ]
    return build(entries, calls)


def test_results_keep_the_order_of_the_calls_whatever_their_source():
    said = prompt_after(*normal(LINK, result("b", "B")), calls=[a_call(place=0, ask_id="a", content="A")])

    assert [(one.ask_id, one.content) for one in said if isinstance(one, ToolSays)] == [("a", "A"), ("b", "B")]
    assert isinstance(said[1], AssistantSays)


def test_newest_attempt_of_a_call_is_shown():
    calls = [a_call(place=0, content="first"), a_call(place=0, generation=2, content="second")]

    (answer,) = [
        one for one in prompt_after(*normal(LINK, result("b")), calls=calls) if getattr(one, "ask_id", "") == "a"
    ]
    assert answer.content == "second"


def test_replaced_history_takes_the_place_of_the_old_one():
    assert prompt_after(*normal(USER), replaces=True) == (UserSays(text="no"),)
    assert prompt_after(*normal(USER)) == (UserSays(text="hi"), UserSays(text="no"))
