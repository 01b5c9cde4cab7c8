"""The tools of an agent as the engine uses them: which there are, whether arguments fit, and what a call led to."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.gateways.ports import Abort, CallOrder, ToolOutcome
from chordage.orchestrator.gateways.tools import outcomes
from chordage.orchestrator.gateways.tools.attempt import (
    Around,
    AttemptEnd,
    Reports,
    ToolAttempt,
    nothing_around,
)
from chordage.orchestrator.gateways.tools.context import Context, Suspend
from chordage.orchestrator.gateways.tools.declare import Tool, declared_on
from chordage.orchestrator.gateways.tools.series import CallSeries, SeriesStep, pass_on
from chordage.orchestrator.system.user_code import SideThreads

PAUSE = Backoff(first=0.5, longest=30.0, jitter=0.5)

_log = logging.getLogger(__name__)

Fitted = tuple[Tool, dict[str, Any]]  # with the arguments as its function takes them


class ToolBox:
    """Implements `ports.Tools`. One serves all threads of a process.

    `tools_of` gives an agent's tools by name; it raises RoomError when one is broken. `sides`: the threads they run in.
    """

    def __init__(
        self,
        tools_of: Callable[[AgentSpec], Mapping[str, Tool]],
        *,
        around: Around = nothing_around,
        sides: SideThreads | None = None,
    ) -> None:
        self._tools_of = tools_of
        self._around = around
        self._sides = SideThreads() if sides is None else sides

    def specs(self, agent: AgentSpec) -> dict[str, ToolSpec]:
        return {name: tool.spec for name, tool in self._tools_of(agent).items()}

    def reader(self) -> ToolSpec:
        """Of the tool that reads stored results, which is offered to an agent that has none of that name."""
        return _reader().spec

    def invalid(self, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
        """Raises RoomError when the agent's tools cannot be loaded."""
        fitted = self._fitted(agent, tool, arguments)
        return fitted.content if isinstance(fitted, ToolOutcome) else None

    def run(
        self, agent: AgentSpec, order: CallOrder, *, abort: Abort, on_progress: Callable[[str], None]
    ) -> ToolOutcome:
        """With the attempts that the tool's declaration allows."""
        fitted = self._fitted_on_this_worker(agent, order)
        if isinstance(fitted, ToolOutcome):
            return fitted
        tool, arguments = fitted
        attempt = 1
        while True:
            end = self._attempt(tool, order, arguments, attempt, abort=abort, on_progress=on_progress)
            if attempt > tool.options.retries or not _may_pass(tool, end.error):
                return _outcome(tool, order, end)
            _log.info("tool %s raised %r, attempt %d follows", tool.name, end.error, attempt + 1)
            abort.wait(PAUSE.delay(attempt, random.random()))
            attempt += 1

    def begin(self, agent: AgentSpec, orders: Sequence[CallOrder]) -> CallSeries:
        return CallSeries([self._step(agent, order) for order in orders], self._sides)

    def _step(self, agent: AgentSpec, order: CallOrder) -> SeriesStep:
        fitted = self._fitted_on_this_worker(agent, order)
        if isinstance(fitted, ToolOutcome):
            return SeriesStep(outcome=fitted)
        tool, arguments = fitted
        return SeriesStep(
            attempt=self._prepared(tool, order, arguments, 1), timeout=tool.options.timeout,
            read=partial(_final_outcome, tool, order),
        )  # fmt: skip

    def reconcile(self, agent: AgentSpec, order: CallOrder) -> ToolOutcome | None:
        """None: it did not happen. Code `outcome_unknown`: the hook cannot tell, treat the call as an unsafe one."""
        fitted = self._fitted_on_this_worker(agent, order)
        if isinstance(fitted, ToolOutcome):
            return _outcome_unknown(order, fitted.content)
        tool, arguments = fitted
        hook, wants = tool.options.reconcile, tool.hook_wants
        if hook is None or wants is None:
            return _outcome_unknown(order, f"{tool.place} has no reconcile hook any more")
        context, reports = _context(order, 1)
        values = {parameter.name: arguments[parameter.name] for parameter in wants.parameters}
        call = partial(hook, **values, **dict.fromkeys(wants.context, context))
        end = ToolAttempt(call, context, reports, _text_or_none, around=self._around).run(
            self._sides, timeout=tool.options.timeout, abort=_NeverAborted(), on_progress=_discard
        )
        if end.error is not None:
            failure = outcomes.failure(tool.name, end.error, timeout=tool.options.timeout)
            _log.warning("%s: the reconcile hook cannot tell: %s", tool.place, failure.content, exc_info=end.error)
            return _outcome_unknown(order, f"its reconcile hook failed: {failure.content}")
        return None if end.text is None else _outcome(tool, order, end)

    def _fitted_on_this_worker(self, agent: AgentSpec, order: CallOrder) -> Fitted | ToolOutcome:
        """A worker with other files than the one that planned the call reports it as an outcome; the run continues."""
        try:
            return self._fitted(agent, order.tool, order.arguments)
        except RoomError as error:
            _log.exception("tool %s cannot be loaded, call %s", order.tool, order.call_id)
            return outcomes.failed("unknown_tool", f"{order.tool} cannot be loaded on this worker: {error}")

    def _fitted(self, agent: AgentSpec, name: str, arguments: dict[str, Any]) -> Fitted | ToolOutcome:
        from chordage.orchestrator.gateways.tools.arguments import InvalidArguments  # pydantic is heavy

        tools = self._tools_of(agent)
        if name == outcomes.READER and name not in tools:  # it is offered wherever it is needed
            tools = {**tools, name: _reader()}
        tool = tools.get(name)
        if tool is None and name in (agent.pinned_tools or ()):
            return ToolOutcome(content=outcomes.gone_tool(name, agent.name, agent.digest), code="unknown_tool")
        if tool is None:
            return ToolOutcome(content=outcomes.unknown_tool(name, list(tools)), code="unknown_tool")
        try:
            return tool, tool.arguments.fit(arguments)
        except InvalidArguments as error:
            content = f"{name} was not run, because its arguments do not fit:\n{error}"
            return ToolOutcome(content=content, code="invalid_arguments")

    def _attempt(
        self,
        tool: Tool,
        order: CallOrder,
        arguments: dict[str, Any],
        attempt: int,
        *,
        abort: Abort,
        on_progress: Callable[[str], None],
    ) -> AttemptEnd:
        return self._prepared(tool, order, arguments, attempt).run(
            self._sides, timeout=tool.options.timeout, abort=abort, on_progress=partial(pass_on, on_progress)
        )

    def _prepared(self, tool: Tool, order: CallOrder, arguments: dict[str, Any], attempt: int) -> ToolAttempt:
        context, reports = _context(order, attempt)
        call = partial(tool.function, **arguments, **dict.fromkeys(tool.wants.context, context))
        return ToolAttempt(call, context, reports, outcomes.as_text, around=self._around)


class _NeverAborted:
    """A reconcile hook runs when the call has no caller any more."""

    def check(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def back_off(self, seconds: float) -> None: ...


def _context(order: CallOrder, attempt: int) -> tuple[Context, Reports]:
    reports = Reports()
    context = Context(
        run_id=order.run_id,
        thread_id=order.thread_id,
        call_id=order.call_id,
        idempotency_key=order.idempotency_key,
        attempt=order.attempt + attempt - 1,
        decision=order.decision,
        task=order.task,
        results=order.results,
        executions=order.executions,
        on_progress=reports.put,
    )
    return context, reports


def _may_pass(tool: Tool, error: BaseException | None) -> bool:
    """Whether another attempt may help. Not after a timeout: the function may still be running."""
    final = outcomes.ToolTimeout | outcomes.NotJson | Suspend
    return isinstance(error, tool.options.retry_on) and not isinstance(error, final)


def _final_outcome(tool: Tool, order: CallOrder, end: AttemptEnd) -> ToolOutcome | None:
    """None: another attempt may help."""
    if tool.options.retries and _may_pass(tool, end.error):
        return None
    return _outcome(tool, order, end)


def _outcome(tool: Tool, order: CallOrder, end: AttemptEnd) -> ToolOutcome:
    if end.error is None:
        limit = tool.options.result_limit
        return outcomes.success(end.text or "", limit=limit, call_id=order.call_id, seconds=end.seconds)
    if isinstance(end.error, Suspend):
        question = end.error.question
        return ToolOutcome(content=question.prompt, question=question, seconds=end.seconds)
    failure = outcomes.failure(tool.name, end.error, timeout=tool.options.timeout)
    trace = None if isinstance(end.error, outcomes.ToolError) else end.error  # its text is complete
    _log.warning("%s, call %s: %s", tool.place, order.call_id, failure.code, exc_info=trace)
    return replace(failure, seconds=end.seconds)


def _outcome_unknown(order: CallOrder, why: str) -> ToolOutcome:
    return outcomes.failed("outcome_unknown", f"it is not known what became of this call of {order.tool}: {why}")


def _reader() -> Tool:
    from chordage.orchestrator.gateways.tools import builtin  # its schemas are pydantic's

    reader = declared_on(builtin.read_result)
    assert reader is not None
    return reader


def _text_or_none(value: Any) -> str | None:
    return None if value is None else outcomes.as_text(value)


def _discard(note: str) -> None:
    """A hook has no watchers."""
