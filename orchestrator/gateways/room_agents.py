"""`agents` of an agent's file: which others of the room it may ask, and what its model is told of them."""

from __future__ import annotations

from chordage.orchestrator.core.agent import SubAgent
from chordage.orchestrator.core.subagents import tool_of
from chordage.orchestrator.gateways.room_table import SECONDS, TEXT, TEXTS, Table


def read(table: Table) -> tuple[SubAgent, ...]:
    """A list of names, or a table for each with `description` and `timeout`."""
    if isinstance(table.values.get("agents"), list):
        names: list[str] = table.take("agents", TEXTS, [])
        found = [SubAgent(agent=name) for name in names]
    else:
        inner = table.inner("agents")
        found = [_one(name, inner.inner(name)) for name in inner.values]
    tools = [tool_of(sub.agent) for sub in found]
    for twice in sorted({tool for tool in tools if tools.count(tool) > 1}):
        table.complain("agents", f"two of them would be asked with the tool {twice!r}; keep one")
    return tuple(found)


def _one(name: str, table: Table) -> SubAgent:
    sub = SubAgent(
        agent=name, description=table.take("description", TEXT, ""), timeout=table.take("timeout", SECONDS, None)
    )
    table.refuse_the_rest()
    return sub
