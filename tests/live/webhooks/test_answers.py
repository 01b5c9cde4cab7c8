"""Every answer that a delivery may get, over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from sqlalchemy import select

from chordage.orchestrator import views
from chordage.orchestrator.store import schema
from support import signed_deliveries
from support.signed_deliveries import SIGNED, refused

pytestmark = pytest.mark.redis

EACH = pytest.mark.parametrize("name", SIGNED)


@EACH
def test_a_signed_delivery_is_stored_and_answered_with_its_turn(hooked, name):
    body = signed_deliveries.bodies(name)

    response = hooked.post(name, body, SIGNED[name](body))

    assert response.status_code == 202
    turn_id = response.json()["turn_id"]
    turn = views.turn(hooked.rt.store, turn_id)
    assert (turn.status, turn.sender, turn.origin, turn.run_id) == ("queued", "service", "invoke", None)
    assert hooked.client.get(f"/turns/{turn_id}").status_code == 404, "over HTTP the messages of a hook cannot be read"


@EACH
def test_a_delivery_without_a_signature_is_401_and_stores_nothing(hooked, name):
    problem = refused(hooked.post(name, signed_deliveries.bodies(name), {}), 401)

    assert problem["detail"] == "a signature is needed"
    assert hooked.stored() == []


@EACH
def test_a_wrong_signature_is_403_whatever_the_body_holds(hooked, name):
    for body in (signed_deliveries.bodies(name), b"{", b"", b"\xff"):
        problem = refused(hooked.post(name, body, SIGNED[name](body + b" ")), 403)
        assert set(problem) == {"type", "title", "status", "detail"}

    assert hooked.stored() == []


@EACH
def test_another_secret_is_403(hooked, name):
    body = signed_deliveries.bodies(name)
    other = signed_deliveries.OLD_SECRET[:-4] + "abc=" if name == "standard" else "another secret"

    refused(hooked.post(name, body, SIGNED[name](body, secret=other)), 403)


@pytest.mark.parametrize("name", ["standard", "plain"])
@pytest.mark.parametrize("at", [-400, 400])
def test_signature_from_another_time_is_403_and_reported_as_a_wrong_one(hooked, name, at):
    body = signed_deliveries.bodies(name)

    stale = refused(hooked.post(name, body, SIGNED[name](body, at=at)), 403)

    assert stale == refused(hooked.post(name, body, SIGNED[name](body + b" ")), 403)
    assert hooked.post(name, body, SIGNED[name](body, at=at / 2)).status_code == 202


@EACH
def test_a_delivery_that_comes_again_is_409_and_names_its_turn(hooked, name):
    body = signed_deliveries.bodies(name)
    headers = SIGNED[name](body)
    first = hooked.post(name, body, headers)

    problem = refused(hooked.post(name, body, headers), 409)

    assert problem["turn_id"] == first.json()["turn_id"]
    assert len(hooked.stored()) == 1


@pytest.mark.parametrize(("name", "header"), [("github", "X-GitHub-Delivery"), ("plain", "X-Id")])
def test_a_copy_under_another_id_is_409_and_names_the_turn(hooked, name, header):
    """Neither form signs the id, so it can be changed by any reader of the delivery."""
    body = signed_deliveries.bodies(name)
    headers = SIGNED[name](body)
    first = hooked.post(name, body, headers)

    for number in range(3):
        problem = refused(hooked.post(name, body, {**headers, header: f"other-{number}"}), 409)
        assert problem["turn_id"] == first.json()["turn_id"]
    assert len(hooked.stored()) == 1


def test_same_body_at_another_signed_time_is_another_delivery(hooked):
    body = signed_deliveries.bodies("plain")

    codes = [hooked.post("plain", body, SIGNED["plain"](body, at=at)).status_code for at in (0, 1)]

    assert codes == [202, 202]


def test_replay_with_a_wrong_signature_learns_nothing(hooked):
    body = signed_deliveries.bodies("standard")
    headers = SIGNED["standard"](body)
    hooked.post("standard", body, headers)

    problem = refused(hooked.post("standard", body + b" ", headers), 403)

    assert "turn_id" not in problem


def test_after_a_change_of_secrets_both_are_right_for_a_while(hooked):
    body = signed_deliveries.bodies("standard")
    both = SIGNED["standard"](body)
    old = SIGNED["standard"](body, secret=signed_deliveries.OLD_SECRET)
    several = {**both, "webhook-signature": f"v1,bm8= v1a,zz {both['webhook-signature']}"}

    assert hooked.post("standard", body, old).status_code == 202
    assert hooked.post("standard", body, several).status_code == 202


def test_duplicate_header_is_no_signature(hooked):
    body = signed_deliveries.bodies("github")
    signed = list(SIGNED["github"](body).items())

    response = hooked.client.post("/hooks/github", content=body, headers=[("X-Hub-Signature-256", "sha256=0"), *signed])

    refused(response, 403)


@pytest.mark.parametrize("path", ["/hooks/", "/hooks/nothing", "/hooks/open/", "/hooks/OPEN", "/hooks/%00"])
def test_an_unknown_path_is_the_404_of_the_api(hooked, path):
    problem = refused(hooked.client.post(path, content=b"{}"), 404)

    problem["detail"] = problem["detail"].replace(repr(unquote(path)), "'/nowhere'")
    assert problem == hooked.client.post("/nowhere").json()


def test_a_query_is_no_part_of_the_path(hooked):
    body = signed_deliveries.bodies("bare")

    response = hooked.client.post("/hooks/bare?x=1", content=body, headers=signed_deliveries.bare(body))

    assert response.status_code == 202


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_a_wrong_method_is_405_and_names_the_right_one(hooked, method):
    response = hooked.client.request(method, "/hooks/open", content=b"{}")

    refused(response, 405)
    assert response.headers["Allow"] == "PUT"


def test_a_body_too_large_by_what_it_announces_is_413_and_not_read(hooked):
    head = "POST /hooks/standard HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2001\r\n\r\n"

    assert answer_to(hooked, head.encode()).startswith("HTTP/1.1 413 ")


def test_false_length_hides_nothing(hooked):
    """What comes after the announced length is no part of the delivery."""
    body = b'{"text": "a"}'
    signed = "".join(f"{name}: {value}\r\n" for name, value in signed_deliveries.bare(body).items())
    head = f"POST /hooks/bare HTTP/1.1\r\nHost: localhost\r\n{signed}Content-Length: {len(body)}\r\n\r\n"

    told = answer_to(hooked, head.encode() + body + b"x" * 5000)

    assert told.startswith("HTTP/1.1 202 ")
    assert [turn.text for turn in hooked.stored()] == ["a"]


def answer_to(hooked, request):
    with socket.create_connection((hooked.client.base_url.host, hooked.client.base_url.port), timeout=60) as connection:
        connection.sendall(request)
        return connection.recv(65536).decode()


def test_a_body_too_large_in_pieces_is_413_while_it_comes(hooked):
    sent = []

    def endless() -> Iterator[bytes]:
        for _ in range(200):
            sent.append(1)
            yield b"x" * 65536

    refused(hooked.client.post("/hooks/standard", content=endless()), 413)

    assert len(sent) < 200


def test_a_body_as_large_as_its_binding_allows_is_taken_in_pieces_too(hooked):
    body = json.dumps({"text": "t", "more": "x" * 1975}).encode()
    assert len(body) == 2000

    headers = SIGNED["standard"](body)

    assert hooked.client.post("/hooks/standard", content=iter([body[:7], body[7:]]), headers=headers).status_code == 202


def test_a_text_over_the_limit_of_messages_is_413(hooked):
    body = signed_deliveries.body(text="x" * 1001)

    problem = refused(hooked.post("bare", body, signed_deliveries.bare(body)), 413)

    assert (problem["field"], "1000" in problem["detail"]) == ("text", True)


MALFORMED = {
    "no JSON": (b"{", "body"),
    "nothing": (b"", "body"),
    "no UTF-8": (b'{"text": "\xff"}', "body"),
    "no object": (b'["text"]', "body"),
    "not a number": (b'{"text": "x", "n": NaN}', "body"),
    "deep": (b'{"text":' + b"[" * 100_000, "body"),
    "no text": (b'{"txt": "x"}', "text"),
    "blank text": (b'{"text": " "}', "text"),
    "text is a number": (b'{"text": 1}', "text"),
    "NUL": (b'{"text": "a\\u0000"}', "text"),
    "half a surrogate": (b'{"text": "\\ud800"}', "text"),
}


@pytest.mark.parametrize(("body", "field"), MALFORMED.values(), ids=MALFORMED)
def test_signed_body_that_is_no_message_is_422_with_the_reason(hooked, body, field):
    problem = refused(hooked.post("bare", body, signed_deliveries.bare(body)), 422)

    assert problem["field"] == field
    assert hooked.stored() == []


@pytest.mark.parametrize("delivery", ["", "x" * 201, "a\tb"])
def test_a_delivery_id_that_is_none_is_422(hooked, delivery):
    body = signed_deliveries.bodies("github")

    problem = refused(
        hooked.post("github", body, {**signed_deliveries.github(body), "X-GitHub-Delivery": delivery}), 422
    )

    assert problem["field"] == "x-github-delivery"


def test_what_a_payload_claims_to_be_is_not_believed(hooked):
    claims = {"sender": "owner", "origin": "task", "channel": "telegram", "thread_id": "t", "thread": "t",
              "agent": "bob", "reply_target": {"channel": "mine"}, "meta": {"a": 1}, "group": "chat"}  # fmt: skip
    body = signed_deliveries.body(**claims)

    turn_id = hooked.post("bare", body, signed_deliveries.bare(body)).json()["turn_id"]

    turn = views.turn(hooked.rt.store, turn_id)
    assert (turn.sender, turn.origin, turn.channel, turn.agent, turn.meta) == ("service", "invoke", None, "ada", {})
    assert turn.thread_id == f"invoke:{turn_id}"
    assert reply_target_of(hooked, turn_id) is None


def reply_target_of(hooked, turn_id):
    with hooked.rt.store.read() as tx:
        return tx.execute(select(schema.turns.c.reply_target).where(schema.turns.c.id == turn_id)).scalar_one()


def test_what_the_binding_pins_is_what_the_turn_has(hooked):
    body = signed_deliveries.body(sender="owner", thread="another")

    turn_id = hooked.client.put("/hooks/open", content=body).json()["turn_id"]

    turn = views.turn(hooked.rt.store, turn_id)
    assert (turn.sender, turn.origin, turn.channel) == ("guest", "chat", "open")
    assert (turn.agent, turn.thread_id) == ("bob", "front-desk")
    assert reply_target_of(hooked, turn_id) == {"channel": "desk", "address": "1"}


def test_fields_of_the_payload_become_text_thread_and_meta(hooked):
    body = signed_deliveries.bodies("github")
    headers = signed_deliveries.github(body, **{"X-GitHub-Event": "push"})

    turn = views.turn(hooked.rt.store, hooked.post("github", body, headers).json()["turn_id"])

    assert (turn.text, turn.thread_id) == ("ada pushed to refs/heads/main", "hook:github:7")
    assert turn.meta == {"ref": "refs/heads/main", "x-github-event": "push"}


def test_the_api_does_not_know_of_bindings(hooked):
    assert not [path for path in hooked.client.get("/openapi.json").json()["paths"] if path.startswith("/hooks/")]
    assert hooked.client.get("/health").status_code == 200
