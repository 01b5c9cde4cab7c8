"""What an agent may call: its tools, and the sub-agents it may ask."""

from __future__ import annotations

from typing import Any

from chordage.orchestrator.core import sub_agents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.runtime import Runtime


def specs(rt: Runtime, agent: AgentSpec) -> dict[str, ToolSpec]:
    return {**rt.tools.specs(agent), **sub_agents.specs(agent)}


def invalid(rt: Runtime, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
    """Why the arguments do not fit, in words for the model."""
    sub = sub_agents.of_tool(agent, tool)
    return rt.tools.invalid(agent, tool, arguments) if sub is None else sub_agents.invalid(sub, arguments)
