"""The HTTP server: the API, the webhooks and what guards them. A message is stored here; nothing is executed.

Each subject has a module with its routes. Their handlers are plain functions that run in threads; only what waits is
asynchronous (`loops/server.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI, Request

from chordage.orchestrator.api import (
    agents,
    agui,
    ai_sdk,
    bulk,
    deliveries,
    fleet,
    inbox,
    keys,
    openai,
    problems,
    reference,
    runs,
    sources,
    stepping,
    streams,
    threads,
    tickets,
    traces,
    turns,
    usage,
    web_sessions,
    why,
)
from chordage.orchestrator.api.callers import describe_keys
from chordage.orchestrator.api.faces import PlainErrors
from chordage.orchestrator.api.guards import BodyLimit, JsonRoute, PageGuard
from chordage.orchestrator.api.health import Check, Health, health_router
from chordage.orchestrator.api.mcp import McpEndpoint
from chordage.orchestrator.api.request_meter import MeteredRequests
from chordage.orchestrator.api.services import Services, keep
from chordage.orchestrator.api.webhooks import WebhookEndpoint
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.loops.hook import WebhookReceiver
from chordage.orchestrator.loops.server import RequestBodies

THREADS = 128
ROUTERS = (
    turns.router, streams.router, stepping.router, runs.router, threads.router, inbox.router, agents.router,
    fleet.router, sources.router, deliveries.router, bulk.router, keys.router, web_sessions.router, tickets.router,
    usage.router, why.router, traces.router, openai.router, agui.router, ai_sdk.router,
)  # fmt: skip

ABOUT = """\
Send messages to the agents of a room and read what became of them. A message becomes a *turn* on a *thread*. It is
stored before the answer 202, and the workers carry it out.

A call that needs a decision waits in the *inbox*. It holds no worker and no lock meanwhile, and may wait for months.

**Keys.** Send a key as `Authorization: Bearer ck_…` or as `X-Api-Key: ck_…` (401 without a valid one). Its scopes say
what it may do (403 names the one that is missing). Only a server on loopback takes requests of its own machine without
a key. Keys have a rate; beyond it the answer is 429 with `Retry-After`.

**Sender.** The sender of a message follows from the credential of the caller, never from the body. It is `service` for
every message over HTTP.

**Threads.** The threads of callers are in spaces of their own: `api:`, and `api@TENANT:` for the keys of a tenant. A
caller cannot see the threads of other tenants, of channels, webhooks and the agent's own work, nor their turns and
questions (404). A key without a tenant that may operate sees all of them, and writes to `api:` alone.

**Pages.** A request has to name a host that is this server's (421), must not come from a page of another site (403),
and a body has to say that it is JSON (415).

**Errors** are problem documents (RFC 9457): `type` tells them apart, `field` names what is wrong in the request.
"""


def make_router(services: Services, *, checks: Mapping[str, Check]) -> APIRouter:
    """All routes of the API, also for an app of others: `include_router(router, prefix=...)`. That app brings the hosts
    it accepts and the size of bodies.
    """
    health = Health(checks)

    async def give_services(request: Request) -> None:
        request.state.services = services

    all_routes = APIRouter(lifespan=_lifespan(services, health))
    for router in (*ROUTERS, health_router(health, services)):
        all_routes.include_router(router, dependencies=[Depends(give_services)])
    return all_routes


def _lifespan(services: Services, health: Health) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = max(threads.total_tokens, THREADS)
        yield
        services.waits.stop()
        if services.events is not None:
            await anyio.to_thread.run_sync(services.events.stop)
        health.close()

    return lifespan


def make_server(
    services: Services,
    *,
    checks: Mapping[str, Check],
    bounds: Bounds,
    version: str,
    hosts: Hosts,
    webhooks: WebhookReceiver | None = None,
    bodies: RequestBodies | None = None,
) -> FastAPI:
    bodies = bodies or RequestBodies()
    mcp = McpEndpoint(services)
    health = Health(checks)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _lifespan(services, health)(app):
            yield
        await mcp.close()
        if webhooks is not None:
            webhooks.stats.close()

    app = FastAPI(
        title="chordage", version=version, description=ABOUT, lifespan=lifespan, openapi_tags=[], docs_url=None,
        redoc_url=None,
    )  # fmt: skip
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, limit=largest_body(bounds), bodies=bodies)
    if webhooks is not None:
        app.add_middleware(WebhookEndpoint, receiver=webhooks, bodies=bodies)  # outside the limit: bindings have theirs
    app.add_middleware(PageGuard, hosts=hosts)  # outside all of it
    app.add_middleware(PlainErrors)
    app.add_middleware(MeteredRequests, meter=services.meter)
    problems.install(app)
    keep(app, services)
    describe_keys(app)
    add_routes(app, *ROUTERS, health_router(health, services))
    app.router.routes.append(mcp.route)
    reference.add(app)
    return app


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """The routes themselves: for `include_router` FastAPI makes each once more, in 0.1 s."""
    for router in routers:
        app.router.routes.extend(router.routes)


def largest_body(bounds: Bounds) -> int:
    """Room for every message within the bounds, also where each character is written as an escape of six."""
    return 6 * (bounds.text_bytes + 2 * bounds.meta_bytes) + 16 * 1024
