"""The one client of a process: shared by threads, never across a fork, bounded in time, through proxies."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways import http_client
from chordage.orchestrator.gateways.http_client import HttpClient
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.proxies import proxy_of
from support.fake_providers import WIRES, Calm, a_prompt, an_agent, catalog_at, providers_at, serving
from support.raw_server import anonymous_tls, chunk, raw_server, read_request, stream_head
from support.waiting import PATIENCE

ECHO = "[{text: 'you said {user}'}]"


def whole_answer(text):
    answer = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


def hello_again_and_again(connection, over):
    while True:
        read_request(connection)
        connection.sendall(whole_answer("hello"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_many_threads_share_the_client_and_each_gets_its_own_answer(tmp_path, wire, stream):
    with serving(tmp_path, ECHO) as server, catalog_at(server.url) as catalog, ThreadPoolExecutor(32) as pool:
        agent = an_agent(f"{wire}:m", stream=stream)
        replies = pool.map(lambda n: catalog.complete(agent, a_prompt(f"<{n}>"), abort=Calm()).text, range(200))
        assert list(replies) == [f"you said <{n}>" for n in range(200)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_is_used_again(tmp_path, stream):
    with raw_server(hello_again_and_again) as server, catalog_at(server.url) as catalog:
        for _ in range(5):
            catalog.complete(an_agent("openai:m", stream=stream), a_prompt("hello"), abort=Calm())
        assert server.connections == 1


def test_a_connection_is_used_again_after_a_stream(tmp_path):
    def streams(connection, over):
        while True:
            read_request(connection)
            event = b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'
            connection.sendall(stream_head() + chunk(event) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    with raw_server(streams) as server, catalog_at(server.url) as catalog:
        for _ in range(5):
            assert catalog.complete(an_agent("openai:m"), a_prompt("hello"), abort=Calm()).text == "hi"
        assert server.connections == 1


def test_stream_kept_open_after_its_last_event_is_not_awaited():
    def never_ends(connection, over):
        read_request(connection)
        event = b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'
        connection.sendall(stream_head() + chunk(event) + chunk(b"data: [DONE]\n\n"))
        over.wait()

    started = time.monotonic()
    with raw_server(never_ends) as server, catalog_at(server.url) as catalog:
        assert catalog.complete(an_agent("openai:m"), a_prompt("hello"), abort=Calm()).text == "hi"
    assert time.monotonic() - started < 60, "it did not wait for the end of the stream, until it is out of time"


def test_a_connection_the_server_closed_is_not_used_again():
    closed = threading.Semaphore(0)

    def once(connection, over):
        read_request(connection)
        connection.sendall(whole_answer("hello"))
        connection.shutdown(socket.SHUT_RDWR)
        closed.release()

    with raw_server(once) as server, catalog_at(server.url) as catalog:
        for _ in range(3):
            agent = an_agent("openai:m", stream=False)
            assert catalog.complete(agent, a_prompt("hello"), abort=Calm()).text == "hello"
            assert closed.acquire(timeout=PATIENCE)
        assert server.connections == 3


def test_a_stream_that_only_trickles_ends_at_the_deadline():
    def trickles(connection, over):
        read_request(connection)
        connection.sendall(stream_head())
        while not over.wait(0.02):
            connection.sendall(chunk(b": ping\n\n"))

    started = time.monotonic()
    with raw_server(trickles) as server, catalog_at(server.url) as catalog, pytest.raises(ModelFailed) as failed:
        catalog.complete(an_agent("openai:m", model_timeout=1), a_prompt("hello"), abort=Calm())
    assert failed.value.fault is Fault.TIMEOUT
    assert "not finished within 1 s" in str(failed.value)
    assert 0.9 < time.monotonic() - started < 30, "a stream that trickles has no end of its own"


def test_a_stream_that_falls_silent_ends_long_before_the_deadline():
    def falls_silent(connection, over):
        read_request(connection)
        connection.sendall(stream_head() + chunk(b": ping\n\n"))
        over.wait()

    started = time.monotonic()
    with raw_server(falls_silent) as server, pytest.raises(ModelFailed, match=r"nothing happened for 0\.2 s"):
        catalog = ModelCatalog(providers_at(server.url, silence=0.2), environ={"OPENAI_API_KEY": "k"})
        catalog.complete(an_agent("openai:m", model_timeout=60), a_prompt("hello"), abort=Calm())
    assert time.monotonic() - started < 30, "it did not wait for its minute to be over"


def test_a_connection_that_was_idle_for_long_is_closed_when_another_becomes_idle(monkeypatch):
    both, ended = threading.Barrier(2), threading.Semaphore(0)

    def two_at_once(connection, over):
        read_request(connection)
        both.wait(PATIENCE)
        connection.sendall(whole_answer("hello"))
        if connection.recv(1):
            connection.sendall(whole_answer("hello"))
            over.wait()
        ended.release()

    agent = an_agent("openai:m", stream=False)
    with raw_server(two_at_once) as server, catalog_at(server.url) as catalog, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(catalog.complete, agent, a_prompt("hello"), abort=Calm()) for _ in range(2)]
        assert [reply.result().text for reply in first] == ["hello", "hello"]
        monkeypatch.setattr(http_client, "IDLE_SECONDS", 0.0)
        assert catalog.complete(agent, a_prompt("hello"), abort=Calm()).text == "hello"
        assert ended.acquire(timeout=PATIENCE)
        assert server.connections == 2


def test_a_refused_connection_is_a_connection_fault_that_names_the_address():
    with raw_server(hello_again_and_again) as server:
        url = server.url
    with (
        catalog_at(url) as catalog,
        pytest.raises(ModelFailed, match=r"127\.0\.0\.1 port \d+: Connection refused") as failed,
    ):
        catalog.complete(an_agent("openai:m"), a_prompt("hello"), abort=Calm())
    assert failed.value.fault is Fault.CONNECTION


def test_tls_works():
    http = HttpClient(tls=lambda: anonymous_tls(ssl.PROTOCOL_TLS_CLIENT))
    with raw_server(hello_again_and_again, tls=True) as server, catalog_at(server.url, http=http) as catalog:
        long = a_prompt("x" * 1_000_000)
        for _ in range(3):
            assert catalog.complete(an_agent("openai:m", stream=False), long, abort=Calm()).text == "hello"
        assert server.connections == 1


def test_a_server_without_a_certificate_is_not_talked_to():
    asked = []

    def listens(connection, over):
        asked.append(read_request(connection))

    agent = an_agent("openai:m")
    with raw_server(listens, tls=True) as server, catalog_at(server.url) as catalog, pytest.raises(ModelFailed) as end:
        catalog.complete(agent, a_prompt("hello"), abort=Calm())
    assert (end.value.fault, asked) == (Fault.CONNECTION, [])


def test_a_child_process_makes_connections_of_its_own():
    with raw_server(hello_again_and_again) as server, catalog_at(server.url) as catalog:
        agent = an_agent("openai:m", stream=False)
        catalog.complete(agent, a_prompt("hello"), abort=Calm())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is under test
            child = os.fork()
        if child == 0:
            try:
                catalog.complete(agent, a_prompt("hello"), abort=Calm())
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        catalog.complete(agent, a_prompt("hello"), abort=Calm())
        assert server.connections == 2


def test_https_goes_through_the_proxy_of_the_environment():
    asked = []

    def proxy(connection, over):
        asked.append(read_request(connection).split(b"\r\n")[0])
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with anonymous_tls(ssl.PROTOCOL_TLS_SERVER).wrap_socket(connection, server_side=True) as wrapped:
            hello_again_and_again(wrapped, over)

    with raw_server(proxy) as server:
        environ = {"HTTPS_PROXY": server.url, "NO_PROXY": "example.org"}
        http = HttpClient(proxy=partial(proxy_of, environ), tls=lambda: anonymous_tls(ssl.PROTOCOL_TLS_CLIENT))
        with catalog_at("https://models.example.com", http=http) as catalog:
            reply = catalog.complete(an_agent("openai:m", stream=False), a_prompt("hello"), abort=Calm())
    assert reply.text == "hello"
    assert asked == [b"CONNECT models.example.com:443 HTTP/1.1"]


def test_cookies_of_one_call_do_not_come_back_with_the_next():
    heads = []

    def bakes(connection, over):
        while True:
            heads.append(read_request(connection).lower())
            connection.sendall(whole_answer("hello").replace(b"\r\n\r\n", b"\r\nset-cookie: a=b\r\n\r\n", 1))

    with raw_server(bakes) as server, catalog_at(server.url) as catalog:
        for _ in range(2):
            catalog.complete(an_agent("openai:m", stream=False), a_prompt("hello"), abort=Calm())
    assert [b"cookie:" in head for head in heads] == [False, False]


def test_a_hundred_waiting_calls_cost_little_memory_and_hardly_any_cpu():
    waiting = threading.Semaphore(0)
    release = threading.Event()

    def answers_later(connection, over):
        read_request(connection)
        waiting.release()
        release.wait(PATIENCE)
        connection.sendall(whole_answer("hello"))

    agent, calls = an_agent("openai:m", stream=False), 100
    with raw_server(answers_later) as server, catalog_at(server.url) as catalog, ThreadPoolExecutor(calls) as pool:
        tracemalloc.start()
        replies = [pool.submit(catalog.complete, agent, a_prompt("hello"), abort=Calm()) for _ in range(calls)]
        for _ in range(calls):
            assert waiting.acquire(timeout=PATIENCE)
        before = time.process_time()
        release.wait(1.0)
        busy, memory = time.process_time() - before, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        release.set()
        assert {reply.result().text for reply in replies} == {"hello"}
    assert busy < 0.5
    assert memory < calls * 200_000
