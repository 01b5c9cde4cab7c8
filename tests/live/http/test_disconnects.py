"""A client that waits for a turn and disconnects frees its slot at once."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

import httpx
import pytest

from chordage.orchestrator.loops.server import WAITERS
from chordage.workers import web
from support.waiting import PATIENCE, until
from support.web_server import served

pytestmark = pytest.mark.redis

BODY = b'{"text": "x"}'
HEAD = (
    b"POST /turns?wait=60 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n"
)


def waits_here() -> int:
    """Threads of the server that listen for the end of a turn: it runs in this process."""
    frames = __import__("sys")._current_frames().values()
    return sum(_listens(frame) for frame in frames)


def _listens(frame) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "wait_for_turn":
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_as_many_as_may_wait_go_away_and_as_many_others_wait_at_once(settings, how):
    """No connection was answered, and nothing of it is left."""
    with served(web.wired(settings)) as client:
        address = (client.base_url.host, client.base_url.port)
        with ExitStack() as open_ones:
            gone = [open_ones.enter_context(socket.create_connection(address)) for _ in range(WAITERS)]
            for one in gone:
                one.sendall(HEAD + BODY)
            until(lambda: waits_here() == WAITERS, "all of them wait")
            if how == "reset":
                for one in gone:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        began = time.monotonic()
        until(lambda: waits_here() == 0, "none of them waits any longer")
        took = time.monotonic() - began

        answers: list[httpx.Response] = []
        post = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{client.base_url}/turns?wait=1", json={"text": "y"}, timeout=PATIENCE)
            )
        )
        began = time.monotonic()
        post.start()
        post.join()

    assert took < 30, "the places are free long before the minute is over"
    assert answers[0].status_code == 202
    assert time.monotonic() - began >= 1, "it was let wait"


def test_remaining_client_is_answered_when_another_disconnects(settings):
    with served(web.wired(settings)) as client:
        address = (client.base_url.host, client.base_url.port)
        gone = socket.create_connection(address)
        gone.sendall(HEAD + BODY)
        until(lambda: waits_here() == 1, "it waits")
        gone.close()
        response = client.post("/turns?wait=0.5", json={"text": "y"})

    assert response.status_code == 202


def test_who_waits_while_reading_and_goes_away_frees_its_slot_too(settings):
    with served(web.wired(settings)) as client:
        turn = client.post("/turns", json={"text": "x"}).json()["turn_id"]
        gone = socket.create_connection((client.base_url.host, client.base_url.port))
        gone.sendall(f"GET /turns/{turn}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: waits_here() == 1, "it waits")
        gone.close()

        went = time.monotonic()
        until(lambda: waits_here() == 0, "it waits no longer")
        assert time.monotonic() - went < 30, "the place is free long before the minute is over"
