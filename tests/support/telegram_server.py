"""Telegram as bots see it, on this machine: updates are kept until an offset confirms them, and then they are gone."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"


class TelegramServer:
    """`messy`: answers hold some updates twice, in any order, and sometimes older ones that were not asked for."""

    def __init__(self, *, messy: bool = False) -> None:
        self.messy = messy
        self.updates: list[dict[str, Any]] = []
        self.confirmed: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, dict[str, Any]]] = []  # what the next requests are answered with
        self._random = random.Random(7)
        self._changed = threading.Condition()
        self._numbers = 40
        self._server: ThreadingHTTPServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def say(self, text: str | None, chat: int = 5, *, topic: int | None = None, **more: Any) -> int:
        with self._changed:
            self._numbers += 1
            message: dict[str, Any] = {"message_id": self._numbers, "chat": {"id": chat}, **more}
            if text is not None:
                message["text"] = text
            if topic is not None:
                message |= {"message_thread_id": topic, "is_topic_message": True}
            self.updates.append({"update_id": self._numbers, "message": message})
            self._changed.notify_all()
            return self._numbers

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        token, _, method = path.removeprefix("/bot").partition("/")
        if token != TOKEN:
            return 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
        if self.refusals:
            return self.refusals.pop(0)
        if method == "sendMessage":
            self.sent.append(body)
            return 200, {"ok": True, "result": {"message_id": len(self.sent)}}
        return 200, {"ok": True, "result": self._get_updates(body)}

    def _get_updates(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        with self._changed:
            self.asked.append(asked)
            self._confirm(asked.get("offset", 0))
            self._changed.wait_for(lambda: bool(self.updates), asked.get("timeout", 0))
            found = self.updates[: asked.get("limit", 100)]
            return self._disordered(found) if self.messy else found

    def _confirm(self, offset: int) -> None:
        self.confirmed += [update for update in self.updates if update["update_id"] < offset]
        self.updates = [update for update in self.updates if update["update_id"] >= offset]

    def _disordered(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        twice = self._random.sample(found, len(found) // 3)
        old = self._random.sample(self.confirmed, min(3, len(self.confirmed)))
        mixed = [*found, *twice, *old]
        self._random.shuffle(mixed)
        return mixed


@contextmanager
def telegram(*, messy: bool = False) -> Iterator[TelegramServer]:
    fake = TelegramServer(messy=messy)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            status, said = fake.answer(self.path, body)
            raw = json.dumps(said).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except OSError:
                self.close_connection = True  # the client was killed

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake._server = server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
