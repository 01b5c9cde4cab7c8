"""Where the calls of a reply run, and the round that stays here whole, which is recorded with its outcomes.

Pure calls may run before their reply is recorded. A process that dies then has recorded nothing: the model is asked
again, and may ask for something else, under other keys. For an idempotent call that would be a second effect, so its
reply is recorded first, as for every call that is no pure one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import CallHere, CallTools, Intent
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.placement import STAY, Bar, RoundPlan, place_round
from chordage.orchestrator.core.records import NewCall
from chordage.orchestrator.core.rounds import spread
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.text import clean_text
from chordage.orchestrator.gateways.ports import Series, ToolOutcome
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome
from chordage.orchestrator.run.orders import order_of
from chordage.orchestrator.runtime import Runtime


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderWay:
    """A call that this process has begun and not recorded the outcome of. `token`: of its claim, if there is one."""

    call_id: str
    token: str | None
    series: Series


def plan_round(rt: Runtime, request: ModelRequest, asked: Sequence[NewCall]) -> RoundPlan | None:
    """None: the round is not placed, because it is carried out step by step."""
    run, agent = request.run, request.agent
    if run.control is Control.STEP or agent.tool_mode is ToolMode.SEQUENTIAL:
        return None
    hears = request.session is not None and after_hook_is_heard(rt, agent)
    bar = Bar.DEATH if run.resends else Bar.PLUGIN if hears else None
    runnable = [call for call in asked if call.status is CallStatus.NEW]
    durations = {call.tool: rt.durations.of(agent.name, call.tool) for call in runnable}
    return place_round(agent, runnable, request.specs, durations, bar)


def after_hook_is_heard(rt: Runtime, agent: AgentSpec) -> bool:
    """A plugin may change the result of a call before it is recorded."""
    return rt.has_plugins(agent) and rt.plugin_sets(agent).listens(Hook.AFTER_TOOL_EXECUTE)


def go_on(intent: CallHere, under_way: UnderWay, rest: Sequence[str]) -> list[Intent]:
    """A call overstays: this process waits for it, and the rest of the round is sent. With one call at a time the rest
    is carried out behind it.
    """
    if intent.at_once == 1 or not rest:
        return [replace(intent, call_ids=(under_way.call_id, *rest), under_way=under_way)]
    batches = spread(rest, intent.at_once and intent.at_once - 1)
    others = CallTools(
        run_id=intent.run_id, step=intent.step, batches=batches, group=intent.group, of=intent.of, tools=intent.tools
    )
    return [others, replace(intent, call_ids=(under_way.call_id,), under_way=under_way)]


# A round that stays here whole.


def run_first(
    rt: Runtime, request: ModelRequest, outcome: ReplyOutcome, left: Callable[[], float] | None
) -> tuple[ReplyOutcome, UnderWay | None]:
    """Carry the calls out before the reply is recorded, where that may be. After the bound the reply is recorded as it
    is: with the outcomes so far, and with the call that is under way, which this process continues.
    """
    if not _may_run_first(rt, request, outcome, left):
        return outcome, None
    run = request.run
    runnable = [call for call in outcome.asked if call.status is CallStatus.NEW]
    began = rt.now()
    try:
        series = rt.tools.begin(request.agent, [order_of(rt, call, run.id, run.thread_id) for call in runnable])
    except UserError:  # it has its words for the model when the call is carried out by itself
        return outcome, None
    results = series.wait(STAY)
    at = series.under_way
    under_way = None if at is None else UnderWay(call_id=runnable[at].id, token=rt.new_id(), series=series)
    after: dict[str, NewCall] = {}
    for number, (call, result) in enumerate(zip(runnable, results, strict=True)):
        if number == at:
            assert under_way is not None
            after[call.id] = replace(
                call, status=CallStatus.RUNNING, claim_token=under_way.token, started_at=began, worker=rt.worker,
                placed="here: overstayed",
            )  # fmt: skip
        elif result is None or result.question is not None:
            after[call.id] = replace(call, placed="spread: not settled here")
        else:
            rt.durations.note(request.agent.name, call.tool, result.seconds)
            after[call.id] = _settled(rt, call, result, began)
    return replace(outcome, asked=[after.get(call.id, call) for call in outcome.asked]), under_way


def _may_run_first(rt: Runtime, request: ModelRequest, outcome: ReplyOutcome, left: Callable[[], float] | None) -> bool:
    plan, run = outcome.placed, request.run
    if plan is None or not plan.here or plan.batches or run.resends or run.suspended or outcome.call_sessions:
        return False
    if left is not None and left() < 2 * STAY:  # the limit of the run could come in the middle
        return False
    is_plain = all(
        call.effect is Effect.PURE if call.status is CallStatus.NEW else call.question is None for call in outcome.asked
    )
    return is_plain and not (request.session is not None and after_hook_is_heard(rt, request.agent))


def _settled(rt: Runtime, call: NewCall, result: ToolOutcome, began: datetime) -> NewCall:
    return replace(
        call, status=CallStatus.SUCCEEDED if result.ok else CallStatus.FAILED, code=result.code,
        content=clean_text(result.content), full=clean_text(result.full) if result.full is not None else None,
        worker=rt.worker, started_at=began, ended_at=rt.now(),
        placed="here" if result.seconds is None else f"here: {1000 * result.seconds:.1f} ms",
    )  # fmt: skip
