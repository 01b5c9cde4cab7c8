"""Sub-agents as an agent's model sees them: a tool for each, what it is asked with, and what an end comes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect, SubAgent, ToolSpec
from chordage.orchestrator.core.approvals import Question, ResumeMode, Why
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Call

ARGUMENT = "message"
_SCHEMA = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string", "description": "Everything it has to know: it sees nothing else."}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}
CUT_OFF = (
    "This was cut off before the sub-agent's answer was used. If it had started, what it did may have taken effect."
)
_ANSWERS = {Reason.NATURAL_END, Reason.BEHAVIOR_REQUESTED}
_SAID = {
    Reason.STOPPED: ("child_stopped", "The sub-agent was stopped before it was done"),
    Reason.CANCELLED: ("child_cancelled", "The sub-agent was cancelled"),
    Reason.ERROR: ("child_failed", "The sub-agent failed"),
}


def tool_of(agent: str) -> str:
    """As providers want tools to be called."""
    return f"ask_{re.sub(r'[^A-Za-z0-9_-]', '_', agent)}"


def of_tool(agent: AgentSpec, tool: str) -> SubAgent | None:
    return next((sub for sub in agent.agents if tool_of(sub.agent) == tool), None)


def specs(agent: AgentSpec) -> dict[str, ToolSpec]:
    return {(spec := _spec(sub)).name: spec for sub in agent.agents}


def _spec(sub: SubAgent) -> ToolSpec:
    said = sub.description or f"Ask the agent {sub.agent}; its answer comes back as the result."
    return ToolSpec(name=tool_of(sub.agent), description=said, schema=_SCHEMA, effect=Effect.PURE)


def invalid(sub: SubAgent, arguments: dict[str, Any]) -> str | None:
    """Why a sub-agent cannot be asked with these, in words for the model."""
    said = arguments.get(ARGUMENT)
    if not isinstance(said, str) or not said.strip():
        return f"{tool_of(sub.agent)}: {ARGUMENT}: must be a text that is not blank; got {said!r:.80}"
    more = sorted(arguments.keys() - {ARGUMENT})
    return f"{tool_of(sub.agent)}: there is no parameter {more[0]!r}; there is: {ARGUMENT}" if more else None


def question(sub: SubAgent) -> Question:
    """That nobody is asked: the end of the child is the answer."""
    prompt = f"The sub-agent {sub.agent} has not answered yet."
    return Question(why=Why.CHILD, prompt=prompt, resume_mode=ResumeMode.USE_AS_RESULT, expires_in=sub.timeout)


def too_deep(depth: int, limit: int) -> tuple[str, str]:
    told = f"No sub-agent was asked: it would be {depth} deep, and limits.max_depth is {limit}. Do it yourself."
    return "max_depth", told


def too_many(limit: int) -> tuple[str, str]:
    told = f"No sub-agent was asked: this run has asked as many as limits.max_children allows, {limit}."
    return "max_children", told


def payload_of(ending: Ending, text: str | None) -> dict[str, str | None]:
    """An end, as it is stored as the answer to the call: what the model reads, and a code if it is no answer."""
    if ending.reason in _ANSWERS:
        return {"code": None, "content": text or "The sub-agent ended without a word."}
    code, said = _SAID[ending.reason]
    why = ": ".join(word for word in (ending.code, ending.detail) if word)
    told = f"{said} ({why})." if why else f"{said}."
    return {"code": code, "content": f"{told} Its last words: {text}" if text else told}


def in_turn(due: Sequence[Call], starts: set[str], carried_out: set[str]) -> list[Call]:
    """In sequence: as far as the first that starts a child; behind others that are carried out, not even that one."""
    for place, call in enumerate(due):
        if call.id in starts:
            alone = not any(other.id in carried_out for other in due[:place])
            return list(due[: place + alone])
    return list(due)
