"""A script served over HTTP in both wire formats, with its faults as real ones: for tests of whatever calls a model.

`serve` starts it on a port of this machine. /v1/chat/completions answers as OpenAI does, /v1/messages as Anthropic.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.model import Prompt
from chordage.orchestrator.gateways.models import script_files
from chordage.orchestrator.gateways.models.script import ScriptedReply
from chordage.orchestrator.gateways.models.scripted import line_of
from chordage.orchestrator.gateways.models.scripted_answer import Outlet, ScriptedAnswer
from chordage.orchestrator.gateways.models.scripted_anthropic import AnthropicFormat
from chordage.orchestrator.gateways.models.scripted_openai import OpenAIFormat
from chordage.orchestrator.gateways.models.scripted_prompt import from_anthropic, from_openai
from chordage.orchestrator.gateways.models.scripted_wire import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ScriptedServer:
    """`requests` holds every request in the order it came; `log`, where given, gets the bodies, one JSON a line."""

    def __init__(self, script: Path, port: int, host: str, log: Path | None) -> None:
        self.requests: list[Received] = []
        self._choose = script_files.load(script)
        self._log = log
        self._seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self.closing = threading.Event()
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

    def record(self, path: str, headers: dict[str, str], raw: bytes) -> int:
        """Note a request down; returns which attempt it is, by the caller's word or else by its likes before it."""
        with self._lock:
            self._seen[raw] += 1
            self.requests.append(Received(path=path, headers=headers, body=json.loads(raw)))
            if self._log:
                with self._log.open("ab") as log:
                    log.write(raw + b"\n")
            retries = headers.get("x-retry-count", "")
            return int(retries) + 1 if retries.isdigit() else self._seen[raw]

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


class _Handler(Outlet):
    server: _Http

    @property
    def closing(self) -> threading.Event:
        return self.server.scripted.closing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """Tests are quiet."""

    def do_POST(self) -> None:  # noqa: N802  # the name is the base class's
        scripted = self.server.scripted
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        attempt = scripted.record(self.path, {k.lower(): v for k, v in self.headers.items()}, raw)
        body = json.loads(raw)
        if self.path.endswith("/messages"):
            kind: Format = AnthropicFormat()
            prompt = from_anthropic(body)
        else:
            kind, prompt = OpenAIFormat(), from_openai(body)
        try:
            reply = scripted.choose(prompt, attempt)
        except RoomError as error:
            said = {"error": {"type": "invalid_request_error", "message": str(error)}}
            self.send_body(400, "application/json", json.dumps(said).encode())
            return
        if not self.closing.wait(reply.latency):
            ScriptedAnswer(self, kind, body, reply, line_of(reply, prompt)).give(attempt)
