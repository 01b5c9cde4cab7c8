"""Connections on which nothing is asked: how long each stays open, and who pays when there are too many."""

from __future__ import annotations

import resource
import socket
import threading
from contextlib import ExitStack, closing, suppress

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.background import BackgroundTask

from chordage.orchestrator.loops import server as server_loop
from chordage.orchestrator.loops.server import Connection, allow_open_files
from support.waiting import PATIENCE, until
from support.web_server import served

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
SIZE = 64 * 1024 * 1024  # more than the system holds for a reader


class Gate:
    """The app waits at it in each request."""

    def __init__(self):
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def wait(self):
        self.reached.set()
        assert self.may_go_on.wait(PATIENCE)


def an_app(gate=None):
    app = FastAPI()

    @app.get("/")
    def answer() -> PlainTextResponse:
        if gate is not None:
            gate.wait()
        return PlainTextResponse("here")

    @app.post("/")
    async def refuse(_request: Request) -> PlainTextResponse:
        """Before the body is there."""
        return PlainTextResponse("no", 403)

    return app


def connected(client):
    return closing(socket.create_connection(("127.0.0.1", client.base_url.port), timeout=PATIENCE))


def the_rest(connection):
    """What still comes until the server ends it; TimeoutError where it does not."""
    told = bytearray()
    try:
        while piece := connection.recv(65536):
            told += piece
    except ConnectionError:
        pass
    return bytes(told)


@pytest.fixture
def seconds(monkeypatch):
    """Set how long a connection may take from now on: those that are open keep the time that they were given."""

    def are(number):
        monkeypatch.setattr(server_loop, "HEADER_SECONDS", number)

    are(PATIENCE)
    return are


@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["nothing", "half"])
def test_headers_have_so_many_seconds(seconds, sent):
    seconds(0.3)
    with served(an_app()) as client, connected(client) as connection:
        with suppress(ConnectionError):  # on a slow machine they are over before this is sent
            connection.sendall(sent)
        assert the_rest(connection) == b""


def test_headers_have_so_many_seconds_after_the_request_before(seconds):
    gate = Gate()
    with served(an_app(gate)) as client, connected(client) as connection:
        connection.sendall(REQUEST + b"\r\n" + REQUEST)
        assert gate.reached.wait(PATIENCE)
        seconds(0.3)
        gate.may_go_on.set()
        told = the_rest(connection)

    assert told.count(b"here") == 1


def test_neither_headers_in_drops_nor_the_body_of_what_was_refused_keep_one_open(seconds):
    seconds(0.3)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    for beginning in (head, head + b"\r\n"):
        with served(an_app()) as client, connected(client) as connection, pytest.raises(ConnectionError):
            connection.sendall(beginning)
            until(lambda: connection.send(b"a") == 0, "it is cut off", pause=0.02)


def test_a_request_that_is_being_answered_takes_the_time_it_takes(seconds):
    gate = Gate()
    with served(an_app(gate)) as client, connected(client) as connection:
        connection.sendall(REQUEST + b"Connection: close\r\n\r\n")
        assert gate.reached.wait(PATIENCE)
        seconds(0.3)
        with connected(client) as idle:
            assert the_rest(idle) == b""  # longer than a silent one may stay
        gate.may_go_on.set()
        assert the_rest(connection).endswith(b"here")


def test_answer_without_a_reader_is_given_up(monkeypatch):
    monkeypatch.setattr(server_loop, "READ_SECONDS", 0.3)
    app, sent = FastAPI(), threading.Event()

    @app.get("/")
    def answer() -> StreamingResponse:
        return StreamingResponse(iter([b"x" * SIZE]), background=BackgroundTask(sent.set))

    with served(app) as client, connected(client) as connection:
        connection.sendall(REQUEST + b"\r\n")
        assert sent.wait(PATIENCE)
        assert 0 < len(the_rest(connection)) < SIZE


def test_one_that_is_read_late_is_whole(seconds):
    app = FastAPI()

    @app.get("/")
    def answer() -> PlainTextResponse:
        return PlainTextResponse(b"x" * SIZE)

    with served(app) as client, connected(client) as connection:
        connection.sendall(REQUEST + b"\r\n")
        assert connection.recv(4) == b"HTTP"
        seconds(0.3)
        with connected(client) as idle:
            assert the_rest(idle) == b""  # longer than a silent one may stay
        assert len(the_rest(connection)) > SIZE


def test_when_too_many_are_idle_the_first_pays_and_a_newcomer_is_served(monkeypatch):
    monkeypatch.setattr(server_loop, "CONNECTIONS_MAX", 5)
    with served(an_app()) as client, ExitStack() as open_ones:
        idle = []
        for _ in range(8):
            idle.append(open_ones.enter_context(connected(client)))
            until(lambda: len(Connection._idle) == min(len(idle), 5), "it is seen")
        assert [the_rest(one) for one in idle[:3]] == [b""] * 3
        assert client.get("/").text == "here"
        idle[-1].sendall(REQUEST + b"Connection: close\r\n\r\n")
        assert the_rest(idle[-1]).endswith(b"here")


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(monkeypatch):
    laid_down = []
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: laid_down.append(limits))
    for limits in ((1024, 4096), (1024, resource.RLIM_INFINITY), (20_000, 20_000), (4096, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _what, limits=limits: limits)
        allow_open_files()

    assert laid_down == [(4096, 4096), (8192, resource.RLIM_INFINITY)]
