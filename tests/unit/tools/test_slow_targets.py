"""Targets that answer slowly on purpose: the time limit is one of the whole exchange, and threads stay bounded."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.errors import TryLater, Unavailable
from chordage.orchestrator.gateways.address_guard import AddressGuard
from chordage.orchestrator.gateways.channels.json_client import JsonClient
from chordage.orchestrator.gateways.channels.webhook import Webhook
from chordage.orchestrator.gateways.name_lookup import Names
from chordage.orchestrator.gateways.tools.web import WebGetter

HERE = AddressGuard(("127.0.0.0/8",))
REPLY = Outgoing(key="turn-1", thread_id="t", turn_id="turn-1", text="ok", body={"reason": "natural_end", "text": "ok"})
LIMIT = 0.4
FIRST = {
    "headers": b"HTTP/1.1 200 OK\r\n",
    "headers after close": b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
    "body": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 999999\r\n\r\n",
    "body after close": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n",
    "nothing": b"",
    "tls": b"\x16\x03\x03\x40\x00",
}
DRIPS = {"headers": b"X: 1\r\n", "headers after close": b"X: 1\r\n", "nothing": b""}


@contextmanager
def dripping(first: bytes, drip: bytes):
    """A server that answers with something and then with a byte now and then, for ever."""
    over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(65536)
                peer.sendall(first)
                while not over.wait(0.05):
                    peer.sendall(drip)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def ask_web_hook(place: str, scheme: str) -> None:
    with pytest.raises(TryLater, match="does not answer"):
        Webhook(guard=HERE, timeout=LIMIT).deliver({"url": f"{scheme}://{place}/in"}, REPLY)


def ask_page(place: str, scheme: str) -> None:
    with pytest.raises(TimeoutError):
        WebGetter(guard=HERE, timeout=LIMIT).get(f"{scheme}://{place}/page")


def ask_channel(place: str, scheme: str) -> None:
    with pytest.raises(Unavailable, match="did not answer within"):
        JsonClient().request("GET", f"{scheme}://{place}/messages", timeout=LIMIT)


@pytest.mark.parametrize("ask", [ask_web_hook, ask_page, ask_channel])
@pytest.mark.parametrize("how", list(FIRST))
def test_dripping_target_is_given_up_in_time(ask, how):
    with dripping(FIRST[how], DRIPS.get(how, b"x")) as place:
        began = time.monotonic()
        ask(place, "https" if how == "tls" else "http")
    assert time.monotonic() - began < LIMIT + 30, "it has no end of its own"


@pytest.fixture
def stuck(monkeypatch):
    """Names that the system looks up for ever, until the test is over."""
    over, asked = threading.Event(), []

    def look_up(host, port, **options):
        asked.append(host)
        over.wait()
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield asked
    over.set()
    for thread in threading.enumerate():
        if thread.name == "chordage-names":
            thread.join()


@pytest.mark.parametrize("ask", [ask_web_hook, ask_page, ask_channel])
def test_name_that_is_not_resolved_in_time_is_given_up(stuck, ask):
    began = time.monotonic()
    ask("slow.test", "http")
    assert time.monotonic() - began < LIMIT + 30, "it has no end of its own"


def lookups() -> int:
    return sum(thread.name == "chordage-names" for thread in threading.enumerate())


def test_one_name_keeps_one_thread_however_often_it_is_requested(stuck):
    names = Names()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            names.ask("slow.test", 80).result(0.01)
    assert (stuck, lookups()) == (["slow.test"], 1)


def test_many_names_keep_a_bounded_number_of_threads_and_the_next_is_refused_at_once(stuck):
    names = Names(at_once=3)
    for number in range(3):
        names.ask(f"slow{number}.test", 80)
    with pytest.raises(OSError, match="one.more.test is not looked up: 3 other names are"):
        names.ask("one.more.test", 80)
    assert lookups() == 3


def test_literal_address_needs_no_lookup():
    names = Names(at_once=0)
    assert names.ask("127.0.0.1", 80).result(0)[0][4] == ("127.0.0.1", 80)
