"""One log line per phase. Spans are made of the rows of a run (core/spans.py) and need no plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from chordage.orchestrator.core import phases
from chordage.orchestrator.core.model import Attempt
from chordage.orchestrator.core.phases import Hook, Moment
from chordage.orchestrator.plugins.base import Plugin

log = structlog.get_logger()


class Tracing(Plugin):
    id = "tracing"

    def run_start(self, context: phases.RunStart, /) -> None:
        _log(Hook.RUN_START, context)

    def step_start(self, context: phases.StepStart, /) -> None:
        _log(Hook.STEP_START, context)

    def before_inference(self, context: phases.BeforeInference, /) -> None:
        _log(Hook.BEFORE_INFERENCE, context, model=context.model, tools=len(context.tools))

    def after_inference(self, context: phases.AfterInference, /) -> None:
        _log(Hook.AFTER_INFERENCE, context, **_reply_fields(context))

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

    def run_end(self, context: phases.RunEnd, /) -> None:
        ending = context.ending
        _log(Hook.RUN_END, context, reason=ending.reason.value, code=ending.code, seconds=context.elapsed)


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
