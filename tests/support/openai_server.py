"""A server of OpenAI's API whose turns are scripts: the API is real, the engine behind it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from chordage.orchestrator.api import openai_turns
from chordage.orchestrator.api.server import make_server
from chordage.orchestrator.api.services import Services, as_local
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.errors import NotFound, UnknownAgent
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.message import Bounds, Origin, Sender, TurnRequest, check, holds
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.faces.moments import TurnMoment, Waiting
from chordage.orchestrator.loops.server import TurnWaits
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.views import TurnView
from support.openai_moments import AGENT, AT, RUN, THREAD, ReplayedStreams
from support.web_server import served

AGENTS = [AGENT, "bob"]


@dataclass
class ScriptedEngine:
    """Each message takes the next script. A decision lets a turn that waits go on with what follows its `Waiting`."""

    scripts: list[list[TurnMoment]]
    streams: ReplayedStreams = field(default_factory=ReplayedStreams)
    requests: list[TurnRequest] = field(default_factory=list)
    decided: list[DecisionRequest] = field(default_factory=list)
    views: dict[str, TurnView] = field(default_factory=dict)
    stale: int = 0  # how often a stream shows a turn as it was before the decision
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def agents(self) -> Any:
        return SimpleNamespace(names=lambda: list(AGENTS), get=lambda name: SimpleNamespace(name=name))

    def accept(self, request: TurnRequest) -> Admitted:
        if request.agent not in AGENTS:
            raise UnknownAgent(f"there is no agent {request.agent!r}")
        check(request, self.bounds, datetime.now(UTC))
        same = next(
            (view for view in self.views.values() if request.dedupe_key and view.dedupe_key == request.dedupe_key), None
        )
        if same is not None:
            return Admitted(turn_id=same.turn_id, thread_id=same.thread_id, duplicate=True)
        self.requests.append(request)
        turn_id = f"turn-{len(self.requests)}"
        thread_id = request.message.thread_id or THREAD
        script = self.scripts[len(self.requests) - 1]
        self.views[turn_id] = view(turn_id, thread_id, request, is_waiting=any(isinstance(m, Waiting) for m in script))
        self.streams.turns[turn_id] = until_waiting(script)
        return Admitted(turn_id=turn_id, thread_id=thread_id)

    def turn(self, turn_id: str, *, space: str | None) -> TurnView:
        found = self.views.get(turn_id)
        if found is None or not holds(space, found.thread_id):
            raise NotFound(f"there is no turn {turn_id!r}")
        return found

    def decide(
        self, requests: Sequence[DecisionRequest], *, source: str, space: str | None, by: object
    ) -> list[Decided]:
        self.decided += requests
        turn_id, script = next(
            (f"turn-{place}", script) for place, script in enumerate(self.scripts, 1) if f"turn-{place}" in self.views
            and any(isinstance(moment, Waiting) for moment in script)
        )  # fmt: skip
        self.streams.stale[turn_id] = (self.stale, self.streams.turns[turn_id])
        self.streams.turns[turn_id] = [moment for moment in script if not isinstance(moment, Waiting)]
        self.views[turn_id] = replace(self.views[turn_id], status=TurnStatus.DONE, reason=Reason.NATURAL_END)
        return [Decided(decision_id="d", suspension_id=each.target, call_id="c", run_id=RUN) for each in requests]


def until_waiting(script: Sequence[TurnMoment]) -> list[TurnMoment]:
    for place, moment in enumerate(script):
        if isinstance(moment, Waiting):
            return list(script[: place + 1])
    return list(script)


def view(turn_id: str, thread_id: str, request: TurnRequest, *, is_waiting: bool = False) -> TurnView:
    return TurnView(
        turn_id=turn_id, thread_id=thread_id, agent=request.agent or AGENT, group=Group.CHAT, tenant=AGENT,
        origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, source="http", sent_by=None,
        dedupe_key=request.dedupe_key, text=request.message.text, meta=request.message.meta, strategy="react",
        status=TurnStatus.ACTIVE if is_waiting else TurnStatus.DONE,
        disposition=None if is_waiting else Disposition.ANSWERED, position=None, run_id=RUN, coalesce_key=None,
        into_turn=None, answer=None, output=None, reason=Reason.SUSPENDED if is_waiting else Reason.NATURAL_END,
        code=None, detail=None, rounds=0, usage=Usage(), not_before=None, deadline=None, queued_at=AT, started_at=AT,
        done_at=None, parent_run=None, parent_call=None, root_run=None, root_thread=None, path=None, fork_of=None,
        questions=(),
    )  # fmt: skip


@contextmanager
def openai_server(engine: ScriptedEngine, **services: Any) -> Iterator[httpx.Client]:
    def unexpected(*_given: object, **_more: object) -> Any:
        raise AssertionError

    usual: dict[str, Any] = {
        "rt": SimpleNamespace(agents=engine.agents, store=engine), "accept": engine.accept, "turn": engine.turn,
        "inbox": unexpected, "decide": engine.decide, "result": unexpected, "step": unexpected, "send": unexpected,
        "waits": TurnWaits(unexpected, 1), "streams": engine.streams, "authenticate": as_local,
    }  # fmt: skip
    app = make_server(
        Services(**{**usual, **services}),
        checks={"database": lambda: None},
        bounds=engine.bounds,
        version="0",
        hosts=Hosts(),
    )
    with served(app) as client:
        yield client


@pytest.fixture
def without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read from tables beside the turns is read from the engine."""

    def last_turn(services: Services, thread_id: str) -> str | None:
        engine = cast("ScriptedEngine", services.rt.store)
        turns = [each for each in engine.views.values() if each.thread_id == thread_id]
        return turns[-1].turn_id if turns else None

    monkeypatch.setattr(openai_turns, "_last_turn", last_turn)
    monkeypatch.setattr(openai_turns, "_schema", lambda _services, _target: None)
