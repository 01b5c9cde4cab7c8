"""AG-UI over HTTP: run an agent, come back to a run, and what an agent can do.

The client names its runs. That name is the dedupe key of the turn: the same request again attaches to the turn and
reads it from its start. A run that answers interrupts makes no turn: its decisions are stored together, and the turn
that waited for them is followed from there. An answer that is stored already changes nothing, so this may be repeated
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import anyio.to_thread
import structlog
from fastapi import Path, Query, Request
from pydantic import BeforeValidator, ConfigDict, Field, JsonValue
from starlette.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.bodies import LimitsBody, Moment
from chordage.orchestrator.api.callers import as_caller, decide_as, needs
from chordage.orchestrator.api.faces import (
    FOLLOWS,
    READS,
    AgentName,
    AnsweredCalls,
    ClientBody,
    ClientId,
    ClientRequest,
    FollowedTurns,
    FunctionTool,
    answered_calls,
    asked_on,
    check_agent,
    check_decides,
    check_streams,
    plain_yes,
    refusals,
    stream,
    streamed,
)
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.core.agent import ToolMode, WhenBusy
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.client_tools import MOST, ClientResult
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, InvalidMessage, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest, placed, source_in
from chordage.orchestrator.faces.agui import PROTOCOL, AguiFace, AguiMessage, answer_of, decision_in
from chordage.orchestrator.strategies.shipped import plans
from chordage.orchestrator.views.lookups import QuestionPlace, turn_by_key
from chordage.orchestrator.views.threads import Remark, RemarkRole

SOURCE = "agui"
HISTORY = 200  # remarks sent to a client that comes back

log = structlog.get_logger()
router = json_router("agui")


class AguiInputMessage(ClientBody):
    """Kept as it came: it is sent back in snapshots."""

    model_config = ConfigDict(extra="allow")

    id: ClientId
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: JsonValue = None
    tool_calls: list[dict[str, JsonValue]] | None = None
    tool_call_id: str | None = None
    error: str | None = None

    def text(self) -> str:
        """Raises InvalidMessage where it holds more than text."""
        if isinstance(self.content, str):
            return self.content
        texts = []
        for part in self.content if isinstance(self.content, list) else [self.content]:
            match part:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case _:
                    raise InvalidMessage(f"message {self.id!r}: send text; nothing else is taken", field="messages")
        return "".join(texts)

    def as_sent(self) -> AguiMessage:
        return self.model_dump(by_alias=True, exclude_unset=True)


class AguiAnswer(ClientBody):
    interrupt_id: ClientId
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class TurnProps(ClientBody):
    """What a client may say of the turn, under the name `chordage` in `forwardedProps`."""

    model_config = ConfigDict(alias_generator=None)

    when_busy: WhenBusy | None = None
    deadline: Moment | None = None
    limits: LimitsBody = LimitsBody()
    group: Group | None = None


class ForwardedProps(ClientBody):
    chordage: TurnProps = TurnProps()


def _object_or_none(value: Any) -> Any:
    """Clients may forward anything; only an object can have a part for us."""
    return value if isinstance(value, dict) else None


class RunAgentInput(ClientRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "threadId": "t1",
                    "runId": "r1",
                    "protocolVersion": "1.0",
                    "messages": [{"id": "m1", "role": "user", "content": "What is 2 + 2?"}],
                }
            ]
        }
    )

    thread_id: Annotated[ClientId, Field(description="The name of one of your threads.")]
    run_id: Annotated[ClientId, Field(description="Yours. The same again attaches to the turn that was made then.")]
    messages: tuple[AguiInputMessage, ...]
    protocol_version: Annotated[
        str | None, Field(description="Absent: the answer is in the dialect of the versions before 1.0.")
    ] = None
    state: JsonValue = None
    tools: Annotated[
        tuple[FunctionTool, ...] | None,
        Field(max_length=MOST, description="Of the front end, which carries their calls out, in this run."),
    ] = None
    context: list[JsonValue] | None = None
    forwarded_props: Annotated[ForwardedProps | None, BeforeValidator(_object_or_none)] = None
    resume: Annotated[tuple[AguiAnswer, ...] | None, Field(max_length=1000)] = None


@router.post(
    "/agui/{agent}",
    summary="Run an agent for an AG-UI client",
    response_class=Response,
    responses={**streamed("The events of the run."), **refusals(400, 408, 409, 413, 415, *FOLLOWS)},
)
async def run_agent(
    request: Request, agent: AgentName, body: RunAgentInput, caller: Annotated[Caller, needs(KeyScope.SUBMIT, *READS)]
) -> Response:
    """The request needs the scope `decide` too where it answers interrupts."""
    services = services_of(request)
    check_streams(services)
    check_agent(caller, agent)
    if body.resume:
        check_decides(caller)
    run = await anyio.to_thread.run_sync(_accept, services, caller, agent, body)
    face = AguiFace(
        thread_id=body.thread_id, run_id=body.run_id, is_old=_is_old(body.protocol_version),
        messages=[message.as_sent() for message in body.messages], state=body.state, answers=run.answers,
        turns=run.turn_ids,
    )  # fmt: skip
    return await stream(face, services, caller, run)


@router.get(
    "/agui/{agent}/runs/{run_id}",
    summary="Come back to a run",
    response_class=Response,
    responses={**streamed("The conversation before the run, and the events of the run."), **refusals(*FOLLOWS)},
)
async def come_back(
    request: Request,
    agent: AgentName,
    run_id: Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$", description="As the client named it.")],
    caller: Annotated[Caller, needs(*READS)],
    version: Annotated[str, Query(alias="protocolVersion", max_length=20)] = PROTOCOL,
) -> Response:
    """A run that answered interrupts has no turn of its own: come back to the run that asked, which has all of it."""
    services = services_of(request)
    check_streams(services)
    check_agent(caller, agent)
    turn_id, thread, messages = await anyio.to_thread.run_sync(_find, services, caller, agent, run_id)
    face = AguiFace(thread_id=thread, run_id=run_id, is_old=_is_old(version), messages=messages, is_back=True)
    return await stream(face, services, caller, FollowedTurns(turn_ids=[turn_id]))


@router.get("/agui/{agent}/capabilities", summary="What an agent can do, as AG-UI has it", responses=refusals(*FOLLOWS))
def read_capabilities(
    request: Request, agent: AgentName, caller: Annotated[Caller, needs(KeyScope.READ)]
) -> dict[str, JsonValue]:
    check_agent(caller, agent)
    spec = services_of(request).rt.agents.get(agent)
    subagents: list[JsonValue] = [{"name": one.agent, "description": one.description} for one in spec.agents]
    return {
        "identity": {"name": spec.name, "type": "chordage"},
        "transport": {
            "streaming": True, "websocket": False, "httpBinary": False, "pushNotifications": False, "resumable": True,
        },
        "tools": {
            "supported": bool(spec.tools), "parallelCalls": spec.tool_mode is not ToolMode.SEQUENTIAL,
            "clientProvided": not plans(spec.strategy),
        },
        "output": {"structuredOutput": spec.output is not None},
        "state": {"snapshots": False, "deltas": False, "memory": True, "persistentState": False},
        "multiAgent": {"supported": bool(subagents), "delegation": bool(subagents), "subagents": subagents},
        "reasoning": {"supported": True, "streaming": True, "encrypted": False},
        "execution": {"maxIterations": spec.limits.max_rounds} if spec.limits.max_rounds else {},
        "humanInTheLoop": {
            "supported": True, "approvals": True, "feedback": True, "interrupts": True, "approveWithEdits": True,
        },
    }  # fmt: skip


def _is_old(version: str | None) -> bool:
    return version is None or version.partition(".")[0] == "0"


# A run comes in.


def _accept(services: Services, caller: Caller, agent: str, body: RunAgentInput) -> FollowedTurns:
    asked, answered = _questions(services, caller, body), _answered(services, caller, body)
    before = list(dict.fromkeys([*(place.turn_id for place in asked.values()), *answered.turn_ids]))
    turn_id = _turn_of(services, caller, agent, body.run_id)
    fresh = [] if turn_id is not None else _fresh(services, caller, body)
    decisions = (*_decisions(body, asked, goes_on=bool(fresh)), *answered.decisions(only_open=bool(fresh)))
    if is_repeated := turn_id is not None:
        _check_thread(services, caller, body, turn_id)
    elif fresh:
        turn_id = _admit(services, caller, agent, body, fresh, decisions)
    elif decisions:
        decide_as(services, decisions, caller, source=SOURCE)
    elif not asked and not answered.places:
        services.rt.agents.get(agent)  # its refusal says more where there is no such agent
        problem = "there is no message of the user behind the last one that is known here, and no open interrupt "
        problem += "or call of a frontend tool is answered: there is nothing to do"
        raise InvalidMessage(problem, field="messages")
    turn_ids = [*before, turn_id] if turn_id else before
    places = [*asked.values(), *answered.places.values()]
    return FollowedTurns.behind(places, turn_ids, is_stored=not is_repeated)


def _questions(services: Services, caller: Caller, body: RunAgentInput) -> dict[str, QuestionPlace]:
    wanted = [answer.interrupt_id for answer in body.resume or ()]
    asked = asked_on(services, wanted, space=caller.space, thread=body.thread_id)
    for unknown in dict.fromkeys(one for one in wanted if one not in asked):
        log.warning("an answer was skipped: there is no such interrupt", interrupt=unknown, thread=body.thread_id)
    return asked


def _answered(services: Services, caller: Caller, body: RunAgentInput) -> AnsweredCalls:
    """The calls of frontend tools whose results come behind the last reply."""
    results: dict[str, ClientResult] = {}
    for message in body.messages:
        if message.role == "assistant":
            results.clear()
        elif message.role == "tool" and message.tool_call_id is not None:
            content = message.text() if message.error is None else None
            results[message.tool_call_id] = ClientResult(content=content, error=message.error)
    thread_id = placed(caller.space, body.thread_id)
    return answered_calls(services, results, space=caller.space, thread_id=thread_id)


def _decisions(body: RunAgentInput, asked: dict[str, QuestionPlace], *, goes_on: bool) -> Iterator[DecisionRequest]:
    """The last answer to each question. The clients repeat an answer, or cancel, until a run that succeeds takes their
    interrupts away: what is decided already must not keep them from going on.
    """
    last = {answer.interrupt_id: answer for answer in body.resume or () if answer.interrupt_id in asked}
    for answer in last.values():
        if asked[answer.interrupt_id].is_open or not (goes_on or answer.status == "cancelled"):
            yield _decision(answer, asked[answer.interrupt_id])
        else:
            log.warning("an answer was skipped: the interrupt is not open", interrupt=answer.interrupt_id)


def _decision(answer: AguiAnswer, place: QuestionPlace) -> DecisionRequest:
    if answer.status == "cancelled":
        return DecisionRequest(target=answer.interrupt_id, action=Action.CANCEL)
    try:
        action, fields = decision_in(answer.payload, why=place.why, schema=place.schema)
    except ValueError as error:
        raise InvalidDecision(f"interrupt {answer.interrupt_id!r}: {error}", field="resume") from error
    if action is Action.RESUME:
        fields.setdefault("payload", plain_yes(place.schema))
    return DecisionRequest(target=answer.interrupt_id, action=action, **fields)


def _check_thread(services: Services, caller: Caller, body: RunAgentInput, turn_id: str) -> None:
    turn = services.turn(turn_id, space=caller.space)
    if turn.thread_id != placed(caller.space, body.thread_id):
        raise Conflict(f"run {body.run_id!r} was started on another thread: give each run an id of its own")


def _turn_of(services: Services, caller: Caller, agent: str, run_id: str) -> str | None:
    """The turn of the run that the client named so."""
    source, key = source_in(caller.space, SOURCE), placed(caller.space, run_id)
    return turn_by_key(services.rt.store, agent=agent, source=source, key=key)


def _fresh(services: Services, caller: Caller, body: RunAgentInput) -> list[AguiInputMessage]:
    """The messages of the user behind the last one that is known: a reply, or one that the last turn was made of."""
    thread_id = placed(caller.space, body.thread_id)
    last = views.turns(services.rt.store, thread_id=thread_id, limit=1)
    meta = services.turn(last[0].turn_id, space=caller.space).meta if last else {}
    known = set(meta.get(SOURCE, {}).get("messages", ()))
    fresh: list[AguiInputMessage] = []
    for message in reversed(body.messages):
        if message.role not in {"user", "developer", "system"} or message.id in known:
            break
        fresh += [message] if message.role == "user" else []
    return fresh[::-1]


def _admit(
    services: Services,
    caller: Caller,
    agent: str,
    body: RunAgentInput,
    fresh: Sequence[AguiInputMessage],
    decisions: tuple[DecisionRequest, ...],
) -> str:
    props = body.forwarded_props.chordage if body.forwarded_props else TurnProps()
    message = Message(
        origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=body.thread_id,
        text="\n\n".join(one.text() for one in fresh),
        meta={SOURCE: {"run": body.run_id, "messages": [one.id for one in fresh]}},
    )  # fmt: skip
    request = TurnRequest(
        message=message, agent=agent, group=props.group, source=SOURCE, space=caller.space,
        dedupe_key=placed(caller.space, body.run_id), deadline=props.deadline, when_busy=props.when_busy,
        limits=props.limits.limits(), decisions=decisions,
        client_tools=tuple(tool.tool() for tool in body.tools or ()),
    )  # fmt: skip
    return services.accept(as_caller(services, request, caller)).turn_id


# A client comes back.


def _find(services: Services, caller: Caller, agent: str, run_id: str) -> tuple[str, str, list[AguiMessage]]:
    """Its turn, the name of its thread, and the conversation before it."""
    turn_id = _turn_of(services, caller, agent, run_id)
    if turn_id is None:
        raise NotFound(f"there is no run {run_id!r} of agent {agent!r} that a message of yours has started")
    turn = services.turn(turn_id, space=caller.space)
    remarks = views.history(services.rt.store, turn.thread_id, limit=HISTORY)
    before = [one for one in remarks if one.run_id != turn.run_id or one.turn_id == turn_id]
    thread = turn.thread_id.removeprefix(placed(caller.space, ""))
    return turn_id, thread, list(_conversation(before))


def _conversation(remarks: Iterable[Remark]) -> Iterable[AguiMessage]:
    for remark in remarks:
        if remark.role is RemarkRole.USER:
            yield {"id": remark.turn_id or f"{remark.run_id}:{remark.step}", "role": "user", "content": remark.text}
        elif remark.text or remark.calls:
            calls = [(call.id, call.tool, call.arguments) for call in remark.calls]
            yield answer_of(f"{remark.run_id}:{remark.step}", remark.text, calls)
            for call in remark.calls:
                if call.content is not None:
                    yield {
                        "id": f"{remark.run_id}:{call.id}", "role": "tool", "toolCallId": call.id,
                        "content": call.content,
                    }  # fmt: skip
