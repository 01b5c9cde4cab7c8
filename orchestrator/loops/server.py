"""The HTTP interface: a message comes in and is enqueued, a turn can be read and waited for. Nothing is executed here.

Handlers are plain functions that run in threads. Waiting for turns has a bounded share of those threads, so that
however many wait, there is always one to let the next message in; and whoever has gone away waits no longer.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import anyio.to_thread
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from chordage.orchestrator.core import message
from chordage.orchestrator.core.deliveries import Hosts
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import Bounds, Sender, TurnRequest
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.loops import problems
from chordage.orchestrator.loops.bodies import BodyLimit, TurnFields
from chordage.orchestrator.loops.coming import Bodies
from chordage.orchestrator.loops.decisions import Decide, ReadInbox, add_decisions
from chordage.orchestrator.loops.health import Check, Health
from chordage.orchestrator.loops.hooks import HookDoor, Hooks
from chordage.orchestrator.loops.pages import JsonRoute, PageGuard
from chordage.orchestrator.loops.problems import documented
from chordage.orchestrator.loops.results import ReadResult, add_results
from chordage.orchestrator.views import TurnView

SOURCE = "http"
SPACE = message.CALLERS  # of everybody, until a credential says who it is
THREADS = 128
WAITERS = 96
LONGEST_WAIT = 60.0

ABOUT = """\
Hand messages to the agents of a room and read what became of them. A message becomes a *turn* on a *thread*; it is
stored before it is answered with 202, and is carried out by the workers.

A call that needs a decision waits in the *inbox* until somebody decides. It holds nothing meanwhile, and may wait for
months.

**Sender.** Who sends a message comes from the credential of the caller and never from the body. No credentials are
configured in this version, so the sender of every message that comes in here is `service`.

**Threads.** Those of all callers lie in a space of their own, `api:`. Threads of channels, web hooks and the agent's
own work, their turns and their questions are not there for a caller; the operator has them at the command line.

**Pages.** A request has to name a host that is this server's (421), must not come from a page of another site (403),
and a body has to say that it is JSON (415).

**Errors** are problem documents (RFC 9457): `type` tells them apart, `field` names what is wrong in the request.
"""


class Admission(Protocol):
    """What is said of a message that was accepted."""

    @property
    def turn_id(self) -> str: ...
    @property
    def thread_id(self) -> str: ...
    @property
    def duplicate(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    turn_id: str
    thread_id: str
    duplicate: bool  # the dedupe_key was known: this is the turn that was made then


@dataclass(frozen=True, kw_only=True, slots=True)
class Healthy:
    status: str
    services: dict[str, str]
    faults: list[str] = field(default_factory=list)  # agent files that are broken: their agents may have to wait


Accept = Callable[[TurnRequest], Admission]
ReadTurn = Callable[[str], TurnView]
GaveUp = Callable[[], bool]
Wait = Callable[[str, float, GaveUp], TurnView]
_DONE: dict[str, Any] = {"model": TurnView, "description": "It was waited for, and is done."}
TurnId = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
Seconds = Annotated[
    float,
    Query(
        ge=0,
        le=LONGEST_WAIT,
        allow_inf_nan=False,
        description="Wait this long for the turn to end. 200 with the turn if it does; otherwise, and while too many "
        "others wait, 202.",
    ),
]


def make_server(
    *,
    accept: Accept,
    turn: ReadTurn,
    wait: Wait,
    inbox: ReadInbox,
    decide: Decide,
    result: ReadResult,
    checks: Mapping[str, Check],
    bounds: Bounds,
    version: str,
    hosts: Hosts,
    waiters: int = WAITERS,
    hooks: Hooks | None = None,
    bodies: Bodies | None = None,
    faults: Callable[[], list[str]] = list,
) -> FastAPI:
    health = Health(checks)
    patience = Patience(wait, waiters)
    bodies = bodies or Bodies()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        patience.end()
        health.close()
        if hooks is not None:
            hooks.tally.close()

    app = FastAPI(title="chordage", version=version, description=ABOUT, lifespan=lifespan, openapi_tags=[])
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, limit=largest_body(bounds), bodies=bodies)
    if hooks is not None:
        app.add_middleware(HookDoor, door=hooks, bodies=bodies)  # around the limit: each binding has its own
    app.add_middleware(PageGuard, hosts=hosts)  # around all of it
    problems.install(app)
    _add_turns(app, accept, turn, patience)
    add_decisions(app, inbox, decide)
    add_results(app, result)
    _add_health(app, health, faults)
    return app


def largest_body(bounds: Bounds) -> int:
    """Room for every message within the bounds, also where each character is written as an escape of six."""
    return 6 * (bounds.text_bytes + 2 * bounds.meta_bytes) + 16 * 1024


def _add_turns(app: FastAPI, accept: Accept, turn: ReadTurn, patience: Patience) -> None:
    @app.post(
        "/turns",
        status_code=202,
        summary="Hand in a message",
        response_description="Stored. `Location` is where its turn can be read.",
        responses={200: _DONE, **documented(400, 403, 404, 408, 409, 413, 415, 421, 422, 429, 500, 503)},
    )
    async def submit(
        request: Request, response: Response, fields: TurnFields, wait: Seconds = 0.0
    ) -> Receipt | TurnView:
        admitted = await anyio.to_thread.run_sync(accept, fields.request(Sender.SERVICE, SOURCE, SPACE))
        response.headers["Location"] = f"{request.scope.get('root_path', '')}/turns/{admitted.turn_id}"
        if wait > 0 and (done := await patience.until_done(request, admitted.turn_id, wait)) is not None:
            response.status_code = 200
            return done
        return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)

    @app.get("/turns/{turn_id}", summary="Read a turn", responses=documented(403, 404, 421, 500, 503))
    def read(turn_id: TurnId) -> TurnView:
        return turn(turn_id)


def _add_health(app: FastAPI, health: Health, room: Callable[[], list[str]]) -> None:
    @app.get(
        "/health",
        summary="Whether the services behind answer",
        responses=documented(403, 421, 503),
        response_model=Healthy,
    )
    async def check_health() -> Any:
        faults = await health.faults()
        services = {name: fault or "ok" for name, fault in faults.items()}
        if not any(faults.values()):
            return Healthy(status="ok", services=services, faults=room())
        told = "; ".join(f"{name} {fault}" for name, fault in faults.items() if fault)
        return _sick(told, services)


def _sick(told: str, services: dict[str, str]) -> JSONResponse:
    headers = {"Retry-After": problems.TRY_AGAIN_AFTER}
    return problems.answer(503, "unavailable", told, headers=headers, services=services)


class Patience:
    """Waits for turns, for a bounded number of callers at a time, and for each as long as it is there."""

    def __init__(self, wait: Wait, waiters: int) -> None:
        self._wait = wait
        self._free = threading.BoundedSemaphore(waiters)
        self._ending = threading.Event()

    def end(self) -> None:
        """The server stops: nobody waits any longer."""
        self._ending.set()

    async def until_done(self, request: Request, turn_id: str, seconds: float) -> TurnView | None:
        """The turn, if it is done in time. The message is stored by now: whatever goes wrong here, it was accepted."""
        if not self._free.acquire(blocking=False):
            return None
        gone = threading.Event()
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(_watch, request, gone)
                seen = await anyio.to_thread.run_sync(self._look, turn_id, seconds, gone)
                beside.cancel_scope.cancel()
        finally:
            gone.set()
            self._free.release()
        return seen

    def _look(self, turn_id: str, seconds: float, gone: threading.Event) -> TurnView | None:
        try:
            seen = self._wait(turn_id, seconds, lambda: gone.is_set() or self._ending.is_set())
        except Unavailable:
            return None
        return seen if seen.status is TurnStatus.DONE else None


async def _watch(request: Request, gone: threading.Event) -> None:
    """Its body has been read: what comes next is the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
