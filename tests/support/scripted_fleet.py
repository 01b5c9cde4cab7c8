"""A server of the HTTP API that answers as a test says, for both clients, without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import httpx

from chordage.workers.client.async_client import AsyncClient
from chordage.workers.client.sync_client import Client

BOTH = ("sync", "async")
URL = "http://fleet.example"


@dataclass
class ScriptedFleet:
    """`answers`: what each request gets in turn; the last one is repeated. An exception is a broken connection."""

    answers: list[Any] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        if answer.is_closed:  # read already: it may be sent again, and by the other client
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        return answer

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def apause(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Driven:
    """Either client, called the same way."""

    def __init__(self, kind: str, fleet: ScriptedFleet, **options: Any) -> None:
        self._kind = kind
        transport = httpx.MockTransport(fleet.handle)
        if kind == "sync":
            self.client: Any = Client(URL, http=httpx.Client(transport=transport), sleep=fleet.pause, **options)
        else:
            http = httpx.AsyncClient(transport=transport)
            self.client = AsyncClient(URL, http=http, sleep=fleet.apause, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        def call(*args: Any, **more: Any) -> Any:
            if self._kind == "sync":
                result = method(*args, **more)
                return list(result) if isinstance(result, Iterator) else result
            return anyio.run(partial(_awaited, method, args, more))

        return call


async def _awaited(method: Callable[..., Any], args: Any, more: Any) -> Any:
    result = method(*args, **more)
    if isinstance(result, AsyncIterator):
        return [item async for item in result]
    return await result


def answer(body: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def problem(status: int, kind: str, detail: str = "because", *, headers: Any = None, **more: Any) -> httpx.Response:
    body = {"type": f"urn:chordage:problem:{kind}", "title": "T", "status": status, "detail": detail, **more}
    return httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json", **(headers or {})})


def turn(**more: Any) -> dict[str, Any]:
    return {"turn_id": "t1", "thread_id": "api:a", "agent": "ada", "status": "active", "usage": {}, **more}


def question(number: int = 1) -> dict[str, Any]:
    return {
        "id": f"q{number}", "call_id": "c1", "run_id": "r1", "thread_id": "api:a", "agent": "ada", "tool": "deploy",
        "arguments": {"env": "prod"}, "why": "tool", "prompt": "May I?", "schema": {"type": "boolean"},
        "resume_mode": "replay_tool_call", "created_at": "2026-01-01T00:00:00Z", "on_expiry": "deny",
    }  # fmt: skip
