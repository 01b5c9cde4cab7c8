"""An MCP server without the package and of an older protocol, ready in no time: run as `old_mcp_server.py FOLDER`.

Also as a module: `OldHttpServer` speaks the same over HTTP, with sessions that it may forget.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "2025-06-18"
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
NAMES = ("add", "pid", "linger.long", "die", "odd", "gone")  # the last is listed, and is not there
UNKNOWN = {"code": -32601, "message": "Method not found"}


def answer(
    message: dict[str, Any], folder: Path | None = None, names: tuple[str, ...] = NAMES
) -> dict[str, Any] | None:
    """None to a notification."""
    if "id" not in message:
        return None
    done = _done(message["method"], message.get("params") or {}, folder, names)
    return {"jsonrpc": "2.0", "id": message["id"], **done}


def _done(method: str, params: dict[str, Any], folder: Path | None, names: tuple[str, ...]) -> dict[str, Any]:
    match method:
        case "initialize":
            about = {"name": "old", "version": "1"}
            return {"result": {"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":  # page by page
            place = int(params.get("cursor") or 0)
            page = {"tools": [_tool(names[place])]}
            return {"result": {**page, "nextCursor": str(place + 1)} if place + 1 < len(names) else page}
        case "tools/call":
            return _called(params["name"], params.get("arguments") or {}, folder)
        case _:
            return {"error": UNKNOWN}


def _tool(name: str) -> dict[str, Any]:
    promised = {"outputSchema": {"type": "object"}} if name == "odd" else {}
    return {"name": name, "inputSchema": NUMBERS, **promised}


def _called(name: str, arguments: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    match name:
        case "add":
            text = str(arguments["a"] + arguments["b"])
        case "odd":
            text = "not what was promised"
        case "pid":
            text = str(os.getpid())
        case "linger.long":
            text = _linger(folder or Path())
        case "die":
            print(arguments.get("words"), file=sys.stderr, flush=True)
            os._exit(3)
        case _:
            return {"error": {"code": -32602, "message": f"Unknown tool: {name}"}}
    return {"result": {"content": [{"type": "text", "text": text}]}}


def _linger(folder: Path) -> str:
    (folder / "lingering").write_text(str(os.getpid()))
    while not (folder / "gate").exists():
        time.sleep(0.02)
    return "the gate is open"


class OldHttpServer:
    """In a thread of the test's."""

    def __init__(self) -> None:
        self.session = "first"
        self.names = NAMES
        self.calls = 0
        self.status = 200  # what it answers everything with, if not well
        self.headers: dict[str, str] = {}  # of the last request
        self.on_post: Callable[[], object] = lambda: None
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                here._post(self)

            def do_GET(self) -> None:
                self.send_error(405)

            def do_DELETE(self) -> None:
                self.send_error(405)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/mcp?key=secret"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _post(self, request: Any) -> None:
        self.on_post()
        self.headers = dict(request.headers)
        message = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        begins = message["method"] in {"initialize", "server/discover"}
        if self.status != 200 or (not begins and request.headers.get("Mcp-Session-Id") != self.session):
            request.send_error(self.status if self.status != 200 else 404)
            return
        self.calls += message["method"] == "tools/call"
        said = answer(message, names=self.names)
        body = json.dumps(said).encode() if said else b""
        request.send_response(200 if said else 202)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        if message["method"] == "initialize":
            request.send_header("Mcp-Session-Id", self.session)
        request.end_headers()
        request.wfile.write(body)


def main(folder: Path) -> None:
    (folder / "started").open("a").write(f"{os.getpid()}\n")
    if (folder / "broken").exists():
        sys.exit("I am broken")
    speaks = threading.Lock()

    def serve(message: dict[str, Any]) -> None:
        said = answer(message, folder)
        with speaks:
            if said:
                print(json.dumps(said), flush=True)

    for line in sys.stdin:
        threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
    while (folder / "stubborn").exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
