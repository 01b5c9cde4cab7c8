"""A call that waits for a decision: what is asked, what was answered, and what the answer makes of the call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.status import CallStatus


class ResumeMode(StrEnum):
    """What the decision is used for once it is there."""

    REPLAY = "replay_tool_call"  # the tool runs with the same arguments
    USE_AS_RESULT = "use_decision_as_tool_result"  # the decision is the result, the tool does not run
    PASS_TO_TOOL = "pass_decision_to_tool"  # noqa: S105 - a mode; the tool runs and sees the decision


class OnExpiry(StrEnum):
    """What happens when nobody decided in time."""

    DENY = "deny"
    CANCEL_RUN = "cancel_run"
    ESCALATE = "escalate"  # it stays open, and the inbox shows it as overdue
    DEFAULT = "default"  # `default` is taken as if somebody had answered it


class Why(StrEnum):
    """Who put the call aside."""

    GATE = "permission"
    TOOL = "tool"
    UNKNOWN = "outcome_unknown"
    CHILD = "child"  # nobody is asked: a sub-agent is at work, and its end is the answer


class SuspensionStatus(StrEnum):
    OPEN = "open"
    DECIDED = "decided"  # the answer is stored and not applied yet
    SETTLED = "settled"
    SUPERSEDED = "superseded"  # its run ended without an answer


class Action(StrEnum):
    """What a decision does. The commands' own words, approve and deny, are read as well."""

    RESUME = "resume"
    CANCEL = "cancel"

    @classmethod
    def _missing_(cls, value: object) -> Action | None:
        return {"approve": cls.RESUME, "deny": cls.CANCEL}.get(str(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What has to be decided before the call goes on."""

    why: Why
    prompt: str
    schema: dict[str, Any] | None = None
    resume_mode: ResumeMode = ResumeMode.REPLAY
    expires_in: float | None = None
    on_expiry: OnExpiry = OnExpiry.DENY
    default: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspension:
    id: str
    call_id: str
    run_id: str
    thread_id: str
    agent: str
    step: int
    tool: str
    why: Why
    prompt: str
    schema: dict[str, Any] | None
    resume_mode: ResumeMode
    digest: str
    status: SuspensionStatus
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    default: Any
    escalated_at: datetime | None
    about_claim: str | None = None  # the claim whose holder may still come with the result


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRequest:
    """An answer as it comes in. `target`: the id of the suspension, or of its call."""

    target: str
    action: Action
    payload: Any = None
    edited_args: dict[str, Any] | None = None
    reason: str | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """An answer as it is stored."""

    id: str
    suspension_id: str
    call_id: str
    run_id: str
    action: Action
    payload: Any
    edited_args: dict[str, Any] | None
    reason: str | None
    key: str | None

    def says(self, request: DecisionRequest) -> bool:
        """Whether the request is this very answer once more."""
        said = (self.action, self.payload, self.edited_args, self.reason, self.key)
        return said == (request.action, request.payload, request.edited_args, request.reason, request.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledCall:
    """What an answer makes of its call without the tool."""

    status: CallStatus
    code: str | None
    content: str
    full: str | None = None


UNKNOWN_PROMPT = (
    "A worker died while {tool} was running. It is not known whether the call took effect. Look, and then answer: "
    "`retry` runs it again, `result` gives the result it had, `failed` tells the model that it failed."
)
UNKNOWN_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["retry", "result", "failed"]}, "result": {}, "reason": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def about_the_unknown(tool: str) -> Question:
    return Question(why=Why.UNKNOWN, prompt=UNKNOWN_PROMPT.format(tool=tool), schema=UNKNOWN_SCHEMA)


ARRIVED = "arrived"  # no person can give this answer: the schema has no such word


def arrived(suspension_id: str, *, code: str | None, content: str, full: str | None) -> DecisionRequest:
    """The result itself, from the process that had been taken for dead."""
    payload = {"answer": ARRIVED, "code": code, "content": content, "full": full}
    return DecisionRequest(target=suspension_id, action=Action.RESUME, payload=payload)


def digest(arguments: dict[str, Any]) -> str:
    """Of exactly these arguments, whatever order their keys came in."""
    import hashlib  # loads a library of its own: `import chordage` alone must not pay for it

    written = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def settled_by(asked: Suspension, answer: Decision) -> SettledCall | None:
    """What the call comes to by the answer alone; None when the tool has to run."""
    if answer.action is Action.CANCEL:
        return SettledCall(status=CallStatus.CANCELLED, code="denied", content=denial(asked.why, answer.reason))
    if asked.why is Why.CHILD:
        return _of_the_child(answer)
    if asked.why is Why.UNKNOWN:
        return _of_the_unknown(answer)
    if asked.resume_mode is ResumeMode.USE_AS_RESULT:
        return SettledCall(status=CallStatus.SUCCEEDED, code=None, content=as_text(answer.payload))
    return None


def _of_the_child(answer: Decision) -> SettledCall:
    """Its end has been put into words for the model when it was stored."""
    code, content = answer.payload["code"], answer.payload["content"]
    return SettledCall(status=CallStatus.FAILED if code else CallStatus.SUCCEEDED, code=code, content=content)


def denial(why: Why, reason: str | None) -> str:
    """What the model reads of a call that was denied."""
    said = f" The reason given: {reason}" if reason else ""
    if why is Why.CHILD:
        return f"The sub-agent was cancelled before it answered.{said}"
    return f"This call was denied and has not been executed.{said}"


def _of_the_unknown(answer: Decision) -> SettledCall | None:
    match answer.payload:
        case {"answer": "arrived", "code": code, "content": content, "full": full}:
            status = CallStatus.FAILED if code else CallStatus.SUCCEEDED
            return SettledCall(status=status, code=code, content=content, full=full)
        case {"answer": "result", **given}:
            return SettledCall(status=CallStatus.SUCCEEDED, code=None, content=as_text(given.get("result")))
        case {"answer": "failed", **given}:
            said = f"The call failed. {given.get('reason') or ''}".strip()
            return SettledCall(status=CallStatus.FAILED, code="failed_by_decision", content=said)
        case _:
            return None


def seen_by_tool(asked: Suspension, answer: Decision) -> Any:
    """What the tool is told of the answer when it runs."""
    return answer.payload if asked.resume_mode is ResumeMode.PASS_TO_TOOL else None


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SCHEMA_DEPTH = 4  # levels of a schema that are spelled out


def answers(schema: Mapping[str, Any] | bool | None, depth: int = SCHEMA_DEPTH) -> str:
    """A JSON Schema in one line for people: `{"answer": "retry" | "failed", "reason"?: text}`; `?` marks a key that
    may be left out.
    """
    if not isinstance(schema, Mapping) or not schema or depth == 0:
        return "anything"
    if "const" in schema:
        return _as_json(schema["const"])
    if isinstance(schema.get("enum"), list):
        return " | ".join(_as_json(value) for value in schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return " | ".join(answers(choice, depth - 1) for choice in schema[keyword])
    kinds = schema.get("type")
    return " | ".join(_answers_of_type(kind, schema, depth) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _answers_of_type(kind: object, schema: Mapping[str, Any], depth: int) -> str:
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if kind in {None, "object"} and (properties or (kind and required)):
        # A required key that has no schema of its own is listed too: no answer fits without it.
        members = (
            f"{_as_json(name)}{'' if name in required else '?'}: {answers(properties.get(name), depth - 1)}"
            for name in dict.fromkeys((*properties, *required))
        )
        return f"{{{', '.join(members)}}}"
    match kind:
        case "array":
            return f"[{answers(schema.get('items'), depth - 1)}, …]"
        case "string":
            return "text"
        case "boolean":
            return "true | false"
    return "anything" if kind is None else str(kind)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
