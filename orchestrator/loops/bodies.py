"""What comes in over HTTP: the fields of a turn, and how large a body may be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import LONGEST, TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.loops import problems
from chordage.orchestrator.loops.coming import Bodies, Broken, Refused, TooLarge, TooSlow
from chordage.orchestrator.loops.decisions import AT_ONCE, DecisionBody
from chordage.orchestrator.loops.fields import JsonObject, Moment, Name

CLOSE = {"Connection": "close"}


class LimitsBody(BaseModel):
    """Limits of this turn alone, within those of its agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rounds: Annotated[
        int | None, Field(ge=1, lt=2**31, description="Tool rounds after which it stops. Left out: as the agent says.")
    ] = None
    timeout: Annotated[float | None, Field(gt=0, le=LONGEST, description="Seconds of work after which it stops.")] = (
        None
    )

    def limits(self) -> TurnLimits:
        return TurnLimits(max_rounds=self.max_rounds, timeout=self.timeout)


class TurnFields(BaseModel):
    """A message, and how to handle it. Who sends it is known from the caller's credential: there is no `sender`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"text": "What is 2 + 2?"}]},
    )

    text: Annotated[str, Field(description="What is said. Not blank, unless `meta.parts` carries the content.")]
    origin: Annotated[
        Literal["invoke", "chat"],
        Field(
            description="`chat` needs a `channel`. Tasks, chores and wills are the agent's own and come from its room."
        ),
    ] = "invoke"
    channel: Annotated[Name | None, Field(description="Where a chat takes place, such as `telegram`.")] = None
    thread_id: Annotated[
        str | None,
        Field(
            description="1 to 200 visible characters, the name of a thread of yours; `api:` stands before it in its "
            "id, and both name it. Left out: a new thread."
        ),
    ] = None
    meta: Annotated[JsonObject, Field(description="Anything of yours; kept with the turn.")] = {}
    agent: Annotated[Name | None, Field(description="Left out: the default agent of the room.")] = None
    strategy: Annotated[Name | None, Field(description="Left out: the agent's own.")] = None
    control: Literal["auto"] = "auto"
    group: Annotated[Group | None, Field(description="Only below the group of the origin.")] = None
    tenant: Annotated[Name | None, Field(description="Whom it counts for. Left out: the agent.")] = None
    dedupe_key: Annotated[
        Name | None,
        Field(description="The same key never makes a second turn: the first one's id comes back, marked `duplicate`."),
    ] = None
    coalesce_key: Annotated[
        Name | None,
        Field(
            description="At most one turn of this key, agent and group is queued: the latest message is kept, the "
            "older one ends `merged`. Once it is at work, the next one queues behind it."
        ),
    ] = None
    limits: Annotated[LimitsBody, Field(description="They only tighten what the agent allows.")] = LimitsBody()
    reply_target: Annotated[JsonObject | None, Field(description="Where the answer is to be delivered.")] = None
    not_before: Annotated[Moment | None, Field(description="It does not start earlier.")] = None
    deadline: Annotated[Moment | None, Field(description="If it has not started by then it ends as `expired`.")] = None
    when_busy: Annotated[
        WhenBusy | None,
        Field(
            description="While the thread's run is at work. `enqueue`: it queues. `reject`: 409. `interrupt`: it ends "
            "the run and is next; what the run has finished stays. `rollback`: the same, and what the run has said "
            "leaves the history. `steer`: the run takes it in at its next step. Left out: as the agent says."
        ),
    ] = None
    while_waiting: Annotated[
        WhileWaiting | None,
        Field(
            description="While the thread's run waits for decisions. `supersede`: this message ends it. `hold`: it "
            "queues. Left out: as the agent says."
        ),
    ] = None
    decisions: Annotated[
        tuple[DecisionBody, ...],
        Field(max_length=AT_ONCE, description="About calls that wait; stored with the message, applied before it."),
    ] = ()

    def request(self, sender: Sender, source: str, space: str) -> TurnRequest:
        message = Message(
            origin=Origin(self.origin), channel=self.channel, sender=sender, thread_id=self.thread_id, text=self.text,
            meta=self.meta,
        )  # fmt: skip
        return TurnRequest(
            message=message, agent=self.agent, strategy=self.strategy, control=Control(self.control), group=self.group,
            tenant=self.tenant, source=source, space=space, dedupe_key=self.dedupe_key, coalesce_key=self.coalesce_key,
            limits=self.limits.limits(), reply_target=self.reply_target,
            not_before=self.not_before, deadline=self.deadline, when_busy=self.when_busy,
            while_waiting=self.while_waiting, decisions=tuple(body.request() for body in self.decisions),
        )  # fmt: skip


class BodyLimit:
    """Reads the whole body before the API sees anything of it, within its bounds. What is too deep is not parsed."""

    def __init__(self, app: ASGIApp, limit: int, bodies: Bodies) -> None:
        self._app = app
        self._limit = limit
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await self._bodies.read(headers, receive, self._limit)
        except Broken:
            return  # nobody is there to be answered
        except Refused as error:
            await self._refusal(error)(scope, receive, send)
            return
        if bounds.is_too_deep(body):
            await problems.answer(400, "bad_request", f"the body: {bounds.TOO_DEEP}")(scope, receive, send)
        else:
            await self._app(scope, _replayed(body, receive), send)

    def _refusal(self, error: Refused) -> Response:
        match error:
            case TooLarge():
                return problems.answer(413, "too_large", f"the body is larger than {self._limit} bytes", headers=CLOSE)
            case TooSlow():
                return problems.answer(408, "request_timeout", "the body did not come in time", headers=CLOSE)
            case _:
                told = "too many bodies are on their way: try again; with a dedupe_key that is safe"
                later = {**CLOSE, "Retry-After": problems.TRY_AGAIN_AFTER}
                return problems.answer(503, "unavailable", told, headers=later)


def _replayed(body: bytes, receive: Receive) -> Receive:
    rest: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_event() -> Event:
        return rest.pop() if rest else await receive()

    return next_event
