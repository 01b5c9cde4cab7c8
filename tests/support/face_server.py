"""A server with a room that asks before it sends, whose streams need no Redis and no workers.

A turn is carried out when it is followed, by this process, and its moments are made of what is on record afterwards.
A message that names a script gets the moments of that script instead.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.server import make_server
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.core.callers import Caller
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Bounds, holds
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallSettled,
    QuestionAnswered,
    QuestionAsked,
    Replied,
    RoundSettled,
    Started,
    StepStarted,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from chordage.orchestrator.loops.server import TurnWaits
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.threads import Remark, RemarkRole
from chordage.workers import local
from support.moments import of_turn

MODULES = itertools.count()  # Python keeps a module of a name: two rooms of one process must not share one

AGENT = """\
name = "ada"
model = "scripted:script.yaml"
tools = ["{module}:add", "{module}:send"]
mixed_round = "{mixed_round}"
"""
SECOND = 'name = "bob"\nmodel = "scripted:script.yaml"\n'
SCRIPT = """\
- when: write
  text: Let me see.
  tool_calls:
    - {name: add, arguments: {a: 1, b: 2}}
    - {name: send, arguments: {to: bob}}
    - {name: add, arguments: {a: 30, b: 4}}
- when: write
  text: "It came to this: {results}"
- when: write
  text: "Now it is: {results}"
- when: choose
  text: Which one?
  tool_calls:
    - {name: add, arguments: {a: 1, b: 2}}
    - {name: pick, arguments: {of: [red, blue]}}
- when: choose
  text: "So it is: {results}"
- when: two of them
  tool_calls:
    - {name: pick, arguments: {of: [red, blue]}}
    - {name: pick, arguments: {of: [big, small]}}
- when: two of them
  text: "So it is: {results}"
- when: everything
  tool_calls:
    - {name: add, arguments: {a: 1, b: 2}}
    - {name: send, arguments: {to: bob}}
    - {name: pick, arguments: {of: [red, blue]}}
- when: everything
  text: "All in all: {results}"
- when: fail
  fail: {fault: auth}
- text: "You said: {user}"
"""
TOOLS = '''\
from chordage import Context, Suspend, tool


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool(effect="pure")
def send(to: str, ctx: Context) -> str:
    """Asks first."""
    if ctx.decision is None:
        raise Suspend(f"May {to} be written to?", schema=%s)
    return f"sent to {to}: {ctx.decision}"
'''


def write_room(folder: Path, *, schema: dict[str, Any] | None = None, mixed_round: str = "wait") -> Path:
    module = f"face_room_tools_{next(MODULES)}"
    (folder / "agents").mkdir(parents=True)
    (folder / "agent.toml").write_text(AGENT.format(module=module, mixed_round=mixed_round))
    (folder / "agents" / "bob.toml").write_text(SECOND)
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / f"{module}.py").write_text(TOOLS % repr(schema))
    return folder


@dataclass(kw_only=True)
class RecordedStreams:
    rt: Runtime
    scripts: dict[str, Callable[[], Sequence[TurnMoment]]] = field(default_factory=dict)  # by the text of the message
    due: list[Intent] = field(default_factory=list)  # what decisions have set in motion

    async def follow(self, turn_id: str, *, space: str | None, after: str | None = None) -> AsyncIterator[TurnMoment]:
        for moment in await anyio.to_thread.run_sync(self._moments, turn_id, space):
            yield moment

    def _moments(self, turn_id: str, space: str | None) -> list[TurnMoment]:
        turn = views.turn(self.rt.store, turn_id)
        if not holds(space, turn.thread_id):
            raise NotFound(turn_id)
        if turn.text in self.scripts:
            moments = list(self.scripts[turn.text]())
            last = moments.pop()
            return of_turn([one for one in moments if not isinstance(one, Waiting)] + [last], turn_id)
        due, self.due[:] = list(self.due), []
        local.carry_out(self.rt, due)  # what the decisions of a message set in motion comes before the message
        turn = views.turn(self.rt.store, turn_id)
        if turn.status is TurnStatus.QUEUED:
            local.carry_out(self.rt, local.begin(self.rt, turn))
            turn = views.turn(self.rt.store, turn_id)
        remarks = views.history(self.rt.store, turn.thread_id)
        return list(recorded(turn, [one for one in remarks if one.run_id == turn.run_id]))


def recorded(turn: TurnView, remarks: Sequence[Remark]) -> Iterator[TurnMoment]:
    assert turn.run_id is not None
    assert turn.started_at is not None
    yield Started(
        turn_id=turn.turn_id, run_id=turn.run_id, thread_id=turn.thread_id, agent=turn.agent, at=turn.started_at,
        text=turn.text,
    )  # fmt: skip
    asked: list[QuestionAsked] = []
    for remark in remarks:
        if remark.role is RemarkRole.ASSISTANT:
            yield from _round(remark, turn, asked)
    if turn.status is not TurnStatus.DONE:
        open_ids = {question.id for question in turn.questions}
        yield Waiting(questions=tuple(one for one in asked if one.id in open_ids), usage=turn.usage)
        return
    assert turn.disposition is not None
    assert turn.done_at is not None
    yield TurnEnded(
        disposition=turn.disposition, reason=turn.reason, code=turn.code, detail=turn.detail, text=turn.answer,
        output=turn.output, usage=turn.usage, at=turn.done_at,
    )  # fmt: skip


def _round(remark: Remark, turn: TurnView, asked: list[QuestionAsked]) -> Iterator[TurnMoment]:
    calls = tuple(CallAsked(id=call.id, tool=call.tool, arguments=call.arguments) for call in remark.calls)
    yield StepStarted(step=remark.step)
    if remark.text:
        yield TextGrown(step=remark.step, attempt=1, text=remark.text)
    yield Replied(
        step=remark.step, text=remark.text, calls=calls, model=remark.model or "", stop="end", usage=turn.usage,
        at=remark.at,
    )  # fmt: skip
    free = [call for call in remark.calls if call.question is None]
    in_question = [call for call in remark.calls if call.question is not None]
    yield from _results(free)
    for call in in_question:
        question = _question(call, turn)
        asked.append(question)
        yield question
    for call in in_question:
        assert call.question is not None
        if (answer := call.question.answer) is not None:
            yield QuestionAnswered(
                id=call.question.id, call_id=call.id, action=Action(answer.action), reason=answer.reason
            )
    yield from _results(in_question)
    if calls:
        yield RoundSettled(step=remark.step + 1)


def _results(calls: Sequence[CallView]) -> Iterator[TurnMoment]:
    for call in calls:
        if call.content is not None:
            yield CallSettled(id=call.id, tool=call.tool, ok=call.code is None, code=call.code, content=call.content)


def _question(call: CallView, turn: TurnView) -> QuestionAsked:
    question = call.question
    assert question is not None
    return QuestionAsked(
        id=question.id, call_id=call.id, tool=call.tool, arguments=call.arguments, why=question.why,
        prompt=question.prompt, schema=question.schema, digest="", created_at=question.created_at,
        expires_at=question.expires_at, on_expiry=question.on_expiry, run_id=turn.run_id or "",
    )  # fmt: skip


def server_of(rt: Runtime, streams: RecordedStreams | None, *, caller: Caller | None = None) -> FastAPI:
    def decide(requests: Any, *, source: str, space: str | None, by: Any) -> list[Decided]:
        decided, intents = stages.decide(rt, requests, source=source, space=space, by=by)
        if streams is not None:
            streams.due += intents
        return decided

    def accept(request: Any) -> Any:
        admitted, intents = stages.admit(rt, request)
        if streams is not None and request.decisions:
            streams.due += intents
        return admitted

    def unexpected(*args: object, **fields: object) -> Any:
        raise AssertionError(args, fields)

    services = Services(
        rt=rt, accept=accept, turn=partial(views.turn, rt.store), inbox=partial(views.inbox, rt.store), decide=decide,
        result=partial(views.result, rt.store), step=unexpected, send=unexpected, waits=TurnWaits(unexpected),
        streams=streams,
    )  # fmt: skip
    if caller is not None:
        services = Services(
            **{name: getattr(services, name) for name in Services.__slots__ if name != "authenticate"},
            authenticate=lambda _headers: caller,
        )
    return make_server(services, checks={"database": lambda: None}, bounds=Bounds(), version="0", hosts=Hosts())
