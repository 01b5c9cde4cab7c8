"""A call that waits in a socket ends soon after an abort, in every phase."""

from __future__ import annotations

import socket
import ssl
import threading
import time

import pytest

from chordage.orchestrator.core.errors import Aborted, HandedOver, OutOfTime
from chordage.orchestrator.gateways import abortable_sockets
from chordage.orchestrator.gateways.http_client import HttpClient
from support.fake_providers import AbortsAfter, Calm, a_prompt, an_agent, catalog_at
from support.raw_server import anonymous_tls, chunk, raw_server, read_request, stream_head

OF_THE_CALL = 60  # seconds
SOON = OF_THE_CALL / 2  # an abort is noticed long before the call itself is over, however slow the machine is


def silent_before_headers(connection, over):
    read_request(connection)
    over.wait()


def silent_in_the_stream(connection, over):
    read_request(connection)
    connection.sendall(stream_head() + chunk(b": hello\n\n"))
    over.wait()


def silent_in_the_body(connection, over):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{")
    over.wait()


def silent_in_a_body_without_length(connection, over):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{")
    over.wait()


def never_reading(connection, over):
    over.wait()


def forever_pinging(connection, over):
    read_request(connection)
    connection.sendall(stream_head())
    while not over.wait(0.01):
        connection.sendall(chunk(b": still there\n\n"))


def test_a_wait_in_a_socket_and_the_pause_between_two_checks_are_less_than_a_second():
    assert abortable_sockets.SLICE + abortable_sockets.CHECK_EVERY < 1.0


def time_to_abort(url, *, prompt="hello", error=Aborted):
    agent = an_agent("openai:m", model_timeout=OF_THE_CALL)
    abort = AbortsAfter(0.15, error)
    http = HttpClient(tls=lambda: anonymous_tls(ssl.PROTOCOL_TLS_CLIENT))
    with catalog_at(url, http=http) as catalog, pytest.raises(error):
        catalog.complete(agent, a_prompt(prompt), abort=abort)
    return time.monotonic() - abort.at


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "talk",
    [
        silent_before_headers,
        silent_in_the_stream,
        silent_in_the_body,
        silent_in_a_body_without_length,
        forever_pinging,
    ],
)
def test_a_waiting_call_is_aborted(talk, tls):
    with raw_server(talk, tls=tls) as server:
        assert time_to_abort(server.url) < SOON


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_call_that_cannot_send_its_prompt_is_aborted(tls):
    with raw_server(never_reading, tls=tls) as server:
        assert time_to_abort(server.url, prompt="x" * 16_000_000) < SOON


def test_a_connection_that_is_not_answered_is_aborted():
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    # The kernel takes one connection that is never accepted; the next is left without an answer.
    with full, socket.create_connection(full.getsockname()):
        assert time_to_abort(f"http://127.0.0.1:{full.getsockname()[1]}") < SOON


def test_a_tls_handshake_that_is_not_answered_is_aborted():
    with raw_server(never_reading) as server:
        assert time_to_abort(server.url.replace("http://", "https://")) < SOON


@pytest.mark.parametrize("error", [HandedOver, OutOfTime])
def test_call_is_handed_over_or_given_up(error):
    with raw_server(silent_before_headers) as server:
        assert time_to_abort(server.url, error=error) < SOON


def test_a_call_whose_name_is_not_found_is_aborted(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **more: over.wait())
    assert time_to_abort("http://slow.test") < SOON
    over.set()


def test_a_wait_between_attempts_is_aborted():
    def refuses(connection, over):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 429 Slow\r\nretry-after: 50\r\ncontent-length: 0\r\n\r\n")

    abort = AbortsAfter(0.15)
    agent = an_agent("openai:m", model_retries=3)
    with raw_server(refuses) as server, catalog_at(server.url) as catalog, pytest.raises(Aborted):
        catalog.complete(agent, a_prompt("hello"), abort=abort)
    assert time.monotonic() - abort.at < SOON


def test_an_aborted_call_leaves_no_connection_for_the_next_one():
    class OnceConnected(Calm):
        def __init__(self, connections: int) -> None:
            super().__init__()
            self.connections = connections

        def check(self) -> None:
            if server.connections >= self.connections:
                raise Aborted

    with raw_server(silent_in_the_stream) as server, catalog_at(server.url) as catalog:
        for connections in (1, 2):
            with pytest.raises(Aborted):
                catalog.complete(an_agent("openai:m"), a_prompt("hello"), abort=OnceConnected(connections))
        assert server.connections == 2
