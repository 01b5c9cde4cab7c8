"""Agents as tools of an MCP server: the tools that a host is offered, and what it reads of a turn.

The values are those of the wire, with its names. A turn that takes longer than a host waits is answered with its id;
`turn_status` reads it later. An approval is asked of the person at the host where the host can do that, and otherwise
named as what it is: a call that will run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.faces.moments import QuestionAsked, Queued, TurnEnded, TurnMoment, Waiting

ASK, STATUS, ANSWER = "ask_", "turn_status", "turn_answer"
LONGEST_WAIT = 45.0  # seconds: hosts give a call up after 60
NEEDS = {
    ASK: (KeyScope.SUBMIT, KeyScope.READ, KeyScope.PAYLOADS),
    STATUS: (KeyScope.READ, KeyScope.PAYLOADS),
    ANSWER: (KeyScope.DECIDE, KeyScope.READ, KeyScope.PAYLOADS),
}
LONGEST_NAME = 64
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")

_WAIT = {
    "type": "number", "minimum": 0, "maximum": LONGEST_WAIT,
    "description": f"Seconds to wait for the turn to end. Default: {LONGEST_WAIT:g}.",
}  # fmt: skip
_TURN = {"type": "string", "description": "The id of a turn, as an earlier answer named it."}


def agents_by_tool(agents: Iterable[str]) -> dict[str, str]:
    """The name of the tool of each agent. Two agents whose names would be the same in MCP are numbered."""
    names: dict[str, str] = {}
    for agent in sorted(agents):
        name = _FORBIDDEN.sub("_", ASK + agent)[:LONGEST_NAME]
        number = 2
        while name in names:
            ending = f"_{number}"
            name, number = name[: LONGEST_NAME - len(ending)].removesuffix(f"_{number - 1}") + ending, number + 1
        names[name] = agent
    return names


def tools(agents: Iterable[str], scopes: frozenset[KeyScope]) -> list[dict[str, Any]]:
    """Those that a key with these scopes may call."""
    offered = [_ask_tool(name, agent) for name, agent in agents_by_tool(agents).items()] + [_STATUS_TOOL, _ANSWER_TOOL]
    return [tool for tool in offered if not missing_scopes(tool["name"], scopes)]


def missing_scopes(tool: str, scopes: frozenset[KeyScope]) -> list[KeyScope]:
    return [scope for scope in NEEDS.get(tool, NEEDS[ASK]) if scope not in scopes]


def _ask_tool(name: str, agent: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": f"Ask {agent}",
        "description": (
            f"Send a message to the agent {agent!r} and wait for its answer. The agent has tools of its own and may "
            "use them. If it needs longer, the answer names a turn: read it with turn_status, do not ask again. If it "
            "needs a decision first, the answer says which call would run: show it to the person, and let them decide."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "thread": {
                    "type": "string",
                    "description": "The thread of an earlier answer, to continue that conversation.",
                },
                "wait": _WAIT,
            },
            "required": ["message"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    }


_STATUS_TOOL: dict[str, Any] = {
    "name": STATUS,
    "title": "Read a turn",
    "description": "What became of a message to an agent: its answer, the calls that wait for a decision, or that it "
    "is still at work.",
    "inputSchema": {
        "type": "object", "properties": {"turn": _TURN, "wait": _WAIT}, "required": ["turn"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}  # fmt: skip

_ANSWER_TOOL: dict[str, Any] = {
    "name": ANSWER,
    "title": "Decide about a call that waits",
    "description": (
        "Approve or deny a call that an agent wants to make. An approved call RUNS AT ONCE, with the arguments that "
        "the question shows, and may change or delete things outside. Never approve by yourself: show the tool and "
        "its arguments to the person, and pass on what they say."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "turn": _TURN,
            "question": {"type": "string", "description": "The id of the question, as the turn named it."},
            "decision": {"type": "string", "enum": ["approve", "deny"]},
            "payload": {"description": "The person's answer, if the question has a schema. Default: true."},
            "reason": {"type": "string", "description": "Why it is denied; the agent reads it."},
            "wait": _WAIT,
        },
        "required": ["turn", "question", "decision"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
}


def result(moment: TurnMoment, *, turn_id: str, thread_id: str) -> dict[str, Any]:
    """What the host reads of a turn, by the last moment that is known of it."""
    state: dict[str, Any] = {"turn": turn_id, "thread": thread_id}
    match moment:
        case TurnEnded(disposition="answered"):
            output = {} if moment.output is None else {"output": moment.output}
            texts = [moment.text or "", f"(thread {thread_id})"]
            return _called(texts, {**state, "status": "answered", "answer": moment.text, **output})
        case TurnEnded():
            why = ": ".join(word for word in (moment.code, moment.detail or moment.reason) if word)
            text = f"There is no answer: the turn ended as {moment.disposition}{f' ({why})' if why else ''}."
            state |= {"status": moment.disposition, "code": moment.code, "detail": moment.detail}
            return _called([text], state, is_error=True)
        case Waiting():
            questions = [_question(question) for question in moment.questions]
            return _called([_asked(turn_id, moment.questions)], {**state, "status": "waiting", "questions": questions})
        case Queued():
            why = f": {moment.why}" if moment.why else ""
            text = f"Turn {turn_id} has not started{why}. Read it later with {STATUS}; do not ask again."
            return _called([text], {**state, "status": "queued", "why": moment.why})
        case _:
            text = f"Turn {turn_id} is still at work. Read it later with {STATUS}; do not ask again."
            return _called([text], {**state, "status": "running"})


def refusal(error: str) -> dict[str, Any]:
    """The host's model reads it, and can correct itself."""
    return {"content": [{"type": "text", "text": error}], "isError": True}


def _called(texts: Sequence[str], state: Mapping[str, Any], *, is_error: bool = False) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    return {"content": content, "structuredContent": dict(state), "isError": is_error}


def _question(question: QuestionAsked) -> dict[str, Any]:
    return {
        "question": question.id, "tool": question.tool, "arguments": question.arguments, "why": question.why,
        "prompt": question.prompt, "schema": question.schema, "on_expiry": question.on_expiry,
        "expires_at": question.expiry,
    }  # fmt: skip


def _asked(turn_id: str, questions: Sequence[QuestionAsked]) -> str:
    lines = [f"Turn {turn_id} waits for a decision of a person. Nothing of this has run yet:"]
    for question in questions:
        lines.append(f"- question {question.id}: {call_in_words(question)}")
        if question.schema is not None:
            lines.append(f"  the payload of an approval fits this schema: {_compact(question.schema)}")
    return "\n".join([*lines, f"Show it to the person, and pass on what they decide with {ANSWER}."])


def call_in_words(question: QuestionAsked) -> str:
    prompt = f" ({question.prompt})" if question.prompt else ""
    return f"{question.tool} {_compact(question.arguments)}{prompt}"


# Asked of the person, by a host that can (elicitation)


def form(question: QuestionAsked, payload: Any = None) -> dict[str, Any]:
    """`payload`: what the host's model would answer with, if the question has a schema."""
    answer = "" if question.schema is None else f" The answer would be {_compact(payload)}."
    return {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": f"May this run? {call_in_words(question)}{answer}",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
                    "reason": {"type": "string", "title": "Reason, if denied"},
                },
                "required": ["decision"],
            },
        },
    }


def decision_in(form: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """What the person chose, and why. None: nothing, so the question stays open."""
    content = form.get("content") or {}
    match form.get("action"), content.get("decision"):
        case "accept", ("approve" | "deny") as decision:
            return decision, str(content["reason"]) if content.get("reason") else None
        case "decline", _:
            return "deny", None
        case _:
            return None


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def is_settled(moment: TurnMoment) -> bool:
    return isinstance(moment, Waiting | TurnEnded)
