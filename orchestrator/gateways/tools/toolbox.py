"""The tools of an agent as the engine uses them: what there is, whether arguments fit, and what a call led to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.ports import Abort, CallOrder, ToolOutcome
from chordage.orchestrator.gateways.tools import failures, results
from chordage.orchestrator.gateways.tools.around import Around, nothing_around
from chordage.orchestrator.gateways.tools.declare import Tool, declared_on
from chordage.orchestrator.gateways.tools.executor import Executor

_log = logging.getLogger(__name__)


class ToolBox:
    """Implements `ports.Tools`. `tools_of` gives an agent's tools by name; it raises RoomError when one is broken."""

    def __init__(self, tools_of: Callable[[AgentSpec], Mapping[str, Tool]], *, around: Around = nothing_around) -> None:
        self._tools_of = tools_of
        self._executor = Executor(around)

    def specs(self, agent: AgentSpec) -> dict[str, ToolSpec]:
        return {name: tool.spec for name, tool in self._tools_of(agent).items()}

    def reader(self) -> ToolSpec:
        """Of the tool that reads stored results, which is offered to an agent that has none of that name."""
        return _reader().spec

    def invalid(self, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
        """Raises RoomError when the agent's tools cannot be loaded."""
        found = self._fitted(agent, tool, arguments)
        return found.content if isinstance(found, ToolOutcome) else None

    def run(
        self, agent: AgentSpec, order: CallOrder, *, abort: Abort, on_progress: Callable[[str], None]
    ) -> ToolOutcome:
        found = self._fitted_here(agent, order)
        if isinstance(found, ToolOutcome):
            return found
        tool, arguments = found
        return self._executor.carry_out(tool, order, arguments, abort=abort, on_progress=on_progress)

    def reconcile(self, agent: AgentSpec, order: CallOrder) -> ToolOutcome | None:
        """None: it did not happen. Code `outcome_unknown`: the hook cannot tell, treat the call as an unsafe one."""
        found = self._fitted_here(agent, order)
        if isinstance(found, ToolOutcome):
            return _unknown(order, found.content)
        tool, arguments = found
        if tool.options.reconcile is None:
            return _unknown(order, f"{tool.place} has no reconcile hook any more")
        ended = self._executor.ask_hook(tool, order, arguments)
        if ended.error is not None:
            trouble = failures.outcome(tool.name, ended.error, timeout=tool.options.timeout, tries=1)
            _log.warning("%s: the reconcile hook cannot tell: %s", tool.place, trouble.content, exc_info=ended.error)
            return _unknown(order, f"its reconcile hook failed: {trouble.content}")
        if ended.text is None:
            return None
        return results.outcome(ended.text, limit=tool.options.result_limit, call_id=order.call_id, tries=1)

    def _fitted_here(self, agent: AgentSpec, order: CallOrder) -> tuple[Tool, dict[str, Any]] | ToolOutcome:
        """A worker with other files than the one that planned the call says so; it does not end the run."""
        try:
            return self._fitted(agent, order.tool, order.arguments)
        except RoomError as error:
            _log.exception("tool %s cannot be loaded, call %s", order.tool, order.call_id)
            said = f"ToolError: {order.tool} cannot be loaded on this worker: {error}"
            return ToolOutcome(content=said, code="unknown_tool")

    def _fitted(self, agent: AgentSpec, name: str, given: dict[str, Any]) -> tuple[Tool, dict[str, Any]] | ToolOutcome:
        from chordage.orchestrator.gateways.tools.arguments import (
            Unfit,  # pydantic is heavy: `import chordage` alone must not pay for it
        )

        tools = self._tools_of(agent)
        if name == results.READER and name not in tools:  # it is offered wherever it is needed
            tools = {**tools, name: _reader()}
        tool = tools.get(name)
        if tool is None:
            return ToolOutcome(content=failures.unknown(name, list(tools)), code="unknown_tool")
        try:
            return tool, tool.arguments.fit(given)
        except Unfit as unfit:
            return ToolOutcome(content=failures.unfit(name, str(unfit)), code="invalid_arguments")


def _reader() -> Tool:
    from chordage.orchestrator.gateways.tools import stored_results  # its schema is pydantic's

    found = declared_on(stored_results.read_result)
    assert found is not None
    return found


def _unknown(order: CallOrder, why: str) -> ToolOutcome:
    said = f"ToolError: it is not known what became of this call of {order.tool}: {why}"
    return ToolOutcome(content=said, code="outcome_unknown")
