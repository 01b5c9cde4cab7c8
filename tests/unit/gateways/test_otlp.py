"""What a collector answers, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chordage.orchestrator.core.errors import TryLater, Undeliverable
from chordage.orchestrator.gateways.otlp import OtlpCollector


@pytest.fixture
def answering() -> Iterator[Callable[[int], str]]:
    """The address of a collector that answers with this status."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Retry-After", "7")
                self.send_header("Content-Length", "3")
                self.end_headers()
                self.wfile.write(b"why")

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1/traces"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_what_is_taken_is_sent(answering: Callable[[int], str]) -> None:
    collector = OtlpCollector(answering(200), headers={})
    collector.send(b"{}")
    collector.send(b"{}")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_spans_that_are_refused_are_not_to_be_sent_again(answering: Callable[[int], str], status: int) -> None:
    with pytest.raises(Undeliverable, match=f"answered {status}: why"):
        OtlpCollector(answering(status), headers={}).send(b"{}")


@pytest.mark.parametrize("status", [301, 401, 403, 404, 429, 500, 503])
def test_every_other_answer_may_change_when_somebody_repairs_it(answering: Callable[[int], str], status: int) -> None:
    with pytest.raises(TryLater, match=f"answered {status}: why") as caught:
        OtlpCollector(answering(status), headers={}).send(b"{}")
    assert caught.value.seconds == 7


def test_collector_that_is_away_is_to_be_tried_again() -> None:
    with pytest.raises(TryLater, match=r"the collector http://127\.0\.0\.1:1/v1/traces does not answer"):
        OtlpCollector("http://127.0.0.1:1/v1/traces", headers={}).send(b"{}")
