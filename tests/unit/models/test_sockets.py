"""The sockets under httpcore, where they differ from the ones it brings along."""

from __future__ import annotations

import socket
import ssl

import httpcore
import pytest

from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.abortable_sockets import Backend, CallLimits, Stream
from support.fake_providers import Calm, a_prompt, an_agent, catalog_at, serving
from support.raw_server import anonymous_tls, raw_server, read_request


def backend():
    made = Backend()
    made.limits = CallLimits(Calm().check, timeout=30)
    return made


def failure(url, **settings):
    with catalog_at(url) as catalog, pytest.raises(ModelFailed) as failed:
        catalog.complete(an_agent("openai:m", **settings), a_prompt("hello"), abort=Calm())
    return failed.value


def test_every_address_of_a_name_is_tried(tmp_path, monkeypatch):
    lookup = socket.getaddrinfo

    def dead_end_first(host, port, **more):
        return lookup("127.0.0.1", 1, **more) + lookup("127.0.0.1", port, **more)

    with serving(tmp_path, "[hello]") as server, catalog_at(server.url) as catalog:
        monkeypatch.setattr(socket, "getaddrinfo", dead_end_first)
        assert catalog.complete(an_agent("openai:m"), a_prompt("hi"), abort=Calm()).text == "hello"


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_without_address_is_a_connection_fault_that_names_it(monkeypatch, error):
    def unknown(*args, **more):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    failed = failure("http://nowhere.example")
    assert failed.fault is Fault.CONNECTION
    assert "nowhere.example: " in str(failed)


def test_a_name_with_no_address_at_all_is_a_connection_fault(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: [])
    assert "the name of the host has no address" in str(failure("http://nowhere.example"))


def test_a_connection_that_is_never_made_is_a_timeout():
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    # The kernel takes one connection that is never accepted; the next is left without an answer.
    with full, socket.create_connection(full.getsockname()):
        failed = failure(f"http://127.0.0.1:{full.getsockname()[1]}", model_timeout=0.3)
    assert failed.fault is Fault.TIMEOUT


def test_a_body_that_cannot_be_unpacked_is_malformed():
    def garbled(connection, over):
        read_request(connection)
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"
        )
        connection.sendall(head + b"oops")

    with raw_server(garbled) as server:
        assert failure(server.url).fault is Fault.MALFORMED


def test_an_endless_body_is_malformed():
    def endless(connection, over):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while not over.is_set():
            connection.sendall(b" " * 1_000_000)

    with raw_server(endless) as server:
        failed = failure(server.url)
    assert failed.fault is Fault.MALFORMED
    assert "the answer is longer than" in str(failed)


def test_an_error_page_is_read_only_in_part():
    def endless(connection, over):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-type: text/html\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"<p>" * 1_000)

    with raw_server(endless) as server:
        assert failure(server.url, model_timeout=60).fault is Fault.SERVER


def test_tls_that_cannot_even_begin_closes_the_socket():
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    with theirs, pytest.raises(httpcore.ConnectError):
        Stream(ours, backend()).start_tls(context, server_hostname=None)
    assert ours.fileno() == -1


def test_stream_answers_the_queries_of_httpcore_about_its_socket():
    with raw_server(lambda connection, over: over.wait()) as server:
        stream = backend().connect_tcp("127.0.0.1", server.port)
        asked = ("client_addr", "server_addr", "ssl_object", "is_readable", "nonsense")
        mine, theirs, tls, readable, nothing = (stream.get_extra_info(one) for one in asked)
        sock = stream.get_extra_info("socket")
        assert (mine, theirs) == (sock.getsockname(), ("127.0.0.1", server.port))
        assert (tls, readable, nothing) == (None, False, None)
        stream.close()
        assert stream.get_extra_info("is_readable") is True


def test_a_stream_over_tls_shows_its_tls_socket():
    with raw_server(lambda connection, over: over.wait(), tls=True) as server:
        plain = backend().connect_tcp("127.0.0.1", server.port)
        wrapped = plain.start_tls(anonymous_tls(ssl.PROTOCOL_TLS_CLIENT), timeout=5)
        assert isinstance(wrapped.get_extra_info("ssl_object"), ssl.SSLSocket)
        wrapped.close()
