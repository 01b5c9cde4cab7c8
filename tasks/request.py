"""From the JSON edge to a turn request: unknown keys and wrong types are named, nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import InvalidDecision, InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.stepping import CapPolicy, Control, OnHeld, StepRequest, StepTerms, Verb


class DecisionFields(BaseModel):
    """An answer to a question about a call, as others write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Annotated[str, Field(validation_alias=AliasChoices("target", "id"))]
    action: Action
    payload: Any = None
    edited_args: dict[str, Any] | None = None
    reason: str | None = None
    decision_key: str | None = None

    def request(self) -> DecisionRequest:
        return DecisionRequest(
            target=self.target, action=self.action, payload=self.payload, edited_args=self.edited_args,
            reason=self.reason, key=self.decision_key,
        )  # fmt: skip


class StepFields(BaseModel):
    """How a turn is driven by its consumer, as others write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_iterations: int | None = None
    cap_policy: CapPolicy = CapPolicy.SKIP_TOOLS
    hold_seconds: float | None = None
    on_held: OnHeld = OnHeld.PARK
    params: dict[str, Any] = {}
    options: dict[str, Any] = {}

    def terms(self) -> StepTerms:
        return StepTerms(**{name: getattr(self, name) for name in StepFields.model_fields})


class LimitFields(BaseModel):
    """Limits of one turn, as others write them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rounds: int | None = None
    timeout: float | None = None

    def limits(self) -> TurnLimits:
        return TurnLimits(max_rounds=self.max_rounds, timeout=self.timeout)


class TurnFields(BaseModel):
    """A turn request as others write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    origin: Origin = Origin.INVOKE
    channel: str | None = None
    sender: Sender = Sender.SERVICE
    thread_id: str | None = None
    meta: dict[str, Any] = {}

    agent: str | None = None
    strategy: str | None = None
    control: Control = Control.AUTO
    step: StepFields | None = None
    group: Group | None = None
    tenant: str | None = None
    dedupe_key: str | None = None
    coalesce_key: str | None = None
    reply_target: dict[str, Any] | None = None
    not_before: AwareDatetime | None = None
    deadline: AwareDatetime | None = None
    when_busy: WhenBusy | None = None
    while_waiting: WhileWaiting | None = None
    limits: LimitFields = LimitFields()
    decisions: tuple[DecisionFields, ...] = ()


MESSAGE = ("origin", "channel", "sender", "thread_id", "text", "meta")


def check_depth(fields: Mapping[str, Any]) -> None:
    """Celery has parsed it; what goes through it afterwards calls itself for each level."""
    if bounds.depth_of(dict(fields)) > bounds.DEEPEST:
        name = max(fields, key=lambda one: bounds.depth_of(fields[one]))
        raise InvalidMessage(f"{name}: {bounds.TOO_DEEP}", field=name)


def request_from(fields: Mapping[str, Any], *, source: str, space: str | None) -> TurnRequest:
    """`space`: of a caller; None: whoever sends it operates."""
    if space is not None and fields.get("sender", Sender.SERVICE) != Sender.SERVICE:
        raise InvalidMessage("sender: it is 'service' for whoever sends by name; leave it out", field="sender")
    check_depth(fields)
    try:
        valid = TurnFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidMessage(f"{name}: {first['msg']}; got {first['input']!r:.80}", field=name) from error
    given: dict[str, Any] = {name: getattr(valid, name) for name in TurnFields.model_fields}
    given["decisions"] = tuple(fields.request() for fields in valid.decisions)
    given["limits"] = valid.limits.limits()
    given["step"] = valid.step.terms() if valid.step else None
    message = Message(**{name: given.pop(name) for name in MESSAGE})
    return TurnRequest(message=message, source=source, space=space, **given)


def check_named(task: str, nameless: Sequence[Any], example: str) -> None:
    """Fields have no order of theirs."""
    if nameless:
        raise InvalidMessage(f"{task} takes its fields by name: send it with {example}, not with args", field="args")


def decisions_from(given: Sequence[Mapping[str, Any]]) -> list[DecisionRequest]:
    """A batch of answers from the JSON edge."""
    if bounds.depth_of(given) > bounds.DEEPEST:
        raise InvalidDecision(f"decisions: {bounds.TOO_DEEP}", field="decisions")
    requests = []
    for place, fields in enumerate(given):
        try:
            requests.append(DecisionFields.model_validate(fields).request())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in (place, *first["loc"]))
            raise InvalidDecision(f"{name}: {first['msg']}; got {first['input']!r:.80}", field=name) from error
    return requests


class VerbFields(BaseModel):
    """What a consumer does with a stepped turn, as others write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turn: str
    verb: Verb
    args: dict[str, Any] = {}
    if_rev: int | None = None
    key: str | None = None


def verb_from(fields: Mapping[str, Any], *, space: str | None) -> StepRequest:
    check_depth(fields)
    try:
        valid = VerbFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidMessage(f"{name}: {first['msg']}; got {first['input']!r:.80}", field=name) from error
    return StepRequest(
        target=valid.turn, verb=valid.verb, args=valid.args, if_rev=valid.if_rev, key=valid.key, space=space
    )
