"""The fields of a turn as callers write them: one schema for HTTP and for the Celery task `turns.submit`.

HTTP takes fewer fields and fewer values of them (`TurnFields` below); the Celery task adds its own (tasks/schema.py).
Rules that concern several fields, or the size of a field, are checked once for all ways in (core/message.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AwareDatetime, BaseModel, ConfigDict, Field

from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import LONGEST, TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.text import clean_json

DECISIONS_MAX = 1000  # in one batch
STRICT = ConfigDict(extra="forbid", frozen=True)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("lies outside the years 1 to 9999") from error


def _storable(value: Any) -> Any:
    if clean_json(value) != value:
        raise ValueError("holds a NUL character, or half of a surrogate pair, which is no Unicode text: remove it")
    return value


Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class DecisionBody(BaseModel):
    """An answer to a question about a call."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"examples": [{"target": "the id of a suspension", "action": "resume", "payload": True}]},
    )

    target: Annotated[
        Name,
        Field(
            validation_alias=AliasChoices("target", "id"),
            description="The id of the suspension, or of its call. `id` is another name for this field.",
        ),
    ]
    action: Annotated[
        Action,
        Field(description="`resume` carries the call out, `cancel` denies it. `approve` and `deny` mean the same."),
    ]
    payload: Annotated[
        Any, AfterValidator(_storable), Field(description="The answer; it has to fit the `schema` of the question.")
    ] = None
    edited_args: Annotated[
        dict[str, Any] | None, AfterValidator(_storable), Field(description="Arguments that replace those of the call.")
    ] = None
    reason: Annotated[
        str | None, AfterValidator(_storable), Field(description="Why a call is denied; the model sees it.")
    ] = None
    decision_key: Annotated[
        Name | None, Field(min_length=1, description="The same key and answer again change nothing.")
    ] = None

    def request(self) -> DecisionRequest:
        return DecisionRequest(
            target=self.target, action=self.action, payload=self.payload, edited_args=self.edited_args,
            reason=self.reason, key=self.decision_key,
        )  # fmt: skip


class DecisionBatch(BaseModel):
    """Decisions that are stored together, or not at all."""

    model_config = STRICT

    decisions: Annotated[tuple[DecisionBody, ...], Field(min_length=1, max_length=DECISIONS_MAX)]


class LimitsBody(BaseModel):
    """Limits of this turn alone, within those of its agent."""

    model_config = STRICT

    max_rounds: Annotated[
        int | None,
        Field(ge=1, lt=2**31, description="Tool rounds after which the turn stops. Default: the agent's limit."),
    ] = None
    timeout: Annotated[
        float | None, Field(gt=0, le=LONGEST, description="Seconds of work after which the turn stops.")
    ] = None

    def limits(self) -> TurnLimits:
        return TurnLimits(max_rounds=self.max_rounds, timeout=self.timeout)


class TurnSchema(BaseModel):
    """Every field of a turn that a caller may give. Its name here is its name in `Message` or `TurnRequest`."""

    model_config = STRICT

    text: Annotated[str, Field(description="The message. Not blank, unless `meta.parts` carries the content.")]
    origin: Origin = Origin.INVOKE
    channel: Annotated[Name | None, Field(description="Where a chat takes place, such as `telegram`.")] = None
    thread_id: Annotated[
        str | None,
        Field(
            description="The name of one of your threads, 1 to 200 visible characters. Its id is this name behind "
            "`api:`; both are accepted. Default: a new thread."
        ),
    ] = None
    meta: Annotated[dict[str, Any], Field(description="Data of yours, kept with the turn.")] = {}
    agent: Annotated[Name | None, Field(description="Default: the default agent of the room.")] = None
    strategy: Annotated[Name | None, Field(description="Default: the agent's strategy.")] = None
    control: Control = Control.AUTO
    group: Annotated[Group | None, Field(description="A group below the one of the origin.")] = None
    tenant: Annotated[Name | None, Field(description="The tenant that the turn counts for. Default: the agent.")] = None
    dedupe_key: Annotated[
        Name | None,
        Field(
            description="A key makes one turn. Sent again, it returns the id of that turn, marked as `duplicate`.",
        ),
    ] = None
    coalesce_key: Annotated[
        Name | None,
        Field(
            description="At most one turn of this key, agent and group is queued: the latest message is kept, the "
            "older turn ends as `merged`. A turn that has started is not replaced: the next one queues behind it."
        ),
    ] = None
    limits: Annotated[LimitsBody, Field(description="Limits that are tighter than those of the agent.")] = LimitsBody()
    reply_target: Annotated[dict[str, Any] | None, Field(description="Where to deliver the answer.")] = None
    not_before: Annotated[Moment | None, Field(description="The turn does not start earlier.")] = None
    deadline: Annotated[
        Moment | None, Field(description="The turn ends as `expired` if it has not started by then.")
    ] = None
    when_busy: Annotated[
        WhenBusy | None,
        Field(
            description="What to do while a run of the thread is at work. `enqueue`: wait. `reject`: refuse with 409. "
            "`interrupt`: end the run and start next; what the run has finished stays. `rollback`: the same, and the "
            "messages of the run leave the history. `steer`: the run takes the message in at its next step. Default: "
            "the agent's setting."
        ),
    ] = None
    while_waiting: Annotated[
        WhileWaiting | None,
        Field(
            description="What to do while the run of the thread waits for decisions. `supersede`: end that run. "
            "`hold`: wait. Default: the agent's setting."
        ),
    ] = None
    decisions: Annotated[
        tuple[DecisionBody, ...],
        Field(
            max_length=DECISIONS_MAX,
            description="Decisions about calls; stored with the message and applied before it.",
        ),
    ] = ()

    def request(
        self, *, source: str, space: str | None, sender: Sender = Sender.SERVICE, step: StepTerms | None = None
    ) -> TurnRequest:
        values = {name: getattr(self, name) for name in TurnSchema.model_fields}
        values["origin"], values["control"] = Origin(self.origin), Control(self.control)
        values["limits"] = self.limits.limits()
        values["decisions"] = tuple(decision.request() for decision in self.decisions)
        of_message = {name: values.pop(name) for name in ("origin", "channel", "thread_id", "text", "meta")}
        return TurnRequest(
            message=Message(sender=sender, **of_message), source=source, space=space, step=step, **values
        )


class TurnFields(TurnSchema):
    """A message, and how to handle it. The sender follows from the credential of the caller: there is no `sender`."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"text": "What is 2 + 2?"}]})

    origin: Annotated[
        Literal["invoke", "chat"],
        Field(
            description="`chat` needs a `channel`. Tasks, chores and wills are the agent's own and come from its room."
        ),
    ] = "invoke"  # type: ignore[assignment]  # its value: the words of an error and of OpenAPI
    control: Literal["auto"] = "auto"  # type: ignore[assignment]  # as above
