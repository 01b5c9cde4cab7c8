"""The fields of a turn as callers write them: one schema for HTTP and for the Celery task `turns.submit`.

HTTP takes fewer fields and fewer values of them (`TurnFields` below); the Celery task adds its own (tasks/schema.py).
Rules that concern several fields, or the size of a field, are checked once for all ways in (core/message.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.client_tools import DESCRIPTION_MAX, EXPIRES_IN, ClientTool
from chordage.orchestrator.core.client_tools import MOST as CLIENT_TOOLS_MAX
from chordage.orchestrator.core.forking import EFFECTS_MAX
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import LONGEST, TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.stepping import CapPolicy, Control, OnHeld, StepTerms, Verb
from chordage.orchestrator.core.text import clean_json

DECISIONS_MAX = 1000  # in one batch
INSTRUCTIONS_MAX = 256 * 1024  # characters
STRICT = ConfigDict(extra="forbid", frozen=True)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("lies outside the years 1 to 9999") from error


def storable(value: Any) -> Any:
    if clean_json(value) != value:
        raise ValueError("holds a NUL character, or half of a surrogate pair, which is no Unicode text: remove it")
    return value


def _written_out(value: Any) -> Any:
    """A bare number would be read as seconds since 1970."""
    if value is not None and not isinstance(value, datetime) and (not isinstance(value, str) or "-" not in value[1:]):
        raise ValueError("give a date and a time with a zone, such as 2026-01-31T12:00:00Z")
    return value


Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Moment = Annotated[AwareDatetime, BeforeValidator(_written_out), AfterValidator(_in_utc)]


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
        Any, AfterValidator(storable), Field(description="The answer; it has to fit the `schema` of the question.")
    ] = None
    edited_args: Annotated[
        dict[str, Any] | None, AfterValidator(storable), Field(description="Arguments that replace those of the call.")
    ] = None
    reason: Annotated[
        str | None, AfterValidator(storable), Field(description="Why a call is denied; the model sees it.")
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


class ClientToolBody(BaseModel):
    """A tool that the caller carries out itself. A call of it waits, and the decision about it is its result."""

    model_config = STRICT

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
    description: Annotated[str, Field(max_length=DESCRIPTION_MAX), AfterValidator(storable)] = ""
    parameters: Annotated[
        dict[str, Any], AfterValidator(storable), Field(description="A JSON Schema of an object.")
    ] = {"type": "object", "properties": {}}
    expires_in: Annotated[
        float | None,
        Field(gt=0, le=LONGEST, description="Seconds until a call without a result is denied. Default: a day."),
    ] = EXPIRES_IN

    def tool(self) -> ClientTool:
        return ClientTool(
            name=self.name, description=self.description, schema=self.parameters, expires_in=self.expires_in
        )


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


class StepFields(BaseModel):
    """How a consumer drives a turn."""

    model_config = STRICT

    max_iterations: Annotated[int | None, Field(description="Replies at most; then the run ends as `stopped`.")] = None
    cap_policy: Annotated[CapPolicy, Field(description="What happens to the calls of the last reply.")] = (
        CapPolicy.SKIP_TOOLS
    )
    hold_seconds: Annotated[float | None, Field(description="How long a reply is held. Default: without a limit.")] = (
        None
    )
    on_held: Annotated[OnHeld, Field(description="What happens after `hold_seconds`.")] = OnHeld.PARK
    params: Annotated[dict[str, Any], AfterValidator(storable)] = {}
    options: Annotated[dict[str, Any], AfterValidator(storable)] = {}

    def terms(self) -> StepTerms:
        return StepTerms(**{name: getattr(self, name) for name in StepFields.model_fields})


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
    client_tools: Annotated[
        tuple[ClientToolBody, ...],
        Field(
            max_length=CLIENT_TOOLS_MAX,
            description="Tools of yours, for this turn alone. A call of one waits until its result is stored as the "
            "`payload` of a decision.",
        ),
    ] = ()

    def request(
        self, *, source: str, space: str | None, sender: Sender = Sender.SERVICE, step: StepTerms | None = None
    ) -> TurnRequest:
        values = {name: getattr(self, name) for name in TurnSchema.model_fields}
        values["origin"], values["control"] = Origin(self.origin), Control(self.control)
        values["limits"] = self.limits.limits()
        values["decisions"] = tuple(decision.request() for decision in self.decisions)
        values["client_tools"] = tuple(tool.tool() for tool in self.client_tools)
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
    control: Annotated[Control, Field(description="`step`: a program drives the turn, one reply at a time.")] = (
        Control.AUTO
    )
    step: Annotated[StepFields | None, Field(description="With control `step`.")] = None


class CancelBody(BaseModel):
    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"reason": "asked by mistake"}]})

    reason: Annotated[
        str | None, Field(max_length=2000), AfterValidator(storable), Field(description="Stored with the run.")
    ] = None


class TurnChange(BaseModel):
    """What is to be different of a turn that is queued. What is left out stays."""

    model_config = ConfigDict(
        **STRICT, json_schema_extra={"examples": [{"group": "chore"}, {"deadline": "2030-01-01T12:00:00Z"}]}
    )

    group: Annotated[Group | None, Field(description="One that ranks below its group.")] = None
    deadline: Annotated[Moment | None, Field(description="Later than its deadline.")] = None


class LinkBody(BaseModel):
    """How long a link to a question lasts."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"expires_in": 3600}]})

    expires_in: Annotated[
        int, Field(strict=True, ge=60, le=2_592_000, description="Seconds; no longer than the question itself.")
    ] = 3600


class SteerBody(BaseModel):
    """A message that the run takes in at its next step."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"text": "Leave the old orders out."}]})

    text: str
    meta: dict[str, Any] = {}
    dedupe_key: Annotated[Name | None, Field(description="As of a turn.")] = None


class VerbBody(BaseModel):
    """What a consumer does with a stepped turn."""

    model_config = ConfigDict(
        **STRICT, json_schema_extra={"examples": [{"verb": "next"}, {"verb": "steer", "args": {"text": "Be short."}}]}
    )

    verb: Verb
    args: Annotated[dict[str, Any], AfterValidator(storable), Field(description="Of the verb, by name.")] = {}


class BudgetBody(BaseModel):
    """How many runs of a group may work at once, over the whole fleet."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"budget": 8}, {"budget": None}]})

    budget: Annotated[
        int | None,
        Field(strict=True, ge=0, lt=2**31, description="0 pauses the group. null: as the settings say, again."),
    ]


class ForkEditsBody(BaseModel):
    """What is different in a fork that runs. What is left out is as in the run that is forked."""

    model_config = STRICT

    text: Annotated[str | None, Field(description="The message that the run begins with.")] = None
    arguments: Annotated[
        dict[str, dict[str, Any]] | None,
        AfterValidator(storable),
        Field(description="Of calls of the last round that the fork has, by `ask_id`."),
    ] = None
    model: Annotated[Name | None, Field(description="One that the agent's file names.")] = None
    instructions: Annotated[
        Annotated[str, Field(max_length=INSTRUCTIONS_MAX), AfterValidator(storable)] | None,
        Field(description="In place of the agent's, from the fork on."),
    ] = None


class ForkBody(BaseModel):
    """Where the new thread leaves the old one. Without a place, it has the whole history."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={
            "examples": [
                {"upto": 17},
                {"run_id": "the id of a run", "step": 2},
                {"run_id": "the id of a run", "step": 3, "run": True, "edits": {"instructions": "Be brief."}},
                {"run_id": "the id of a run", "step": 0, "run": True, "effects": ["send_mail"]},
            ]
        },
    )

    upto: Annotated[
        int | None, Field(strict=True, ge=1, lt=2**63, description="The id of the last remark that it has.")
    ] = None
    run_id: Annotated[Name | None, Field(description="With `step`: the last step that it has.")] = None
    step: Annotated[int | None, Field(strict=True, ge=0, lt=2**31)] = None
    run: Annotated[
        bool,
        Field(description="The run continues from there: replies up to `step` are repeated, then the model is asked."),
    ] = False
    edits: Annotated[ForkEditsBody, Field(description="With `run`.")] = ForkEditsBody()
    effects: Annotated[
        frozenset[Annotated[Name, AfterValidator(storable)]],
        Field(
            max_length=EFFECTS_MAX,
            description="With `run`: tools that run. `*`: all. Of the others, calls that the run has made are answered "
            "from its record, and what is not in it runs if it is `pure`.",
        ),
    ] = frozenset()
    thread_id: Annotated[str | None, Field(description="The name of the new thread. Default: a new id.")] = None
