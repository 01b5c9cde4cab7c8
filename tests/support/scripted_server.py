"""A script served over HTTP in both wire formats, with its faults as real ones: for tests of code that calls a model.

`serve` starts it on a port of this machine. /v1/chat/completions answers as OpenAI does, /v1/messages as Anthropic.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.model import Fault, Prompt
from chordage.orchestrator.gateways.models import script_files
from chordage.orchestrator.gateways.models.script import (
    FaultForm,
    FilledReply,
    ScriptedFault,
    ScriptedReply,
    fill_in,
)
from support.scripted_formats import AnthropicFormat, Json, OpenAIFormat, ServedFormat

STATUS = {
    Fault.RATE_LIMIT: 429,
    Fault.OVERLOADED: 529,
    Fault.SERVER: 500,
    Fault.TIMEOUT: 408,
    Fault.CONNECTION: 502,
    Fault.TRUNCATED: 500,
    Fault.MALFORMED: 500,
    Fault.QUOTA: 429,
    Fault.AUTH: 401,
    Fault.CONTEXT: 400,
    Fault.REJECTED: 400,
}
_NO_LINGER = struct.pack("ii", 1, 0)  # closing now sends a reset instead of an orderly end


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    header_names: tuple[str, ...]  # as they came, lower case
    body: dict[str, Any]


class ScriptedServer:
    """`requests` holds every request in the order it came; `log`, where given, gets the bodies, one JSON a line."""

    def __init__(self, script: Path, port: int, host: str, log: Path | None) -> None:
        self.requests: list[ReceivedRequest] = []
        self.closing = threading.Event()
        self._choose = script_files.load(script)
        self._log = log
        self._repeats: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._http = _Http((host, port), _Handler)
        self._http.scripted = self
        self.url = f"http://{host}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def calls(self) -> int:
        return len(self.requests)

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def record(self, path: str, headers: Message, raw: bytes) -> int:
        """Note a request; returns which attempt it is: as its header says, or else by equal requests before it."""
        with self._lock:
            self._repeats[raw] += 1
            received = ReceivedRequest(
                path=path, headers={name.lower(): value for name, value in headers.items()},
                header_names=tuple(name.lower() for name in headers), body=json.loads(raw),
            )  # fmt: skip
            self.requests.append(received)
            if self._log:
                with self._log.open("ab") as log:
                    log.write(raw + b"\n")
            retries = headers.get("x-retry-count", "")
            return int(retries) + 1 if retries.isdigit() else self._repeats[raw]

    def choose(self, prompt: Prompt, attempt: int) -> ScriptedReply:
        return self._choose(prompt, attempt)


def serve(script: Path | str, port: int = 0, *, host: str = "127.0.0.1", log: Path | None = None) -> ScriptedServer:
    """Serve a script until `close`; port 0 takes a free one. Raises RoomError when the script is broken."""
    return ScriptedServer(Path(script), port, host, log)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024
    scripted: ScriptedServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away in the middle is what many tests are about: no traceback for it.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """Tests are quiet."""

    def do_POST(self) -> None:  # the name is the base class's
        scripted = self.server.scripted
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        attempt = scripted.record(self.path, self.headers, raw)
        body = json.loads(raw)
        form: ServedFormat = AnthropicFormat() if self.path.endswith("/messages") else OpenAIFormat()
        prompt = form.prompt(body)
        try:
            reply = scripted.choose(prompt, attempt)
        except RoomError as error:
            self.send_json({"error": {"type": "invalid_request_error", "message": str(error)}}, status=400)
            return
        if not scripted.closing.wait(reply.latency):
            _Answer(self, form, body, reply, fill_in(reply, prompt)).send(attempt)

    def send_head(self, status: int, content_type: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content_type": content_type, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_body(self, status: int, content_type: str, body: bytes, **headers: str) -> None:
        self.send_head(status, content_type, content_length=str(len(body)), **headers)
        self.wfile.write(body)

    def send_json(self, body: Json, status: int = 200, **headers: str) -> None:
        self.send_body(status, "application/json", json.dumps(body).encode(), **headers)

    def send_stream(self, parts: Iterable[bytes], pace: float = 0.0) -> None:
        """What is in `parts`, without the end of the stream."""
        self.send_head(200, "text/event-stream", transfer_encoding="chunked")
        for part in parts:
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            if pace:
                self.server.scripted.closing.wait(pace)

    def hang(self) -> None:
        self.server.scripted.closing.wait()
        self.close_connection = True


class _Answer:
    """One reply on its way out, with the fault its script asks for."""

    def __init__(
        self, handler: _Handler, form: ServedFormat, request: Json, reply: ScriptedReply, filled: FilledReply
    ) -> None:
        self._handler = handler
        self._format = form
        self._reply = reply
        self._filled = filled
        self._model = str(request.get("model", ""))
        self._stream = bool(request.get("stream"))

    def send(self, attempt: int) -> None:
        fault = self._reply.fail
        if fault and fault.hits(attempt):
            self._fail(fault)
        elif self._stream:
            self._send_stream([*self._events(), self._format.last])
        else:
            self._handler.send_json(self._whole())

    def _fail(self, fault: ScriptedFault) -> None:
        match fault.form:
            case FaultForm.STATUS:
                wait = {} if fault.retry_after is None else {"retry_after": f"{fault.retry_after:g}"}
                self._handler.send_json(self._format.error(fault.fault), STATUS[fault.fault], **wait)
            case FaultForm.HTML:
                self._handler.send_body(200, "text/html", b"<html><body>a gateway speaks</body></html>")
            case FaultForm.JSON:
                self._handler.send_body(200, "application/json", self._half()[0])
            case FaultForm.EMPTY:
                self._handler.send_json({})
            case FaultForm.NO_CHOICES:
                self._handler.send_json(self._format.without_choices(self._filled, self._model))
            case FaultForm.HANG:
                self._handler.hang()
            case _ if self._stream:
                self._break_stream(fault)
            case _:
                half, length = self._half()
                self._handler.send_head(200, "application/json", content_length=str(length))
                self._handler.wfile.write(half)
                self._stop_short(fault)

    def _break_stream(self, fault: ScriptedFault) -> None:
        begun = list(self._events())[: fault.after]
        match fault.form:
            case FaultForm.CUT:
                self._send_stream(begun)
            case FaultForm.SSE_ERROR:
                self._send_stream([*begun, self._format.encoded(self._format.error(fault.fault))])
            case FaultForm.SSE_GARBAGE:
                self._send_stream([*begun, b"data: {not json\n\n"])
            case _:
                self._handler.send_stream(begun)
                self._stop_short(fault)

    def _stop_short(self, fault: ScriptedFault) -> None:
        if fault.form is FaultForm.STALL:
            self._handler.hang()
            return
        if fault.form is FaultForm.RESET:
            self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._handler.close_connection = True

    def _send_stream(self, parts: list[bytes]) -> None:
        self._handler.send_stream(parts, self._reply.pace)
        self._handler.wfile.write(b"0\r\n\r\n")

    def _events(self) -> Iterator[bytes]:
        return map(self._format.encoded, self._format.events(self._filled, self._model, self._reply.chunk))

    def _whole(self) -> Json:
        return self._format.whole(self._filled, self._model)

    def _half(self) -> tuple[bytes, int]:
        """The first half of the whole answer, and the length of all of it."""
        body = json.dumps(self._whole()).encode()
        return body[: len(body) // 2], len(body)
