"""One log line per phase, and a span for every model call, tool call and run where OpenTelemetry is installed.

A span is made when its work is over, from the seconds that were measured: a tool call may begin on one machine and end
on another.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from typing import Any

import structlog

from chordage.orchestrator.core import phases
from chordage.orchestrator.core.model import Attempt
from chordage.orchestrator.core.phases import Hook, Moment
from chordage.orchestrator.plugins.base import OptionRefused, Plugin

log = structlog.get_logger()

BILLION = 1_000_000_000  # nanoseconds


class Tracing(Plugin):
    """spans: true insists on OpenTelemetry, false does without; left out, it is used if it is there."""

    id = "tracing"

    def __init__(self, *, spans: bool | None = None) -> None:
        if spans is not None and not isinstance(spans, bool):
            raise OptionRefused("spans", f"must be true or false; got {spans!r}")
        self._tracer = None if spans is False else _tracer()
        if spans and self._tracer is None:
            raise OptionRefused("spans", "OpenTelemetry is not installed; install chordage[otel], or leave this out")

    def run_start(self, context: phases.RunStart, /) -> None:
        _log(Hook.RUN_START, context)

    def step_start(self, context: phases.StepStart, /) -> None:
        _log(Hook.STEP_START, context)

    def before_inference(self, context: phases.BeforeInference, /) -> None:
        _log(Hook.BEFORE_INFERENCE, context, model=context.model, tools=len(context.tools))

    def after_inference(self, context: phases.AfterInference, /) -> None:
        fields = _reply_fields(context)
        _log(Hook.AFTER_INFERENCE, context, **fields)
        self._span("chat", context, fields["seconds"], _genai_of_reply(context))

    def step_end(self, context: phases.StepEnd, /) -> None:
        _log(Hook.STEP_END, context, **_reply_fields(context))

    def before_tool_execute(self, context: phases.BeforeToolExecute, /) -> None:
        call = context.call
        _log(Hook.BEFORE_TOOL_EXECUTE, context, call=call.id, tool=call.tool, resumed=call.resumed is not None)

    def after_tool_execute(self, context: phases.AfterToolExecute, /) -> None:
        call, outcome = context.call, context.outcome
        _log(
            Hook.AFTER_TOOL_EXECUTE,
            context,
            call=call.id,
            tool=call.tool,
            code=outcome.code,
            seconds=outcome.seconds,
        )
        genai = {"gen_ai.tool.name": call.tool, "gen_ai.tool.call.id": call.ask_id, "error.type": outcome.code}
        if outcome.seconds is not None:
            self._span("execute_tool", context, outcome.seconds, genai, of=call.tool)

    def run_end(self, context: phases.RunEnd, /) -> None:
        ending = context.ending
        _log(Hook.RUN_END, context, reason=ending.reason.value, code=ending.code, seconds=context.elapsed)
        genai = {
            "gen_ai.usage.input_tokens": context.usage.input_tokens,
            "gen_ai.usage.output_tokens": context.usage.output_tokens,
            "chordage.ending": ending.reason.value,
        }
        self._span("invoke_agent", context, context.elapsed, genai, of=context.agent)

    def _span(self, operation: str, context: Moment, seconds: float, details: dict[str, Any], *, of: str = "") -> None:
        if self._tracer is None:
            return
        known = {
            "gen_ai.operation.name": operation,
            "gen_ai.agent.name": context.agent,
            "gen_ai.conversation.id": context.thread_id,
            "chordage.run_id": context.run_id,
            "chordage.step": context.step,
        }
        attributes = {key: value for key, value in (known | details).items() if value is not None}
        end = time.time_ns()
        name = f"{operation} {of or details.get('gen_ai.response.model') or ''}".strip()
        span = self._tracer.start_span(name, attributes=attributes, start_time=end - int(seconds * BILLION))
        span.end(end_time=end)


def _tracer() -> Any:
    """None where OpenTelemetry is not installed."""
    try:
        trace = importlib.import_module("opentelemetry.trace")
    except ImportError:
        return None
    return trace.get_tracer("chordage")


def _log(hook: Hook, context: Moment, **fields: Any) -> None:
    present = {key: value for key, value in fields.items() if value is not None}
    log.info(
        hook.value, run=context.run_id, thread=context.thread_id, agent=context.agent, step=context.step, **present
    )


def _reply_fields(context: phases.AfterInference | phases.StepEnd) -> dict[str, Any]:
    reply, error = context.reply, context.error
    if reply is not None:
        seconds = _seconds(reply.attempts)
        return {"seconds": seconds, "model": reply.model, "stop": reply.stop.value, "asks": len(reply.asks)}
    if error is not None:
        return {"seconds": _seconds(error.attempts), "error": error.fault.value}
    return {"seconds": 0.0}


def _seconds(attempts: Iterable[Attempt]) -> float:
    return sum((attempt.seconds for attempt in attempts), 0.0)


def _genai_of_reply(context: phases.AfterInference) -> dict[str, Any]:
    reply = context.reply
    if reply is None:
        return {"error.type": context.error.fault.value if context.error else None}
    return {
        "gen_ai.response.model": reply.model,
        "gen_ai.response.finish_reasons": [reply.stop.value],
        "gen_ai.usage.input_tokens": reply.usage.input_tokens,
        "gen_ai.usage.output_tokens": reply.usage.output_tokens,
    }
