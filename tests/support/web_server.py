"""A web server in this process on a free port, and what its tests say to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, cast

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from chordage.config.settings import Settings
from chordage.orchestrator.api.server import make_server
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.loops.server import WAITERS, Connection, TurnWaits
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local, web
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
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        services = getattr(app.state, "services", None)  # an app of others has none
        if services is not None and services.events is not None:
            services.events.stop()
        server.should_exit = True
        thread.join()


def finish(rt: Runtime, turn_id: str) -> None:
    local.complete(rt, turn_id, on_wait=lambda turn: None)


def with_redis(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"redis_url": SecretStr(url)})


def with_database(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database_url": SecretStr(url)})


def server_with(**doors: object) -> FastAPI:
    def unexpected(*args: object, **more: object) -> object:
        raise AssertionError(args, more)

    of_services = {field.name for field in fields(Services)}
    given = dict.fromkeys(("accept", "turn", "inbox", "decide", "result", "step", "send"), unexpected)
    wait, waiters = cast("Any", doors.pop("wait", unexpected)), cast("int", doors.pop("waiters", WAITERS))
    of_server = {name: door for name, door in doors.items() if name not in of_services}
    services = Services(
        rt=cast("Any", doors.pop("rt", None)),
        waits=TurnWaits(wait, waiters),
        **{**given, **{name: door for name, door in doors.items() if name in of_services}},
    )
    usual = {"checks": {"database": lambda: None}, "bounds": Bounds(), "version": "0", "hosts": Hosts()}
    return make_server(services, **{**usual, **of_server})


def raising(error: Exception) -> Callable[..., object]:
    def door(*args: object, **more: object) -> object:
        raise error

    return door


def mounted(settings: Settings, callers: Mapping[str, Caller], prefix: str = "") -> FastAPI:
    """The API in an app of others, with their way to say who calls: the header `x-caller`. Without one: the machine."""

    def authenticate(headers: Mapping[str, str]) -> Caller:
        return callers[name] if (name := headers.get("x-caller")) else LOCAL

    app = FastAPI()
    app.include_router(web.router_for(settings, authenticate=authenticate), prefix=prefix)
    return app


def as_caller(client: httpx.Client, name: str) -> httpx.Client:
    """What `name` of `mounted` sends."""
    return httpx.Client(base_url=client.base_url, timeout=20, headers={"x-caller": name})
