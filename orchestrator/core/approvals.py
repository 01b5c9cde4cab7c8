"""A call that waits for a decision: the question, the decision, and the result that a decision alone gives a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.limits import LONGEST
from chordage.orchestrator.core.reasons import BY_A_MESSAGE, Reason
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.text import clean_json, must, must_be_json, text_of

PROMPT_MAX = 65_536  # characters: as many as the model reads of a result


class ResumeMode(StrEnum):
    """What the decision is used for."""

    REPLAY = "replay_tool_call"  # the tool runs with the same arguments
    USE_AS_RESULT = "use_decision_as_tool_result"  # the decision is the result, the tool does not run
    PASS_TO_TOOL = "pass_decision_to_tool"  # noqa: S105 - a mode; the tool runs and sees the decision


class OnExpiry(StrEnum):
    """What happens when no decision comes in time."""

    DENY = "deny"
    CANCEL_RUN = "cancel_run"
    ESCALATE = "escalate"  # it stays open, and the inbox shows it as overdue
    DEFAULT = "default"  # `default` is applied like a decision


class Why(StrEnum):
    """Why a call waits."""

    GATE = "permission"
    TOOL = "tool"
    UNKNOWN = "outcome_unknown"
    CHILD = "child"  # no person is asked: the end of a sub-agent is the answer
    CLIENT = "client_tool"  # no person is asked: the caller carries the call out, and the answer is its result


class SuspensionStatus(StrEnum):
    OPEN = "open"
    DECIDED = "decided"  # the decision is stored and not applied yet
    SETTLED = "settled"
    SUPERSEDED = "superseded"  # its run ended without a decision


class Action(StrEnum):
    """What a decision does. The words of the commands, approve and deny, are accepted too."""

    RESUME = "resume"
    CANCEL = "cancel"

    @classmethod
    def _missing_(cls, value: object) -> Action | None:
        return {"approve": cls.RESUME, "deny": cls.CANCEL}.get(str(value))

    @property
    def verdict(self) -> str:
        """What a question was, in the words of the commands."""
        return "denied" if self is Action.CANCEL else "approved"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What has to be decided before the call continues."""

    why: Why
    prompt: str
    schema: dict[str, Any] | None = None
    resume_mode: ResumeMode = ResumeMode.REPLAY
    expires_in: float | None = None
    on_expiry: OnExpiry = OnExpiry.DENY
    default: Any = None


def checked_question(prompt: str, schema: Any, expires_in: float | None, default: Any) -> dict[str, Any]:
    """The parts of a question that users' code asks, as they can be stored. Raises ValueError: a question that cannot
    be stored, shown or answered is refused where it is asked.
    """
    must(not isinstance(prompt, str) or prompt.strip(), "the prompt is blank; say what has to be decided")
    prompt = text_of(prompt, "the prompt")
    must(len(prompt) <= PROMPT_MAX, f"the prompt has {len(prompt)} characters; give at most {PROMPT_MAX}")
    must(schema is None or isinstance(schema, dict), f"the schema must be a JSON Schema, as a dict; got {schema!r}")
    must_be_json(schema, "the schema")
    must_be_json(default, "the default")
    must(
        expires_in is None or 0 < expires_in <= LONGEST,
        f"expires_in must be more than 0 seconds and at most {LONGEST:.0f}, or left out; got {expires_in!r}",
    )
    return {"prompt": prompt, "schema": clean_json(schema), "default": clean_json(default)}


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
    about_claim: str | None = None  # the claim whose holder may still deliver the result
    root_thread: str | None = None  # None: its run is a root


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRequest:
    """A decision as it comes in. `target`: the id of the suspension, or of its call."""

    target: str
    action: Action
    payload: Any = None
    edited_args: dict[str, Any] | None = None
    reason: str | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A decision as it is stored."""

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
        """Whether the request repeats this decision. Without a key, the content alone tells."""
        content = (self.action, self.payload, self.edited_args, self.reason)
        is_same = content == (request.action, request.payload, request.edited_args, request.reason)
        return is_same and request.key in {None, self.key}


EXPIRY = "expiry"  # the source of a decision that the engine makes when none came in time
UNDECIDED = "No decision came in time."  # the reason of a question that expired
UNANSWERED = "No answer came in time."  # ... where no person was asked


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedQuestion:
    """How a question was closed. Without an `action` nothing was decided. `run_*`: of its run, as it is now."""

    id: str
    run_id: str
    tool: str
    why: Why
    status: SuspensionStatus
    expires_at: datetime | None
    on_expiry: OnExpiry
    call_status: CallStatus
    run_reason: Reason | None
    run_code: str | None
    run_detail: str | None
    run_ended_at: datetime | None
    action: Action | None = None
    source: str | None = None  # of the decision
    decided_by: str | None = None
    decided_at: datetime | None = None
    applied_at: datetime | None = None

    @property
    def fate(self) -> str:
        """In words that follow `the question`. They hold nothing of its content."""
        fate = self._decided() if self.action is not None else self._undecided()
        if self.action is not None and self.applied_at is None and self.status is SuspensionStatus.SUPERSEDED:
            fate += ", and its run ended before that was applied"
        return fate

    def _decided(self) -> str:
        at, is_denial = minute(self.decided_at), self.action is Action.CANCEL
        if self.source == EXPIRY:
            then = "the call was denied then" if is_denial else "its default answer was applied then"
            return f"expired at {minute(self.expires_at)} without a decision, and {then}"
        if self.why is Why.CHILD and not is_denial:
            return f"was answered by its sub-agent at {at}"
        if self.source == RESULT_SOURCE:
            return f"was closed at {at} by the result of the call, which arrived after all"
        verdict = "denied" if is_denial else "answered" if self.why in {Why.UNKNOWN, Why.CLIENT} else "approved"
        who = self.source if self.decided_by in {None, self.source} else f"{self.decided_by} ({self.source})"
        return f"was {verdict} at {at} by {who}"

    def _undecided(self) -> str:
        if self.run_ended_at is None:
            return "was closed without a decision, since its call was settled in another way"
        is_late = self.expires_at is not None and self.expires_at <= self.run_ended_at
        if self.on_expiry is OnExpiry.CANCEL_RUN and is_late and self.run_detail == UNDECIDED:
            return f"expired at {minute(self.expires_at)} without a decision, and its run was cancelled then"
        if self.run_code in BY_A_MESSAGE:
            ended = "was ended by a later message"
        elif self.run_reason is Reason.CANCELLED:
            ended = "was cancelled"
        else:
            ended = "failed" if self.run_reason is Reason.ERROR else "ended"
        return f"was closed without a decision at {minute(self.run_ended_at)}, when its run {ended}"


def minute(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if at is not None else "an unknown time"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledCall:
    """The result of a call that its decision settled without the tool."""

    status: CallStatus
    code: str | None
    content: str
    full: str | None = None


RESULT_SOURCE = "tool"  # of the decision by a result that arrived from a process taken for dead
UNKNOWN_TEXT = (
    "The worker died while this call was running. It is not known whether it took effect, and it was not run again."
)
UNKNOWN_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["retry", "result", "failed"]}, "result": {}, "reason": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def about_the_unknown(tool: str) -> Question:
    """The question about an unsafe call whose worker died."""
    prompt = (
        f"A worker died while {tool} was running. It is not known whether the call took effect. Look, and then answer: "
        "`retry` runs it again, `result` gives the result it had, `failed` tells the model that it failed."
    )
    return Question(why=Why.UNKNOWN, prompt=prompt, schema=UNKNOWN_SCHEMA)


def arrived(suspension_id: str, *, code: str | None, content: str, full: str | None) -> DecisionRequest:
    """The result from a process that was taken for dead. A person cannot answer so: it does not fit UNKNOWN_SCHEMA."""
    payload = {"answer": "arrived", "code": code, "content": content, "full": full}
    return DecisionRequest(target=suspension_id, action=Action.RESUME, payload=payload)


def digest(arguments: dict[str, Any]) -> str:
    """The same for equal arguments, whatever the order of their keys."""
    import hashlib  # loads a library of its own: `import chordage` alone must not pay for it

    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def settled_by(suspension: Suspension, decision: Decision) -> SettledCall | None:
    """The result of the call where the decision alone gives one; None when the tool has to run."""
    if decision.action is Action.CANCEL:
        content = denial(suspension.why, decision.reason)
        return SettledCall(status=CallStatus.CANCELLED, code="denied", content=content)
    if suspension.why is Why.CHILD:  # `subagents.payload_of` has written the content
        return _settled(decision.payload["code"], decision.payload["content"])
    if suspension.why is Why.UNKNOWN:
        return _settled_unknown(decision.payload)
    if suspension.resume_mode is ResumeMode.USE_AS_RESULT:
        return _settled(None, as_text(decision.payload))
    return None


def _settled_unknown(payload: Any) -> SettledCall | None:
    match payload:
        case {"answer": "arrived", "code": code, "content": content, "full": full}:
            return _settled(code, content, full)
        case {"answer": "result", **answer}:
            return _settled(None, as_text(answer.get("result")))
        case {"answer": "failed", **answer}:
            return _settled("failed_by_decision", f"The call failed. {answer.get('reason') or ''}".strip())
        case _:
            return None


def _settled(code: str | None, content: str, full: str | None = None) -> SettledCall:
    status = CallStatus.FAILED if code else CallStatus.SUCCEEDED
    return SettledCall(status=status, code=code, content=content, full=full)


def denial(why: Why, reason: str | None) -> str:
    """What the model reads of a call that was denied."""
    given = f" The reason given: {reason}" if reason else ""
    if why is Why.CHILD:
        return f"The sub-agent was cancelled before it answered.{given}"
    if why is Why.CLIENT:
        return f"The caller has not carried this call out.{given}"
    if why is Why.UNKNOWN:
        return f"{UNKNOWN_TEXT}{given}"
    return f"This call was denied and has not been executed.{given}"


def seen_by_tool(suspension: Suspension, decision: Decision) -> Any:
    """The decision as the resumed tool sees it."""
    return decision.payload if suspension.resume_mode is ResumeMode.PASS_TO_TOOL else None


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else _as_json(value)


def answers(schema: Mapping[str, Any] | bool | None, depth: int = 4) -> str:
    """A JSON Schema in one line for people, to `depth` levels: `{"answer": "retry" | "failed", "reason"?: text}`.
    `?` marks an optional key.
    """
    return " | ".join(_choices(schema, depth)) or "nothing"


def _choices(schema: object, depth: int) -> list[str]:
    """Without the values that `not` excludes."""
    if not isinstance(schema, Mapping) or not schema or depth == 0:
        return ["anything"]
    excluded = _values(schema.get("not")) or []
    return [choice for choice in _all_choices(schema, depth) if choice not in excluded]


def _all_choices(schema: Mapping[str, Any], depth: int) -> list[str]:
    if (values := _values(schema)) is not None:
        return values
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return [choice for part in schema[keyword] for choice in _choices(part, depth - 1)]
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return [choice for kind in kinds for choice in _choices_of_type(kind, schema, depth)]


def _values(schema: object) -> list[str] | None:
    """The values that the schema lists, as JSON; None if it lists none."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [_as_json(schema["const"])]
    values = schema.get("enum")
    return [_as_json(value) for value in values] if isinstance(values, list) else None


def _choices_of_type(kind: object, schema: Mapping[str, Any], depth: int) -> list[str]:
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if kind in {None, "object"} and (properties or (kind and required)):
        # A required key that has no schema of its own is listed too: no answer fits without it.
        members = (
            f"{_as_json(name)}{'' if name in required else '?'}: {answers(properties.get(name), depth - 1)}"
            for name in dict.fromkeys((*properties, *required))
        )
        return [f"{{{', '.join(members)}}}"]
    match kind:
        case "array":
            return [f"[{answers(schema.get('items'), depth - 1)}, …]"]
        case "string":
            return ["text"]
        case "boolean":
            return ["true", "false"]
    return ["anything" if kind is None else str(kind)]


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
