"""No test may leave this machine, and none may take the refusal for an ordinary failure."""

from __future__ import annotations

import socket

import httpx
import pytest

OUTSIDE = "192.0.2.1"  # set aside for documentation, not reachable


def test_connection_to_the_outside_is_refused():
    with socket.socket() as client, pytest.raises(pytest.fail.Exception, match=f"wanted to reach {OUTSIDE}"):
        client.connect((OUTSIDE, 80))


def test_lookup_of_an_outside_name_is_refused():
    with pytest.raises(pytest.fail.Exception, match=r"wanted to reach example\.com"):
        socket.getaddrinfo("example.com", 443)


def test_refusal_is_no_exception_that_code_would_catch():
    def call_and_swallow():
        try:
            httpx.get(f"http://{OUTSIDE}/")
        except Exception:
            return "swallowed"

    with pytest.raises(pytest.fail.Exception):
        call_and_swallow()


def test_this_machine_is_reachable():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
