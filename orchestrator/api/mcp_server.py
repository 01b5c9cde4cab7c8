"""The requests of MCP hosts: the list of tools, and their calls, each of which is a message, a look or a decision.

This module imports the package `mcp`; `api/mcp.py` imports it when a host first comes. A call ends with the turn, with
a question to a person, or when the host has waited long enough: the turn continues in any case, even without the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.bodies import TurnFields
from chordage.orchestrator.api.callers import as_caller, decide_as
from chordage.orchestrator.api.faces import FollowedTurns, moments_of, streams_of
from chordage.orchestrator.api.services import SOURCE, Services
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import (
    Forbidden,
    InvalidMessage,
    NotFound,
    TooManyRequests,
    Unavailable,
    UserError,
)
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.core.text import field_fault
from chordage.orchestrator.faces import mcp as face
from chordage.orchestrator.faces.moments import (
    QuestionAsked,
    Queued,
    Replied,
    Started,
    StepStarted,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from chordage.orchestrator.views import OpenQuestion, TurnView
from chordage.orchestrator.views.lookups import question_places

log = structlog.get_logger()

_TURN_ID = re.compile(r"[0-9A-Za-z-]{1,200}")
LOOK_EVERY = 0.5  # seconds, where nothing is streamed
INSTRUCTIONS = (
    "Agents that do work which survives crashes and may take long. A call that an agent must have approved waits for a "
    "person: show it to them as it is, and never approve it yourself."
)
FAILED = "The server failed; its log says why. The cause is not shown here."
Context = ServerRequestContext[Any, Any]
ToolResult = types.CallToolResult | types.InputRequiredResult


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    wait: float = Field(default=face.LONGEST_WAIT, ge=0, le=face.LONGEST_WAIT)


class AskArguments(_Arguments):
    message: str = Field(min_length=1)
    thread: str | None = None


class StatusArguments(_Arguments):
    turn: str


class AnswerArguments(_Arguments):
    turn: str
    question: str
    decision: str = Field(pattern="^(approve|deny)$")
    payload: Any = True
    reason: str | None = None


class HostRequests:
    def __init__(self, services: Services) -> None:
        self._services = services
        server: Server[Any] = Server(
            "chordage",
            version=version("chordage"),
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        self._manager = StreamableHTTPSessionManager(server, stateless=True)

    async def run(self, is_ready: asyncio.Event, stop: asyncio.Event) -> None:
        async with self._manager.run():
            is_ready.set()
            await stop.wait()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)

    async def _list(self, context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        caller = _caller_of(context)
        agents = await anyio.to_thread.run_sync(self._agents, caller)
        offered = face.tools(agents, caller.scopes)
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in offered])

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> ToolResult:
        try:
            return await self._answer(context, params)
        except ValidationError as error:
            first = error.errors()[0]
            return _tool_result(face.refusal(f"{'.'.join(map(str, first['loc']))}: {field_fault(first)}"))
        except UserError as error:
            return _tool_result(face.refusal(problems.words_for(_caller_of(context), error)))
        except Exception:  # the package would send its text to the host
            log.exception("a tool call of an MCP host failed", tool=params.name)
            return _tool_result(face.refusal(FAILED))

    async def _answer(self, context: Context, params: types.CallToolRequestParams) -> ToolResult:
        host = _Host(context=context, caller=_caller_of(context), services=self._services)
        if missing := face.missing_scopes(params.name, host.caller.scopes):
            names = ", ".join(scope.value for scope in missing)
            raise Forbidden(f"{params.name} needs the scopes {names}, and {host.caller.label} lacks them")
        arguments = params.arguments or {}
        match params.name:
            case face.STATUS:
                status = StatusArguments.model_validate(arguments)
                return await host.follow(status.turn, status.wait)
            case face.ANSWER:
                return await host.answer(AnswerArguments.model_validate(arguments), params.input_responses or {})
            case _:
                agent = await anyio.to_thread.run_sync(self._agent_of, params.name, host.caller)
                return await host.ask(agent, AskArguments.model_validate(arguments), params)

    def _agents(self, caller: Caller) -> list[str]:
        return [name for name in self._services.rt.agents.names() if caller.agents is None or name in caller.agents]

    def _agent_of(self, tool: str, caller: Caller) -> str:
        known = face.agents_by_tool(self._agents(caller))
        if tool not in known:
            raise InvalidMessage(f"there is no tool {tool!r}; there are: {', '.join(known)}", field="name")
        return known[tool]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Host:
    """One request of a host."""

    context: Context
    caller: Caller
    services: Services

    async def ask(self, agent: str, arguments: AskArguments, params: types.CallToolRequestParams) -> ToolResult:
        if params.request_state is not None:  # the same call again, with what the person chose
            choices = {id_: face.decision_in(form.model_dump()) for id_, form in (params.input_responses or {}).items()}
            chosen = {question: choice for question, choice in choices.items() if choice is not None}
            for question, choice in chosen.items():
                await self._decide(question, *choice)
            asks = len(chosen) == len(choices)
            return await self.follow(params.request_state, arguments.wait, asks=asks, answered=chosen)
        fields = TurnFields(text=arguments.message, agent=agent, thread_id=arguments.thread)
        message = fields.request(source=SOURCE, space=self.caller.space)
        admitted = await anyio.to_thread.run_sync(
            lambda: self.services.accept(as_caller(self.services, message, self.caller))
        )
        return await self.follow(admitted.turn_id, arguments.wait, asks=True)

    async def answer(self, arguments: AnswerArguments, responses: types.InputResponses) -> ToolResult:
        """What the model passes on is confirmed by the person, where the host can show a form."""
        _check_turn_id(arguments.turn)
        view = await self._view(arguments.turn)
        question = next((each for each in view.questions if each.id == arguments.question), None)
        if question is None:
            problem = f"turn {view.turn_id} has no open question {arguments.question!r}: read it with {face.STATUS}"
            raise InvalidMessage(problem, field="question")
        decision, reason = arguments.decision, arguments.reason
        if decision == "approve" and self._can_show_forms():
            if (form := responses.get(question.id)) is None:
                return _form_result(
                    view.turn_id, {question.id: face.form(_question_asked(question), arguments.payload)}
                )
            if (chosen := face.decision_in(form.model_dump())) is None:
                return await self.follow(view.turn_id, 0.0)
            decision, reason = chosen
        await self._decide(question.id, decision, reason, arguments.payload)
        return await self.follow(view.turn_id, arguments.wait, answered=[question.id])

    async def follow(
        self, turn_id: str, seconds: float, *, asks: bool = False, answered: Collection[str] = ()
    ) -> ToolResult:
        """The turn when it ends or waits for a person, and otherwise as it is then. `asks`: the person is asked, where
        the host can do that. `answered`: questions that it waits for no more.
        """
        _check_turn_id(turn_id)
        with contextlib.suppress(TooManyRequests, Unavailable), self._place(), anyio.move_on_after(seconds):
            await (self._look_often(turn_id) if self.services.streams is None else self._listen(turn_id, answered))
        view = await self._view(turn_id)
        moment = moment_of(view)
        if asks and isinstance(moment, Waiting) and self._can_show_forms():
            plain = [question for question in moment.questions if question.schema is None]
            if plain:
                return _form_result(view.turn_id, {question.id: face.form(question) for question in plain})
        return _tool_result(face.result(moment, turn_id=view.turn_id, thread_id=view.thread_id))

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """A host that waits has one of the streams of its key. Raises TooManyRequests."""
        self.services.stream_slots.enter(self.caller)
        try:
            yield
        finally:
            self.services.stream_slots.leave(self.caller)

    async def _listen(self, turn_id: str, answered: Collection[str]) -> None:
        find = partial(question_places, self.services.rt.store, answered, space=self.caller.reach)
        asked = list((await anyio.to_thread.run_sync(find)).values()) if answered else []
        turns, steps = FollowedTurns.behind(asked, [turn_id]), 0
        moments = moments_of(streams_of(self.services), turns, space=self.caller.reach)
        async with contextlib.aclosing(moments):
            async for moment in moments:
                if (news := _in_words(moment)) is not None:
                    steps += 1
                    await self.context.session.report_progress(steps, None, news)

    async def _look_often(self, turn_id: str) -> None:
        while not face.is_settled(moment_of(await self._view(turn_id))):  # noqa: ASYNC110 - another process ends it
            await anyio.sleep(LOOK_EVERY)

    async def _view(self, turn_id: str) -> TurnView:
        read = partial(self.services.turn, turn_id, space=self.caller.reach)
        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    def _can_show_forms(self) -> bool:
        """Whether the person at the host can be asked, and this key may decide."""
        capabilities = self.context.session.client_capabilities
        return (
            KeyScope.DECIDE in self.caller.scopes
            and self.context.protocol_version in MODERN_PROTOCOL_VERSIONS
            and capabilities is not None
            and capabilities.elicitation is not None
            and (capabilities.elicitation.form is not None or capabilities.elicitation.url is None)
        )

    async def _decide(self, question: str, decision: str, reason: str | None, payload: Any = True) -> None:
        action = Action(decision)
        request = DecisionRequest(
            target=question, action=action, payload=payload if action is Action.RESUME else None, edited_args=None,
            reason=reason, key=None,
        )  # fmt: skip
        await anyio.to_thread.run_sync(decide_as, self.services, [request], self.caller)


def _check_turn_id(turn_id: str) -> None:
    """What cannot be one is not looked for: PostgreSQL takes no NUL."""
    if not _TURN_ID.fullmatch(turn_id):
        raise NotFound(f"there is no turn {turn_id[:80]!r}")


def moment_of(view: TurnView) -> TurnMoment:
    """Where a turn is, as the moment that led there."""
    if view.status is TurnStatus.DONE:
        return TurnEnded(
            disposition=view.disposition.value if view.disposition else "", code=view.code, detail=view.detail,
            reason=view.reason.value if view.reason else None, text=view.answer, output=view.output, usage=view.usage,
            at=view.done_at or view.queued_at,
        )  # fmt: skip
    if view.questions:
        return Waiting(questions=tuple(_question_asked(question) for question in view.questions), usage=view.usage)
    if view.status is TurnStatus.QUEUED:
        why = None if view.position in {None, 1} else f"it is number {view.position} in the line of its thread"
        return Queued(turn_id=view.turn_id, thread_id=view.thread_id, why=why)
    return Started(
        turn_id=view.turn_id, run_id=view.run_id or "", thread_id=view.thread_id, agent=view.agent,
        at=view.started_at or view.queued_at, text=view.text,
    )  # fmt: skip


def _question_asked(question: OpenQuestion) -> QuestionAsked:
    return QuestionAsked(
        id=question.id, call_id=question.call_id, tool=question.tool, arguments=question.arguments,
        why=question.why.value, prompt=question.prompt, schema=question.schema, digest="",
        created_at=question.created_at, expires_at=question.expires_at, on_expiry=question.on_expiry.value,
        run_id=question.run_id,
    )  # fmt: skip


def _in_words(moment: TurnMoment) -> str | None:
    """What a host may show while the tool call runs."""
    match moment:
        case StepStarted():
            return "thinking"
        case Replied(calls=calls) if calls:
            return f"calls {', '.join(call.tool for call in calls)}"
        case _:
            return None


def _caller_of(context: Context) -> Caller:
    assert context.request is not None
    caller = context.request.scope[problems.CALLER]
    assert isinstance(caller, Caller)
    return caller


def _form_result(turn_id: str, forms: dict[str, dict[str, Any]]) -> types.InputRequiredResult:
    requests: types.InputRequests = {id_: types.ElicitRequest.model_validate(form) for id_, form in forms.items()}
    return types.InputRequiredResult(input_requests=requests, request_state=turn_id)


def _tool_result(result: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult.model_validate(result)
