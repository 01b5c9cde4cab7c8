"""The health of the services behind the server, within bounded time; and whether the process is alive and ready.

A check can hang as long as the service it asks. So each check has a thread of its own and runs once at a time, and a
request for the health uses no thread of the server: all of those may be waiting for the service that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import structlog
from fastapi import APIRouter, Request, Response

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import known_caller
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.core.errors import Forbidden, TooManyRequests, Unauthenticated, WrongSchema

log = structlog.get_logger()

Check = Callable[[], None]  # raises when the service is not well
PATIENCE = 2.0
SILENT = "does not answer"


class Health:
    def __init__(self, checks: Mapping[str, Check], *, patience: float = PATIENCE) -> None:
        self._checks = checks
        self._patience = patience
        self._threads = ThreadPoolExecutor(max_workers=len(checks), thread_name_prefix="health")
        self._running: dict[str, Future[str | None]] = {}

    async def faults(self) -> dict[str, str | None]:
        """What is wrong with each service; None for one that is well."""
        checks = {name: asyncio.wrap_future(self._run(name)) for name in self._checks}
        await asyncio.wait(checks.values(), timeout=self._patience)
        late = f"{SILENT} within {self._patience:g} s"
        return {name: check.result() if check.done() else late for name, check in checks.items()}

    def _run(self, name: str) -> Future[str | None]:
        check = self._running.get(name)
        if check is None or check.done():
            check = self._running[name] = self._threads.submit(_fault, name, self._checks[name])
        return check

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _fault(name: str, check: Check) -> str | None:
    try:
        check()
    except WrongSchema as error:
        return str(error)
    except Exception as error:
        log.warning("health check failed", service=name, error=str(error))
        return SILENT
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Healthy:
    status: str
    services: dict[str, str]
    faults: list[str] = field(default_factory=list)  # agent files that are broken: their agents may have to wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive:
    status: str


def health_router(health: Health, services: Services) -> APIRouter:
    """Without a key: a load balancer has none. What the faults of agents are is for callers that operate the fleet.
    Many monitors send HEAD, which the description of the API leaves out.
    """
    router = APIRouter(tags=["health"])

    @router.head("/health", include_in_schema=False)
    @router.get(
        "/health",
        operation_id="read_health",
        summary="Whether the services behind the server answer",
        responses=documented(403, 421, 503),
        response_model=Healthy,
    )
    async def check_health(request: Request) -> Any:
        fault_of = await health.faults()
        states = {name: fault or "ok" for name, fault in fault_of.items()}
        if any(fault_of.values()):
            return _unavailable(fault_of, services=states)
        faults = services.faults()
        if faults:  # the database has just answered, so a key is looked up in bounded time
            faults = await anyio.to_thread.run_sync(_shown, services, request, faults)
        return Healthy(status="ok", services=states, faults=faults)

    @router.head("/live", include_in_schema=False)
    @router.get(
        "/live", operation_id="read_liveness", summary="Whether this process answers", responses=documented(403, 421)
    )
    async def check_live() -> Alive:
        """Nothing behind it is asked: a process that answers need not be started anew."""
        return Alive(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get(
        "/ready",
        operation_id="read_readiness",
        summary="Whether this process can take requests",
        responses=documented(403, 421, 503),
        response_model=Alive,
    )
    async def check_ready() -> Any:
        """503 while a service behind it is away."""
        fault_of = await health.faults()
        return _unavailable(fault_of) if any(fault_of.values()) else Alive(status="ok")

    return router


def _shown(services: Services, request: Request, faults: list[str]) -> list[str]:
    try:
        caller, _ = known_caller(services, request.scope)
    except (Unauthenticated, Forbidden, TooManyRequests):
        caller = None
    if caller is not None and caller.sees_room:
        return faults
    return [problems.broken_agent(name) for name in sorted(services.broken_agents())] or [problems.BROKEN]


def _unavailable(fault_of: Mapping[str, str | None], **more: Any) -> Response:
    detail = "; ".join(f"{name} {fault}" for name, fault in fault_of.items() if fault)
    return problems.answer(503, "unavailable", detail, headers=problems.LATER, **more)
