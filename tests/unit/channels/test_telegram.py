"""Telegram: who is let in, how far was read, and what becomes of a reply."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from support.telegram_server import TOKEN, telegram

LISTED = {"owner_chat_id": 1, "peer_chat_ids": "2, 3", "allowed_chat_ids": [5, "-100"]}


@pytest.fixture
def server():
    with telegram() as fake:
        yield fake


@pytest.fixture
def channel(server, bound):
    return bound("telegram", token=TOKEN, api_base=server.url, poll_timeout_sec=0, **LISTED)


def reply(text, **more):
    return Outgoing(**{"key": "k1", "thread_id": "t", "turn_id": "u1", "text": text, "body": {}, **more})


def test_update_41_becomes_a_message_with_cursor_42_and_cursor_40_is_sent_as_the_offset(server, channel):
    server.say("hello", chat=5)

    polled = channel.poll("40")

    assert [(message.key, message.text, message.cursor) for message in polled.messages] == [("41", "hello", "42")]
    assert polled.cursor == "42"
    assert server.asked[-1]["offset"] == 40
    assert server.asked[-1]["allowed_updates"] == ["message"]


def test_first_look_requests_all_that_telegram_has_kept(server, channel):
    assert channel.poll(None).cursor is None
    assert "offset" not in server.asked[-1]


def test_the_owners_chat_is_owner_listed_peers_are_peer_and_allowed_chats_guest(server, channel):
    for chat in (1, 2, 3, 5, -100):
        server.say("hi", chat=chat)

    senders = [message.sender.value for message in channel.poll(None).messages]

    assert senders == ["owner", "peer", "peer", "guest", "guest"]


def test_unlisted_sender_is_ignored_and_does_not_delay_the_others(server, channel):
    server.say("let me in", chat=66)
    server.say("hello", chat=5)

    polled = channel.poll(None)

    assert [message.text for message in polled.messages] == ["hello"]
    assert (polled.cursor, polled.passed_over) == ("43", 1)


def test_all_senders_are_ignored_without_a_list(server, bound):
    server.say("hello", chat=5)

    polled = bound("telegram", token=TOKEN, api_base=server.url, poll_timeout_sec=0).poll(None)

    assert (polled.messages, polled.passed_over, polled.cursor) == ((), 1, "42")


def test_a_caption_is_a_text_and_what_has_neither_is_passed_over(server, channel):
    server.say(None, caption="look at this")
    server.say(None, sticker={})

    polled = channel.poll(None)

    assert [message.text for message in polled.messages] == ["look at this"]
    assert polled.cursor == "43"


def test_a_topic_is_part_of_the_thread_and_of_the_address(server, channel):
    server.say("in a topic", chat=-100, topic=9)

    (message,) = channel.poll(None).messages

    assert message.thread == "-100:9"
    assert message.address == {"chat": "-100", "topic": 9}


def test_doubled_and_reordered_updates_are_handed_over_once_and_in_order(server, channel):
    for number in range(30):
        server.say(f"{number}")
    server.messy = True

    texts = [message.text for message in channel.poll(None).messages]

    assert texts == [str(number) for number in range(30)]


def test_what_is_no_update_is_not_tripped_over(server, channel):
    server.updates += [{"update_id": 50, "message": {"chat": 7}}, {"update_id": 51, "poll": {}}]
    server._disordered = lambda found: [*found, "what", {"update_id": "x"}]
    server.messy = True

    assert channel.poll(None).cursor == "52"


def test_a_reply_goes_to_its_chat_and_topic(server, channel):
    channel.deliver({"chat": "-100", "topic": 9}, reply("here you are"))

    assert server.sent == [{"chat_id": "-100", "message_thread_id": 9, "text": "here you are"}]


def test_a_long_reply_is_split_and_nothing_but_blanks_is_lost(server, channel):
    words = " ".join(f"word{number:05}" for number in range(2000))

    channel.deliver({"chat": "5"}, reply(words))

    texts = [sent["text"] for sent in server.sent]
    assert len(texts) == 5
    assert max(map(len, texts)) <= 4096
    assert " ".join(texts) == words


def test_characters_outside_the_basic_plane_count_twice(server, channel):
    channel.deliver({"chat": "5"}, reply("😀" * 3000))

    assert [len(sent["text"]) for sent in server.sent] == [2048, 952]


def test_reply_that_failed_halfway_continues_with_the_part_that_failed(server, channel):
    channel.deliver({"chat": "5"}, reply("first", key="other"))
    refusals = [(200, {"ok": True, "result": {}}), (500, {"ok": False})]
    server.refusals = refusals
    with pytest.raises(Unavailable):
        channel.deliver({"chat": "5"}, reply("a" * 4096 + "b"))

    channel.deliver({"chat": "5"}, reply("a" * 4096 + "b"))

    assert [sent["text"] for sent in server.sent] == ["first", "b"]


def test_a_turn_without_an_answer_is_not_passed_over_in_silence(server, channel):
    channel.deliver({"chat": "5"}, reply(None, body={"reason": "error", "code": "model_auth"}))

    assert server.sent[0]["text"] == "(There is no answer: model_auth. Turn u1)"


@pytest.mark.parametrize(
    ("status", "said", "kind", "words"),
    [
        (429, {"ok": False, "description": "Too Many", "parameters": {"retry_after": 31}}, Unavailable, "after 31 s"),
        (502, {"ok": False}, Unavailable, "502"),
        (401, {"ok": False, "description": "Unauthorized"}, Unavailable, "is the token right"),
        (409, {"ok": False, "description": "Conflict"}, Unavailable, "another program"),
        (400, {"ok": False, "description": "chat not found"}, Undeliverable, "chat not found"),
        (403, {"ok": False, "description": "bot was blocked"}, Undeliverable, "bot was blocked"),
    ],
)
def test_refusal_shows_whether_another_try_helps(server, channel, status, said, kind, words):
    server.refusals = [(status, said)]

    with pytest.raises(kind, match=words):
        channel.deliver({"chat": "5"}, reply("hi"))


def test_an_address_without_a_chat_is_undeliverable(channel):
    with pytest.raises(Undeliverable, match="names no chat"):
        channel.deliver({}, reply("hi"))


def test_an_answer_that_is_no_list_is_a_failure_and_no_empty_look(server, channel):
    server.refusals = [(200, {"ok": True, "result": {}})]

    with pytest.raises(Unavailable, match="no list of updates"):
        channel.poll(None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid", None])
def test_the_token_is_in_no_error_and_in_no_log(server, bound, caplog, url):
    caplog.set_level("DEBUG")
    token = "999:wrong-and-secret"
    channel = bound("telegram", token=token, api_base=url or server.url, allowed_chat_ids=[5])

    with pytest.raises(Unavailable) as raised:
        channel.poll(None) if "invalid" not in (url or "") else channel.poll("not a number")

    seen = repr(raised.value) + repr(raised.value.__cause__) + caplog.text + repr(channel.__dict__)
    assert "wrong-and-secret" not in seen.replace("frozenset({'999:wrong-and-secret'})", "")
