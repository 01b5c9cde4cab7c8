"""Sub-agents: the tool that represents each of them, the tree of runs they form, and the result of an end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect, SubAgent, ToolSpec
from chordage.orchestrator.core.approvals import Question, ResumeMode, Why
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Call, Kin, Run

THREAD_PREFIX = "child:"  # the id of a child's thread is this and the id of the call
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
_FAILURES = {
    Reason.STOPPED: ("child_stopped", "The sub-agent was stopped before it was done"),
    Reason.CANCELLED: ("child_cancelled", "The sub-agent was cancelled"),
    Reason.ERROR: ("child_failed", "The sub-agent failed"),
}


def tool_of(agent: str) -> str:
    """The name of the tool, in the characters that providers allow."""
    return f"ask_{re.sub(r'[^A-Za-z0-9_-]', '_', agent)}"


def of_tool(agent: AgentSpec, tool: str) -> SubAgent | None:
    return next((sub for sub in agent.agents if tool_of(sub.agent) == tool), None)


def specs(agent: AgentSpec) -> dict[str, ToolSpec]:
    return {(spec := _spec(sub)).name: spec for sub in agent.agents}


def _spec(sub: SubAgent) -> ToolSpec:
    description = sub.description or f"Ask the agent {sub.agent}; its answer comes back as the result."
    return ToolSpec(name=tool_of(sub.agent), description=description, schema=_SCHEMA, effect=Effect.PURE)


def invalid(sub: SubAgent, arguments: dict[str, Any]) -> str | None:
    """What is wrong with the arguments, for the model; None when they are valid."""
    text = arguments.get(ARGUMENT)
    if not isinstance(text, str) or not text.strip():
        return f"{tool_of(sub.agent)}: {ARGUMENT}: must be a text that is not blank; got {text!r:.80}"
    unknown = sorted(arguments.keys() - {ARGUMENT})
    return f"{tool_of(sub.agent)}: there is no parameter {unknown[0]!r}; there is: {ARGUMENT}" if unknown else None


def question(sub: SubAgent) -> Question:
    """The question that the end of the child answers. No person is asked."""
    prompt = f"The sub-agent {sub.agent} has not answered yet."
    return Question(why=Why.CHILD, prompt=prompt, resume_mode=ResumeMode.USE_AS_RESULT, expires_in=sub.timeout)


def too_deep(depth: int, limit: int) -> tuple[str, str]:
    text = f"No sub-agent was asked: it would be {depth} deep, and limits.max_depth is {limit}. Do it yourself."
    return "max_depth", text


def too_many(limit: int) -> tuple[str, str]:
    return "max_children", f"No sub-agent was asked: this run has asked as many as limits.max_children allows, {limit}."


def payload_of(ending: Ending, text: str | None) -> dict[str, str | None]:
    """The end of a child as the stored answer to its call: the content for the model, and a code for a failure."""
    if ending.reason in {Reason.NATURAL_END, Reason.BEHAVIOR_REQUESTED}:
        return {"code": None, "content": text or "The sub-agent ended without a word."}
    code, sentence = _FAILURES[ending.reason]
    cause = ": ".join(word for word in (ending.code, ending.detail) if word)
    content = f"{sentence} ({cause})." if cause else f"{sentence}."
    return {"code": code, "content": f"{content} Its last words: {text}" if text else content}


def in_turn(due: Sequence[Call], starts: set[str], carried_out: set[str]) -> list[Call]:
    """The calls of a sequential round that may go now: up to the first that is answered elsewhere, by a child or by the
    caller, and without that one when calls before it are carried out.
    """
    for place, call in enumerate(due):
        if call.id in starts:
            alone = not any(other.id in carried_out for other in due[:place])
            return list(due[: place + alone])
    return list(due)


def kin_of_child(parent: Run, agent: AgentSpec, sub: SubAgent, call_id: str) -> Kin:
    """`agent`: the parent's."""
    above, max_depth = parent.kin, agent.limits.max_depth
    return Kin(
        parent_run=parent.id, parent_call=call_id, root_run=above.root_run if above else parent.id,
        root_thread=parent.home_thread, path=f"{above.path if above else parent.agent}/{sub.agent}",
        max_depth=min(max_depth, above.max_depth) if above else max_depth,
    )  # fmt: skip


def covered(spans: Iterable[tuple[datetime, datetime]]) -> timedelta:
    """The total time in which at least one of the spans lasted."""
    total, counted_to = timedelta(), None
    for start, end in sorted(spans):
        begins = start if counted_to is None else max(start, counted_to)
        total += max(end - begins, timedelta())
        counted_to = end if counted_to is None else max(end, counted_to)
    return total
