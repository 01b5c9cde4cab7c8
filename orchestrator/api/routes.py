"""The HTTP API: a message comes in and is stored, a turn can be read and waited for. Nothing is executed here.

Handlers are plain functions that run in threads; only a wait for a turn is asynchronous (`loops/server.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio.to_thread
from fastapi import FastAPI, Path, Query, Request, Response

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.bodies import DecisionBatch, Name, TurnFields
from chordage.orchestrator.api.guards import BodyLimit, JsonRoute, PageGuard
from chordage.orchestrator.api.health import Check, Health
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.webhooks import WebhookEndpoint
from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import DecisionRequest, Why
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.message import Bounds, TurnRequest
from chordage.orchestrator.loops.hook import Admission, WebhookReceiver
from chordage.orchestrator.loops.server import WAITERS, RequestBodies, TurnWaits, Wait
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.views import MAX_PART, OpenQuestion, ResultView, TurnView

SOURCE = "http"
SPACE = message.CALLERS  # of all callers, until a credential tells them apart
THREADS = 128
LONGEST_WAIT = 60.0

ABOUT = """\
Send messages to the agents of a room and read what became of them. A message becomes a *turn* on a *thread*. It is
stored before the answer 202, and the workers carry it out.

A call that needs a decision waits in the *inbox*. It holds no worker and no lock meanwhile, and may wait for months.

**Sender.** The sender of a message follows from the credential of the caller, never from the body. This version has
no credentials, so the sender of every message over HTTP is `service`.

**Threads.** The threads of all callers are in a space of their own, `api:`. A caller cannot see the threads of
channels, web hooks and the agent's own work, nor their turns and questions; the operator can, at the command line.

**Pages.** A request has to name a host that is this server's (421), must not come from a page of another site (403),
and a body has to say that it is JSON (415).

**Errors** are problem documents (RFC 9457): `type` tells them apart, `field` names what is wrong in the request.
"""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inbox:
    questions: list[OpenQuestion]
    next: str | None  # give it as `after` for the next page; none: this is the last


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDecisions:
    decisions: list[Decided]


Accept = Callable[[TurnRequest], Admission]
ReadTurn = Callable[[str], TurnView]
Decide = Callable[[Sequence[DecisionRequest]], list[Decided]]
ReadInbox = Callable[..., list[OpenQuestion]]  # by the names of the query
ReadResult = Callable[..., ResultView]

_DONE: dict[str, Any] = {"model": TurnView, "description": "It was waited for, and is done."}
Id = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
Seconds = Annotated[
    float,
    Query(
        ge=0,
        le=LONGEST_WAIT,
        allow_inf_nan=False,
        description="Wait this long for the turn to end: 200 with the turn if it does. Otherwise, and while too many "
        "callers wait, 202.",
    ),
]
Offset = Annotated[int, Query(ge=0, lt=2**31 - 1, description="The first character of the part.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PART, description="How many characters at most.")]


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
    webhooks: WebhookReceiver | None = None,
    bodies: RequestBodies | None = None,
    faults: Callable[[], list[str]] = list,
) -> FastAPI:
    health = Health(checks)
    waits = TurnWaits(wait, waiters)
    bodies = bodies or RequestBodies()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        waits.stop()
        health.close()
        if webhooks is not None:
            webhooks.stats.close()

    app = FastAPI(title="chordage", version=version, description=ABOUT, lifespan=lifespan, openapi_tags=[])
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, limit=largest_body(bounds), bodies=bodies)
    if webhooks is not None:
        app.add_middleware(WebhookEndpoint, receiver=webhooks, bodies=bodies)  # outside the limit: bindings have theirs
    app.add_middleware(PageGuard, hosts=hosts)  # outside all of it
    problems.install(app)
    _add_turns(app, accept, turn, waits)
    _add_decisions(app, inbox, decide)
    _add_results(app, result)
    _add_health(app, health, faults)
    return app


def largest_body(bounds: Bounds) -> int:
    """Room for every message within the bounds, also where each character is written as an escape of six."""
    return 6 * (bounds.text_bytes + 2 * bounds.meta_bytes) + 16 * 1024


def _add_turns(app: FastAPI, accept: Accept, turn: ReadTurn, waits: TurnWaits) -> None:
    @app.post(
        "/turns",
        status_code=202,
        summary="Send a message",
        response_description="Stored. The turn can be read at `Location`.",
        responses={200: _DONE, **documented(400, 403, 404, 408, 409, 413, 415, 421, 422, 429, 500, 503)},
    )
    async def submit(
        request: Request, response: Response, fields: TurnFields, wait: Seconds = 0.0
    ) -> Receipt | TurnView:
        admitted = await anyio.to_thread.run_sync(accept, fields.request(source=SOURCE, space=SPACE))
        response.headers["Location"] = f"{request.scope.get('root_path', '')}/turns/{admitted.turn_id}"
        if wait > 0 and (done := await waits.until_done(request, admitted.turn_id, wait)) is not None:
            response.status_code = 200
            return done
        return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)

    @app.get("/turns/{turn_id}", summary="Read a turn", responses=documented(403, 404, 421, 500, 503))
    def read(turn_id: Id) -> TurnView:
        return turn(turn_id)


def _add_decisions(app: FastAPI, read: ReadInbox, decide: Decide) -> None:
    @app.get("/inbox", summary="Read what waits for a decision", responses=documented(403, 404, 421, 422, 500, 503))
    def inbox(
        *,
        agent: Name | None = None,
        thread_id: Name | None = None,
        run_id: Name | None = None,
        root_thread: Annotated[
            Name | None, Query(description="Of this thread, and of all sub-agents below it.")
        ] = None,
        root_run: Annotated[Name | None, Query(description="Of this run, and of all sub-agents below it.")] = None,
        why: Why | None = None,
        after: Annotated[Name | None, Query(description="The `next` of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Inbox:
        """Oldest first, over all threads."""
        questions = read(
            limit=limit, agent=agent, thread_id=thread_id, run_id=run_id, root_thread=root_thread, root_run=root_run,
            why=why, after=after,
        )  # fmt: skip
        return Inbox(questions=questions, next=questions[-1].id if len(questions) == limit else None)

    @app.post(
        "/decisions",
        status_code=202,
        summary="Decide about calls that wait",
        response_description="Stored. `duplicate`: the same decision was stored before.",
        responses=documented(400, 403, 404, 408, 409, 413, 415, 421, 422, 500, 503),
    )
    def store(batch: DecisionBatch) -> StoredDecisions:
        """All of them are stored, or none. The calls continue at once."""
        return StoredDecisions(decisions=decide([body.request() for body in batch.decisions]))


def _add_results(app: FastAPI, result: ReadResult) -> None:
    @app.get(
        "/calls/{call_id}/result",
        summary="Read the result of a tool call",
        description="The whole result is kept, also where the model saw only its beginning. The next part begins at "
        "`next_offset`.",
        responses=documented(403, 404, 421, 422, 500, 503),
    )
    def read_result(call_id: Id, offset: Offset = 0, limit: Limit = 65_536) -> ResultView:
        return result(call_id, offset=offset, limit=limit)


def _add_health(app: FastAPI, health: Health, faults: Callable[[], list[str]]) -> None:
    @app.get(
        "/health",
        summary="Whether the services behind the server answer",
        responses=documented(403, 421, 503),
        response_model=Healthy,
    )
    async def check_health() -> Any:
        fault_of = await health.faults()
        services = {name: fault or "ok" for name, fault in fault_of.items()}
        if not any(fault_of.values()):
            return Healthy(status="ok", services=services, faults=faults())
        detail = "; ".join(f"{name} {fault}" for name, fault in fault_of.items() if fault)
        return problems.answer(503, "unavailable", detail, headers=problems.LATER, services=services)
