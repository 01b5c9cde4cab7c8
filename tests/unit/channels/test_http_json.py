"""Messages of any service that lists them as JSON."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from chordage.orchestrator.core.channels import Outgoing, Unreadable
from chordage.orchestrator.core.errors import Unavailable, Undeliverable

REPLY = Outgoing(key="k1", thread_id="t", turn_id="u", text="yes", body={"reason": "natural_end"})


class Service:
    def __init__(self) -> None:
        self.answer: object = {"messages": []}
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, list[str]], dict[str, str], object]] = []


@contextmanager
def running():
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            at = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            service.asked.append((at.path, parse_qs(at.query), headers, body))
            raw = service.answer if isinstance(service.answer, bytes) else json.dumps(service.answer).encode()
            self.send_response(service.status)
            for name, value in {**service.headers, "content-length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield service
        server.shutdown()
        thread.join()


@pytest.fixture
def service():
    with running() as made:
        yield made


@pytest.fixture
def channel(service, bound):
    def make(**more):
        return bound("http_json", url=f"{service.url}/in", deliver_url=f"{service.url}/out", **more)

    return make


def test_messages_are_found_by_their_paths_and_the_cursor_is_the_one_the_service_names(service, channel):
    service.answer = {"data": {"items": [{"n": 7, "say": {"it": "hello"}, "who": "ada", "room": "r1"}]}, "next": "p2"}
    paths = {
        "messages_path": "data.items", "id_path": "n", "text_path": "say.it", "sender_path": "who",
        "thread_path": "room", "next_cursor_path": "next", "cursor_param": "after",
    }  # fmt: skip

    polled = channel(owners=["ada"], params={"limit": "9"}, headers={"x-key": "k"}, **paths).poll("p1")

    (message,) = polled.messages
    assert (message.key, message.text, message.sender.value, message.thread) == ("7", "hello", "owner", "r1")
    assert message.address == {"thread": "r1", "id": "7", "to": "ada"}
    assert (polled.cursor, message.cursor) == ("p2", None)
    path, query, headers, _ = service.asked[0]
    assert (path, query, headers["x-key"]) == ("/in", {"after": ["p1"], "limit": ["9"]}, "k")


def test_where_the_service_names_no_cursor_it_is_the_id_of_the_last_message(service, channel):
    service.answer = [{"id": 3, "text": "new"}, {"id": 2, "text": "old"}]

    polled = channel(messages_path=".", everybody="service", newest_first=True).poll(None)

    assert [(message.key, message.cursor, message.thread) for message in polled.messages] == [
        ("2", "2", "all"),
        ("3", "3", "all"),
    ]
    assert polled.cursor == "3"
    assert channel(messages_path=".", everybody="service").poll(None).cursor == "2"


def test_an_id_that_cannot_be_stored_is_no_cursor(service, channel):
    service.answer = {"messages": [{"id": one, "text": "x"} for one in ("a", "b\x00", "c", "d\x00", "e\ud800")]}

    polled = channel(everybody="peer").poll("z")

    assert [message.cursor for message in polled.messages] == ["a", None, "c", None, None]
    assert polled.cursor == "c"
    service.answer = {"messages": [{"id": "\x00", "text": "x"}]}
    assert channel(everybody="peer").poll("z").cursor == "z"


def test_an_empty_answer_leaves_the_cursor_where_it_is(channel):
    assert channel(everybody="peer", next_cursor_path="next").poll("9").cursor == "9"
    assert channel(everybody="peer").poll("9").cursor == "9"


def test_sender_on_no_list_is_skipped(service, channel):
    service.answer = {"messages": [{"id": n, "text": "x", "by": who} for n, who in enumerate(["a", "b", "c", "d"])]}

    polled = channel(sender_path="by", owners=["a"], peers="b", guests=["c"]).poll(None)
    opened = channel(sender_path="by", owners=["a"], guests=["*"]).poll(None)

    assert [message.sender.value for message in polled.messages] == ["owner", "peer", "guest"]
    assert (polled.passed_over, polled.cursor) == (1, "3")
    assert [message.sender.value for message in opened.messages] == ["owner", "guest", "guest", "guest"]


def test_what_has_no_id_or_no_text_is_put_on_record(service, channel):
    service.answer = {
        "messages": [{"text": "no id"}, {"id": 1}, "what", {"id": True, "text": "x"}, {"id": 2, "text": "ok"}]
    }

    *bad, good = channel(everybody="guest").poll(None).messages

    assert all(isinstance(each, Unreadable) for each in bad)
    assert ["(id_path)" in each.why for each in bad] == [True, False, True, True]
    assert good.text == "ok"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"<html>", 200, "there is no list at 'messages'"),
        ({"messages": {}}, 200, "there is no list"),
        ({}, 503, "answered 503; try again after 7 s"),
        ({}, 302, "answered 302"),
    ],
)
def test_an_answer_that_is_no_list_is_a_failure(service, channel, answer, status, words):
    service.answer, service.status, service.headers = answer, status, {"retry-after": "7", "location": "http://x/"}

    with pytest.raises(Unavailable, match=words):
        channel(everybody="guest").poll(None)


def test_an_answer_without_end_is_cut_off(service, channel, monkeypatch):
    monkeypatch.setattr("chordage.orchestrator.gateways.channels.json_client.LARGEST", 1000)
    service.answer = {"messages": [{"id": 1, "text": "x" * 2000}]}

    with pytest.raises(Unavailable, match="more than 1000 bytes"):
        channel(everybody="guest").poll(None)


def test_a_reply_is_posted_with_its_key(service, channel):
    channel(everybody="guest", deliver_headers={"x-key": "k"}).deliver({"to": "ada"}, REPLY)

    path, _, headers, body = service.asked[0]
    assert (path, headers["idempotency-key"], headers["x-key"]) == ("/out", "k1", "k")
    assert body == {
        "key": "k1", "thread_id": "t", "turn_id": "u", "text": "yes", "address": {"to": "ada"},
        "body": {"reason": "natural_end"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Undeliverable), (404, Undeliverable), (429, Unavailable), (500, Unavailable)]
)
def test_refusal_shows_whether_another_try_helps(service, channel, status, kind):
    service.status = status

    with pytest.raises(kind, match=f"deliver_url answered {status}"):
        channel(everybody="guest").deliver({}, REPLY)


def test_without_a_url_for_replies_none_can_be_sent(bound):
    with pytest.raises(Undeliverable, match="there is no deliver_url"):
        bound("http_json", url="http://127.0.0.1:9", everybody="guest").deliver({}, REPLY)


def test_unreachable_service_is_named_by_its_host_alone(bound):
    with pytest.raises(Unavailable, match=r"127.0.0.1 does not answer \(ConnectError\)") as raised:
        bound("http_json", url="http://127.0.0.1:9/secret-path", everybody="guest").poll(None)

    assert "secret-path" not in str(raised.value)
