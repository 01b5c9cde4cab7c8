"""What others send to our Celery tasks: unknown fields and wrong types are named, nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chordage.orchestrator.api.bodies import STRICT, DecisionBody, StepFields, TurnSchema
from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.errors import InvalidDecision, InvalidMessage
from chordage.orchestrator.core.message import Sender, TurnRequest
from chordage.orchestrator.core.stepping import StepRequest, Verb
from chordage.orchestrator.core.text import field_fault

M = TypeVar("M", bound=BaseModel)


class TurnMessage(TurnSchema):
    """The fields of `turns.submit`."""

    sender: Sender = Sender.SERVICE
    step: StepFields | None = None


class VerbFields(BaseModel):
    """The fields of `turns.step`: what a consumer does with a stepped turn."""

    model_config = STRICT

    turn: str
    verb: Verb
    args: dict[str, Any] = {}
    if_rev: int | None = None
    key: str | None = None


def check_named(task: str, positional: Sequence[Any], example: str) -> None:
    """Fields have no order."""
    if positional:
        raise InvalidMessage(f"{task} takes its fields by name: send it with {example}, not with args", field="args")


def request_from(fields: Mapping[str, Any], *, source: str, space: str | None) -> TurnRequest:
    """`space`: of a caller; None: the operator sends it."""
    if space is not None and fields.get("sender", Sender.SERVICE) != Sender.SERVICE:
        raise InvalidMessage(
            "sender: it is 'service' for every message sent by task name; leave it out", field="sender"
        )
    message = _validated(TurnMessage, fields)
    step = message.step.terms() if message.step else None
    return message.request(source=source, space=space, sender=message.sender, step=step)


def verb_from(fields: Mapping[str, Any], *, space: str | None) -> StepRequest:
    verb = _validated(VerbFields, fields)
    return StepRequest(target=verb.turn, verb=verb.verb, args=verb.args, if_rev=verb.if_rev, key=verb.key, space=space)


def decisions_from(decisions: Sequence[Mapping[str, Any]]) -> list[DecisionRequest]:
    if bounds.depth_of(decisions) > bounds.DEEPEST:
        raise InvalidDecision(f"decisions: {bounds.TOO_DEEP}", field="decisions")
    requests = []
    for place, fields in enumerate(decisions):
        try:
            requests.append(DecisionBody.model_validate(fields).request())
        except ValidationError as error:
            name, why = _first_fault(error, DecisionBody, place)
            raise InvalidDecision(why, field=name) from error
    return requests


def _validated(model: type[M], fields: Mapping[str, Any]) -> M:
    """Celery has parsed the message; what validates and stores it recurses once for each level."""
    if bounds.depth_of(dict(fields)) > bounds.DEEPEST:
        name = max(fields, key=lambda name: bounds.depth_of(fields[name]))
        raise InvalidMessage(f"{name}: {bounds.TOO_DEEP}", field=name)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        name, why = _first_fault(error, model)
        raise InvalidMessage(why, field=name) from error


def _first_fault(error: ValidationError, model: type[BaseModel], *within: int) -> tuple[str, str]:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in (*within, *first["loc"]))
    known = model.model_fields if len(first["loc"]) == 1 else ()
    got = "" if first["type"] == "missing" else f"; got {first['input']!r:.80}"
    return name, f"{name}: {field_fault(first, known)}{got}"
