"""What a browser can be made to send to a server on its own machine, by the pages of others."""

from __future__ import annotations

import json
import socket
from itertools import product

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from support import asking_room, signed_deliveries
from support.waiting import PATIENCE
from support.web_server import PROBLEM, served

pytestmark = pytest.mark.redis

FORMS = {
    "fetch, text/plain": "text/plain;charset=UTF-8",
    "fetch, no type": None,
    "form": "application/x-www-form-urlencoded",
    "form with files": "multipart/form-data; boundary=x",
    "form, text/plain": "text/plain",
    "JSON by another name": "text/json",
    "two types": "application/json, text/plain",
}
BODY = json.dumps({"text": "from a page"})


@pytest.fixture(autouse=True)
def room(settings, monkeypatch):
    """With a webhook that takes deliveries without a signature."""
    signed_deliveries.environment(monkeypatch)
    signed_deliveries.write(settings.room_path)


def raw(client, head: str, body: str = "") -> tuple[int, dict]:
    """Exactly this request; without a Host of its own httpx sends none."""
    request = f"{head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=PATIENCE) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    start, _, rest = answer.partition("\r\n\r\n")
    return int(start.split()[1]), json.loads(rest) if start.lower().find(PROBLEM) > 0 else {}


FOREIGN = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8630", "[::2]", "a b"]


@pytest.mark.parametrize("asked", ["GET /inbox", "POST /turns", "POST /decisions", "PUT /hooks/open", "GET /health"])
def test_a_name_that_was_made_to_resolve_to_this_machine_gets_nothing(client, rt, asked):
    for host in FOREIGN:
        head = f"{asked} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nOrigin: http://{host}"

        status, problem = raw(client, head, BODY)

        assert (status, problem["type"]) == (421, "urn:chordage:problem:misdirected"), host
        assert views.turns(rt.store) == []


def test_two_hosts_are_none(client):
    status, _ = raw(client, "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example")

    assert status in {400, 421}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.9.1:80", "[::1]:8630"])
def test_names_of_this_machine_are_taken(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


PAGES = ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1.evil.example", "file://", "x"]


@pytest.mark.parametrize("kind", ["application/json", *filter(None, FORMS.values())])
def test_a_page_of_another_site_changes_nothing(client, rt, kind):
    """Whatever it may send: with `no-cors` it cannot read the answer, and the message would be in all the same."""
    asked = (("/turns", "POST"), ("/decisions", "POST"), ("/hooks/open", "PUT"), ("/turns", "OPTIONS"))
    for page, (path, method) in product(PAGES, asked):
        response = client.request(method, path, content=BODY, headers={"Origin": page, "Content-Type": kind})
        assert (response.status_code, response.headers["Content-Type"]) == (403, PROBLEM), (page, path, method)
        assert not [name for name in response.headers if name.lower().startswith("access-control")]

    assert views.turns(rt.store) == []


@pytest.mark.parametrize("path", ["/turns", "/decisions"])
def test_body_without_a_json_content_type_is_415(client, rt, path):
    for kind in FORMS.values():
        response = client.post(path, content=BODY, headers={} if kind is None else {"Content-Type": kind})

        assert (response.status_code, response.headers["Content-Type"]) == (415, PROBLEM), kind
        assert "application/json" in response.json()["detail"]
        assert views.turns(rt.store) == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"])
def test_body_with_a_json_content_type_is_accepted(client, kind):
    assert client.post("/turns", content=BODY, headers={"Content-Type": kind}).status_code == 202


def test_requests_of_our_own_page_are_accepted(client):
    origin = f"http://{client.base_url.host}:{client.base_url.port}"

    assert client.post("/turns", json={"text": "x"}, headers={"Origin": origin}).status_code == 202


def test_what_the_operator_names_is_taken_as_host_and_as_page(settings, rt):
    """With a key: only requests of this machine, by its own names, need none."""
    key = stages.create_key(rt.store, KeyTerms(name="n", scopes=frozenset(KeyScope)), CLI, rt.now()).text
    with served(web.wired(settings.model_copy(update={"hosts": ("agents.example.org",)}))) as client:
        named = {"Host": "agents.example.org", "Origin": "https://agents.example.org"}
        behind_a_proxy = {"Origin": "https://agents.example.org"}
        other = {"Host": "other.example.org"}
        codes = [
            client.post("/turns", json={"text": "x"}, headers={**headers, **more}).status_code
            for headers in (named, behind_a_proxy, other)
            for more in ({}, {"X-Api-Key": key})
        ]

    assert codes == [401, 202, 401, 202, 421, 421]


def test_webhook_sender_needs_no_origin_and_no_content_type(client):
    response = client.put("/hooks/open", content=signed_deliveries.body(), headers={"Content-Type": "text/plain"})

    assert response.status_code == 202


@pytest.fixture
def asking(settings):
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


@pytest.mark.usefixtures("asking")
def test_no_page_approves(client, rt):
    asking_room.waiting_turn(rt, "send", space="api")
    question = views.inbox(rt.store)[0]
    body = json.dumps({"decisions": [{"target": question.id, "action": "resume"}]})

    page = client.post("/decisions", content=body, headers={"Origin": "null", "Content-Type": "text/plain"})
    form = client.post("/decisions", content=body, headers={"Content-Type": "text/plain"})

    assert (page.status_code, form.status_code) == (403, 415)
    assert len(views.inbox(rt.store)) == 2
