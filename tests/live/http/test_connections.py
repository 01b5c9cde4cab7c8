"""Connections on which nothing is asked: how long each stays open, and who pays when there are too many."""

from __future__ import annotations

import resource
import socket
import threading
from contextlib import ExitStack, closing

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.background import BackgroundTask

from chordage.orchestrator.loops import server as server_loop
from chordage.orchestrator.loops.server import Connection, allow_open_files
from support.waiting import until
from support.web_server import served

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
PATIENCE = 20.0
SIZE = 64 * 1024 * 1024  # more than the system holds for a reader


def an_app(go_on=None):
    app = FastAPI()

    @app.get("/")
    def answer() -> PlainTextResponse:
        assert go_on is None or go_on.wait(PATIENCE)
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
def at_once(monkeypatch):
    monkeypatch.setattr(server_loop, "HEADER_SECONDS", 0.3)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("sent", [b"", REQUEST, REQUEST + b"\r\n" + REQUEST], ids=["nothing", "half", "after one"])
def test_headers_have_so_many_seconds(sent):
    with served(an_app()) as client, connected(client) as connection:
        connection.sendall(sent)
        told = the_rest(connection)

    assert told.count(b"here") == sent.count(b"\r\n\r\n")


@pytest.mark.usefixtures("at_once")
def test_neither_headers_in_drops_nor_the_body_of_what_was_refused_keep_one_open():
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    for beginning in (head, head + b"\r\n"):
        with served(an_app()) as client, connected(client) as connection:
            connection.sendall(beginning)
            with pytest.raises(ConnectionError):
                until(lambda: connection.send(b"a") == 0, "it is cut off", patience=PATIENCE, pause=0.02)


@pytest.mark.usefixtures("at_once")
def test_a_request_that_is_being_answered_takes_the_time_it_takes():
    go_on = threading.Event()
    with served(an_app(go_on)) as client, connected(client) as connection, connected(client) as idle:
        connection.sendall(REQUEST + b"Connection: close\r\n\r\n")
        assert the_rest(idle) == b""  # longer than a silent one may stay
        go_on.set()
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


@pytest.mark.usefixtures("at_once")
def test_one_that_is_read_late_is_whole():
    app = FastAPI()

    @app.get("/")
    def answer() -> PlainTextResponse:
        return PlainTextResponse(b"x" * SIZE)

    with served(app) as client, connected(client) as connection:
        connection.sendall(REQUEST + b"\r\n")
        assert connection.recv(4) == b"HTTP"
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
