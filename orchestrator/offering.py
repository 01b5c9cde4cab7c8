"""What an agent may call: its tools, and the sub-agents it may ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chordage.orchestrator.core import sub_agents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.records import Answer
from chordage.orchestrator.gateways.tools import results
from chordage.orchestrator.runtime import Runtime


def specs(rt: Runtime, agent: AgentSpec, known: Iterable[Answer] = ()) -> dict[str, ToolSpec]:
    """`known`: the answers that the model is shown. Where one is only the beginning of a result, it may read on."""
    own = {**rt.tools.specs(agent), **sub_agents.specs(agent)}
    if not any(results.is_preview(answer.content) for answer in known):
        return own
    reader = rt.tools.reader()
    return own if reader.name in own else {**own, reader.name: reader}  # last: what comes before stays in caches


def invalid(rt: Runtime, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
    """Why the arguments do not fit, in words for the model."""
    sub = sub_agents.of_tool(agent, tool)
    return rt.tools.invalid(agent, tool, arguments) if sub is None else sub_agents.invalid(sub, arguments)
