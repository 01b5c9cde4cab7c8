"""A web server in this process on a free port, and what its tests say to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from chordage.config.settings import Settings
from chordage.orchestrator.api.routes import make_server
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.loops.server import Connection
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local
from support.waiting import until

PROBLEM = "application/problem+json"


@contextmanager
def served(app: FastAPI, **options: object) -> Iterator[httpx.Client]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none", http=Connection, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the server listens", pause=0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def finish(rt: Runtime, turn_id: str) -> None:
    local.complete(rt, turn_id, on_wait=lambda turn: None)


def with_redis(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"redis_url": SecretStr(url)})


def with_database(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database_url": SecretStr(url)})


def server_with(**doors: object) -> FastAPI:
    def unexpected(*args: object) -> object:
        raise AssertionError(args)

    names = ("accept", "turn", "wait", "inbox", "decide", "result")
    given = {**dict.fromkeys(names, unexpected), "checks": {"database": lambda: None}}
    return make_server(**{**given, "bounds": Bounds(), "version": "0", "hosts": Hosts(), **doors})


def raising(error: Exception) -> Callable[..., object]:
    def door(*args: object) -> object:
        raise error

    return door
