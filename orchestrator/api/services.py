"""What the HTTP server is served with: how work is accepted and read, and who is calling."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI, Request

from chordage.orchestrator.api.limits import RequestLimits, StreamSlots
from chordage.orchestrator.api.request_meter import RequestMeter
from chordage.orchestrator.api.session_cookies import Sessions
from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.doctor import DoctorReport
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.metrics import SumKey
from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.core.stepping import StepRequest
from chordage.orchestrator.core.trusted_proxy import TrustedProxy
from chordage.orchestrator.faces.moments import TurnMoment
from chordage.orchestrator.loops.hook import Admission
from chordage.orchestrator.loops.server import TurnWaits
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import HookView, OpenQuestion, ResultView, TurnView
from chordage.orchestrator.views.run_events import BEGINNING, Position, TurnPlace

SOURCE = "http"
KEPT = "services"  # its name in the state of a server, or of a request

# Who a request comes from, by its headers in lower case. Raises Unauthenticated or TooManyRequests.
Authenticate = Callable[[Mapping[str, str]], Caller]


class TurnStreams(Protocol):
    def follow(self, turn_id: str, *, space: str | None, after: str | None = None) -> AsyncGenerator[TurnMoment, None]:
        """The moments of a turn, from its beginning or behind the fact `after`; ends with Waiting or TurnEnded.

        Raises NotFound before the first moment. Nothing is cancelled when the reader goes away.
        """


class EventStreams(TurnStreams, Protocol):
    """The same in more detail: all events. Each generator raises `too_slow`, and Unavailable where the server stops."""

    too_slow: type[Exception]

    @property
    def followers(self) -> int: ...
    def run_events(self, run_id: str, after: Position = BEGINNING) -> AsyncGenerator[RunEvent, None]: ...
    def turn_events(self, place: TurnPlace, after: Position = BEGINNING) -> AsyncGenerator[RunEvent, None]: ...
    def thread_events(self, thread_id: str, after: Position) -> AsyncGenerator[RunEvent, None]: ...
    def fleet_events(self, after: Position) -> AsyncGenerator[RunEvent, None]: ...
    def end_followers(self) -> None:
        """From the event loop: the server is about to stop."""

    def stop(self) -> None:
        """From any thread, when it stops."""


class FleetDoctor(Protocol):
    """What is wrong with the fleet."""

    def examine(self) -> DoctorReport:
        """Takes some seconds at most."""

    def latest(self) -> DoctorReport | None:
        """The last report, at once, for pages; None: the first is being made."""


def as_local(_headers: Mapping[str, str]) -> Caller:
    return LOCAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """`rt`, for what is only read; `send`, to wake the workers for what a stage has returned."""

    rt: Runtime
    accept: Callable[[TurnRequest], Admission]  # of a request that passed `as_caller` of api/callers.py
    turn: Callable[..., TurnView]  # turn_id, space
    inbox: Callable[..., list[OpenQuestion]]  # by the names of the query, and space
    decide: Callable[..., list[Decided]]  # requests, source, space, by; use `decide_as` of api/callers.py
    result: Callable[..., ResultView]  # call_id, offset, limit, space
    step: Callable[[StepRequest], dict[str, Any]]
    send: Callable[[Sequence[Intent]], None]
    waits: TurnWaits
    streams: TurnStreams | None = None  # None: without Redis nothing is streamed
    events: EventStreams | None = None  # the same
    authenticate: Authenticate = as_local
    # Whether the key of the caller still is; asked again while a stream is open.
    is_valid: Callable[[Caller], bool] = lambda _caller: True
    proxy: TrustedProxy | None = None  # that names people; None: no header names one
    caller_of: Callable[[str], Caller | None] | None = None  # by id, for tickets; None: there are none
    limits: RequestLimits = field(default_factory=RequestLimits.none)
    stream_slots: StreamSlots = field(default_factory=StreamSlots)
    meter: RequestMeter = field(default_factory=RequestMeter)
    metrics: Callable[[], Mapping[SumKey, float]] = field(default=dict)  # of the fleet
    metrics_token: str | None = None  # opens `GET /metrics` and nothing else; None: that takes a key
    sessions: Sessions | None = None  # of the console; None: no login is possible
    faults: Callable[[], list[str]] = field(default=list)  # of the agents' files
    broken_agents: Callable[[], Mapping[str, str]] = field(default=dict)  # what is wrong with each, by name
    hooks: Callable[[], list[HookView]] = field(default=list)
    doctor: FleetDoctor | None = None  # None: the server cannot look at its fleet


def address(request: Request, own: str, wanted: str) -> str:
    """The path of another resource, behind the same prefixes as the request for `own` came with."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    prefix = path.removesuffix(own)
    return f"{prefix if prefix.startswith(root) else root + prefix}{wanted}"


def services_of(request: Request) -> Services:
    """Of the server that has this request, or of the router that was mounted in a server of others."""
    of_server = getattr(request.app.state, KEPT, None)
    services = of_server if isinstance(of_server, Services) else getattr(request.state, KEPT)
    assert isinstance(services, Services)
    return services


def keep(app: FastAPI, services: Services) -> None:
    setattr(app.state, KEPT, services)
