"""Hundreds of connections that announce a body and never send all of it: what they cost, and that it is given back."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack

import httpx
import psutil
import pytest

from chordage.orchestrator.gateways.webhooks.bindings import WebhookBindings
from chordage.orchestrator.loops.hook import WebhookReceiver
from chordage.orchestrator.loops.server import RequestBodies
from support import processes, signed_deliveries
from support.waiting import until
from support.web_server import served, server_with

CONNECTIONS = 400
SENT = 900_000
MB = 1024 * 1024
HEADS = {
    "hook": "POST /hooks/github HTTP/1.1\r\nX-Hub-Signature-256: sha256=00\r\nX-GitHub-Delivery: 1\r\n",
    "api": "POST /turns HTTP/1.1\r\nContent-Type: application/json\r\n",
}


@pytest.fixture
def server(settings, monkeypatch, tmp_path):
    """A process of its own: what it holds is not mixed with what the test holds."""
    signed_deliveries.environment(monkeypatch)
    signed_deliveries.write(settings.room_path)
    monkeypatch.setenv("CHORDAGE_ROOM", str(settings.room_path))
    monkeypatch.setenv("CHORDAGE_DATABASE_URL", settings.database)
    monkeypatch.setenv("CHORDAGE_REDIS_URL", settings.redis)
    said = tmp_path / "said"
    process = processes.spawn([sys.executable, "-m", "chordage.workers.cli", "web", "--port", "0"], said)
    url = until(lambda: re.search(r"HTTP on (\S+)", said.read_text()), "it has a port")[1]
    until(lambda: _answers(url), "it answers")
    yield url, psutil.Process(process.pid)
    processes.stop(process)


def _answers(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def deliver(url):
    body = signed_deliveries.bodies("github")
    return httpx.post(
        f"{url}/hooks/github", content=body, headers=signed_deliveries.github(body), timeout=90
    ).status_code


def fill(one, data):
    """As much as the server takes, without waiting for it."""
    one.setblocking(False)
    sent = 0
    while sent < len(data):
        try:
            sent += one.send(data[sent : sent + 65536])
        except BlockingIOError:
            return
        except OSError:  # it was cut off
            return


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("way", HEADS)
def test_slow_connections_cost_little_block_no_other_and_are_released(server, way):
    url, process = server
    host, port = re.match(r"http://(.+):(\d+)", url).groups()
    for _ in range(3):
        assert deliver(url) == 202
    memory, files = process.memory_info().rss, process.num_fds()
    peak = 0

    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONNECTIONS)]
        for one in slow:
            one.sendall(f"{HEADS[way]}Host: localhost\r\nContent-Length: 1000000\r\n\r\n".encode())
        for _ in range(14):
            for one in slow:
                fill(one, b"x" * (SENT // 14))
            peak = max(peak, process.memory_info().rss)
        assert deliver(url) == 202, "while they are there, a delivery comes through"
        until(lambda: process.num_fds() <= files + 5, "their connections are closed by the server")

    assert deliver(url) == 202
    until(lambda: process.memory_info().rss - memory < 150 * MB, "their memory is given back")
    assert peak - memory < 250 * MB


@pytest.fixture
def post(tmp_path, monkeypatch):
    """A server whose bodies have little time, and one raw request to it."""
    room = tmp_path / "room"
    room.mkdir()
    signed_deliveries.write(room)

    class Noted(list):
        def count(self, name, outcome, last=None):
            self.append((name, outcome.value))

        def close(self): ...

    noted = Noted()

    def accept(request):
        raise AssertionError(request)

    hooked = WebhookReceiver(bindings=WebhookBindings(room, signed_deliveries.ENV), accept=accept, stats=noted)

    def post(way, *, bodies):
        with ExitStack() as stack:
            url = stack.enter_context(served(server_with(webhooks=hooked, bodies=bodies))).base_url
            one = stack.enter_context(socket.create_connection((url.host, url.port), timeout=60))
            one.sendall(f"{HEADS[way]}Host: localhost\r\nContent-Length: 500\r\n\r\nabc".encode())
            answer = b"".join(iter(lambda: one.recv(65536), b"")).decode()
        return answer, noted

    return post


@pytest.mark.parametrize("way", HEADS)
def test_a_body_that_takes_too_long_is_408_and_its_connection_is_closed(post, way):
    answer, noted = post(way, bodies=RequestBodies(seconds=0.2))

    assert answer.startswith("HTTP/1.1 408 ")
    assert "connection: close" in answer.lower()
    assert noted == ([("github", "too_slow")] if way == "hook" else [])


@pytest.mark.parametrize("way", HEADS)
def test_displaced_body_is_503_and_may_come_again(post, way):
    answer, noted = post(way, bodies=RequestBodies(bytes_at_once=1))

    assert answer.startswith("HTTP/1.1 503 ")
    assert "retry-after: 5" in answer.lower()
    assert noted == ([("github", "crowded")] if way == "hook" else [])
