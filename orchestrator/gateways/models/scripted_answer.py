"""One scripted reply on its way out of the server, with the fault its script asks for."""

from __future__ import annotations

import json
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from chordage.orchestrator.gateways.models.script import Fail, How, ScriptedReply
from chordage.orchestrator.gateways.models.scripted import Line
from chordage.orchestrator.gateways.models.scripted_wire import STATUS, Format

_NO_LINGER = struct.pack("ii", 1, 0)  # closing now sends a reset instead of a farewell


class Outlet(BaseHTTPRequestHandler, ABC):
    """An HTTP handler as far as answers need it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    @abstractmethod
    def closing(self) -> threading.Event:
        """Set when the server shuts down: whoever hangs then stops hanging."""

    def send_body(self, status: int, content_type: str, body: bytes, **headers: str) -> None:
        self.send_head(status, content_type, content_length=str(len(body)), **headers)
        self.wfile.write(body)

    def send_head(self, status: int, content_type: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content_type": content_type, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


class ScriptedAnswer:
    """One reply on its way out, with the fault its script asks for."""

    def __init__(
        self, handler: Outlet, kind: Format, request: dict[str, Any], reply: ScriptedReply, line: Line
    ) -> None:
        self._handler = handler
        self._format = kind
        self._reply = reply
        self._line = line
        self._model = str(request.get("model", ""))
        self._stream = bool(request.get("stream"))

    def give(self, attempt: int) -> None:
        fail = self._reply.fail
        if fail and fail.hits(attempt):
            self._fail(fail)
        elif self._stream:
            self._send_stream([*self._events(), self._format.last])
        else:
            self._send(self._format.whole(self._line, self._model))

    def _fail(self, fail: Fail) -> None:
        match fail.how:
            case How.STATUS:
                self._refuse(fail)
            case How.HTML:
                self._handler.send_body(200, "text/html", b"<html><body>a gateway speaks</body></html>")
            case How.JSON:
                self._handler.send_body(200, "application/json", self._whole()[: len(self._whole()) // 2])
            case How.EMPTY:
                self._send({})
            case How.NO_CHOICES:
                self._send(self._format.without_choices(self._line, self._model))
            case How.HANG:
                self._hang()
            case _:
                self._break(fail)

    def _refuse(self, fail: Fail) -> None:
        asked = {} if fail.retry_after is None else {"retry_after": f"{fail.retry_after:g}"}
        body = json.dumps(self._format.error(fail.fault)).encode()
        self._handler.send_body(STATUS[fail.fault], "application/json", body, **asked)

    def _break(self, fail: Fail) -> None:
        """Faults in the middle of an answer. Without a stream there are two: half a body, then reset or silence."""
        if not self._stream:
            self._handler.send_head(200, "application/json", content_length=str(len(self._whole())))
            self._handler.wfile.write(self._whole()[: len(self._whole()) // 2])
        match fail.how:
            case How.CUT if self._stream:
                self._send_stream(self._first(fail))
            case How.SSE_ERROR if self._stream:
                self._send_stream([*self._first(fail), self._format.encoded(self._format.error(fail.fault))])
            case How.SSE_GARBAGE if self._stream:
                self._send_stream([*self._first(fail), b"data: {not json\n\n"])
            case _:
                self._stop_short(fail)

    def _stop_short(self, fail: Fail) -> None:
        if self._stream:
            self._begin_stream()
            for part in self._first(fail):
                self._write_chunk(part)
        if fail.how is How.STALL:
            self._hang()
            return
        if fail.how is How.RESET:
            self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._handler.close_connection = True

    def _events(self) -> Iterator[bytes]:
        return map(self._format.encoded, self._format.events(self._line, self._model, self._reply.chunk))

    def _first(self, fail: Fail) -> list[bytes]:
        return list(self._events())[: fail.after]

    def _whole(self) -> bytes:
        return json.dumps(self._format.whole(self._line, self._model)).encode()

    def _send(self, body: dict[str, Any]) -> None:
        self._handler.send_body(200, "application/json", json.dumps(body).encode())

    def _send_stream(self, parts: list[bytes]) -> None:
        self._begin_stream()
        for part in parts:
            self._write_chunk(part)
            if self._reply.pace:
                self._handler.closing.wait(self._reply.pace)
        self._handler.wfile.write(b"0\r\n\r\n")

    def _begin_stream(self) -> None:
        self._handler.send_head(200, "text/event-stream", transfer_encoding="chunked")

    def _write_chunk(self, part: bytes) -> None:
        if part:
            self._handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self._handler.wfile.flush()

    def _hang(self) -> None:
        self._handler.closing.wait()
        self._handler.close_connection = True
