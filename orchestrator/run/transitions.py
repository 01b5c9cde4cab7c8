"""The one place that decides what a run does next, and opens it.

Used by every stage at whose end a run stands at a crossing: `advance` when nothing or a settled round lies before it,
`inference` in the very transaction that records the reply. A crossing is so passed and recorded at once; there is no
moment at which a reply is known and what follows from it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import Advance, CallModel, CallTools, Intent
from chordage.orchestrator.core.limits import of_run
from chordage.orchestrator.core.model import Reply, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.output import Accepted, Ended, Refused, Verdict
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending, Reason, failed, out_of_time
from chordage.orchestrator.core.records import Checkpoint, Phase, Run, Turn
from chordage.orchestrator.core.rounds import distinct, spread
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.text import clean_reply
from chordage.orchestrator.core.transcript import NOT_RUN, body_of
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.run import approvals, endings, limits, planning, plugins, steering, stepping, subagents
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome
from chordage.orchestrator.run.output import verdict, whole
from chordage.orchestrator.run.rounds import beyond_the_limit, check_calls, new_calls, not_run, open_calls
from chordage.orchestrator.run.stepping import Recorded
from chordage.orchestrator.run.waiting import (
    NOT_OURS,
    Transition,
    is_held_up,
    may_go_on,
    rows_before,
    suspend_run,
    wake,
)
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim
from chordage.orchestrator.strategies import loading


def next_move(
    run: Run,
    agent: AgentSpec,
    reply: Reply | None,
    now: datetime,
    *,
    plans: Planning | None = None,
    plan: PlanDecision | None = None,
) -> Move:
    allowed = of_run(agent.limits, run).max_rounds
    view = View(rounds=run.rounds, reply=reply, max_rounds=allowed, planning=plans, plan=plan)
    return _in_time(run, agent, loading.decide(run.strategy, view), now)


def _in_time(run: Run, agent: AgentSpec, move: Move, now: datetime) -> Move:
    """A reply that came too late is kept, and the turn has failed all the same."""
    limit = of_run(agent.limits, run).timeout
    if limit is not None and run.worked(now) >= limit:
        return Finish(ending=out_of_time(limit))
    return move


def next_step(rt: Runtime, run: Run) -> list[Intent]:
    """The run has no reply before it: it has just started, or its round is settled."""
    step = run.next_inference
    if step is None:
        return []
    at = RunClaim(run=run, step=step, token=run.claim_token)
    try:
        agent = rt.agents.get(run.agent)
        if (how := limits.is_over(rt, run, agent)) is not None:
            return limits.end_here(rt, at, how)
        if run.control is Control.STEP and (held := stepping.at_rest(rt, run, agent)) is not None:
            return held
        if run.suspended and (held_up := approvals.resume_decided(rt, run, agent)) is not None:
            return held_up
        if run.kept is not None:  # the round after which it was to stop is settled
            return endings.end_here(rt, at, run.kept)
        move = next_move(run, agent, None, rt.now())
    except UserError as error:
        return endings.retry_unknown_agent(rt, at, error)
    except Exception:
        endings.record_crash(rt, run)
        raise
    match move:
        case Infer() | Plan() if run.control is Control.STEP and (moved := stepping.with_news(rt, run)) is not None:
            return moved
        case Infer() | Plan():
            return [CallModel(run_id=run.id, step=step, group=run.group, of=run.subject, seen=run)]
        case Finish(ending=how):
            return endings.end_here(rt, at, how)
        case RunTools() | RunPlan():
            raise AssertionError(f"strategy {run.strategy!r} runs tools before the model asked for any")


def judge(
    rt: Runtime, at: RunClaim, scene: ModelRequest, reply: Reply, plan: PlanDecision | None = None
) -> ReplyOutcome:
    """Plugins are heard, the strategy is asked, each call goes through its gate. A broken plugin ends the run, and the
    reply is kept all the same.
    """
    reply = clean_reply(reply)
    reply = replace(reply, asks=() if scene.asks_planner else distinct(reply.asks, at.step))
    try:
        stop = plugins.after_inference(scene.hearing, reply=reply)
        if stepping.holds(at.run, Recorded.PLAN if scene.asks_planner else Recorded.REPLY):
            return ReplyOutcome(reply=reply, move=Infer(), plan=plan, keeps=stop, held=True)
        then = next_move(at.run, scene.agent, reply, rt.now(), plans=scene.planning, plan=plan)
        then = whole(scene.form, reply, then)
        move, keeps = _with_stop(then, stop)
        asks = _asks_of(move, at, scene, reply)
        if not asks:
            output = _output(rt, at.run, scene, reply, then, stop)
            return ReplyOutcome(reply=reply, move=move, plan=plan, keeps=keeps, output=output)
        beyond, over = beyond_the_limit(rt, at.run, scene.agent, asks)
        keeps = keeps or over
        asked, hearings = check_calls(rt, at, scene, asks, beyond)
        asked = subagents.suspend_for_children(rt, at.run, scene.agent, asked)
    except PluginFailed as error:
        return ReplyOutcome(reply=reply, plan=plan, move=Finish(ending=failed("plugin", str(error))))
    return ReplyOutcome(reply=reply, move=move, plan=plan, asked=asked, keeps=keeps, hearings=hearings)


def _asks_of(move: Move, at: RunClaim, scene: ModelRequest, reply: Reply) -> dict[int, ToolAsk]:
    """The calls that a move opens, each with its place."""
    match move:
        case RunTools():
            return dict(enumerate(reply.asks))
        case RunPlan():
            return planning.asks_of(move, at.step, scene.agent)
        case _:
            return {}


def _output(
    rt: Runtime, run: Run, scene: ModelRequest, reply: Reply, then: Move, stop: Ending | None
) -> Verdict | None:
    """A run that a plugin ends asks for no repair, but an answer that fits is not lost."""
    found = verdict(rt, run, scene.form, reply, then)
    return found if stop is None or isinstance(found, Accepted) else None


def _with_stop(move: Move, stop: Ending | None) -> tuple[Move, Ending | None]:
    """Where it is stopped, the round's tools finish first; any other end comes at once. An error is not talked over."""
    if stop is None or (isinstance(move, Finish) and move.ending.reason is Reason.ERROR):
        return move, None
    if isinstance(move, RunTools | RunPlan) and stop.reason is Reason.STOPPED:
        return move, stop
    return Finish(ending=stop), None


def after_reply(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome) -> Transition:
    """Record the reply together with what follows from it. Nothing is written when somebody else was first."""
    match judged.move:
        case Infer() if judged.held:
            crossing = _hold(tx, rt, at, scene, judged)
        case Infer():
            rounds = 1 if judged.plan is None else 0  # the end of planning is no round
            crossing = _ask_again(tx, rt, at, scene, judged, rounds=rounds)
        case Plan():
            raise AssertionError(f"strategy {at.run.strategy!r} answers a reply with a plan to be made")
        case RunTools() | RunPlan():
            crossing = _open_round(tx, rt, at, scene, judged)
        case Finish(ending=how):
            crossing = _finish(tx, rt, at, scene, judged, how)
        case other:
            assert_never(other)
    if crossing.ours and not isinstance(judged.move, RunTools | RunPlan):
        plugins.note_beside(tx, scene.hearing)
    return crossing


def _ask_again(
    tx: Tx,
    rt: Runtime,
    at: RunClaim,
    scene: ModelRequest,
    judged: ReplyOutcome,
    *,
    rounds: int,
    notes: Sequence[journal.Row] = (),
) -> Transition:
    to, until, usage = (at.step + 1, Phase.INFERENCE), rt.leases.until(rt.now()), judged.reply.usage
    if not runs.open_step(tx, at, to=to, rounds=rounds, usage=usage, lease_until=until):
        return NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged), *notes])
    return Transition(intents=[Advance(run_id=at.run.id, group=at.run.group, of=at.run.subject)])


def _hold(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome) -> Transition:
    assert scene.terms is not None
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    crossing = stepping.hold_reply(
        tx, rt, at, judged.reply, rows, kept=judged.keeps, withheld=list(scene.withheld), sent=scene.terms.sent
    )
    if not crossing.held or not at.run.suspended or not may_go_on(tx, at.run, scene.agent.tool_mode):
        return crossing
    # Somebody decided while the model was asked: what waited goes on, and the run comes back to its consumer.
    return replace(crossing, intents=[*crossing.intents, wake(tx, rt, at.run)])


def _open_round(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome) -> Transition:
    run, step, until = at.run, at.step + 1, rt.leases.until(rt.now())
    if not runs.open_step(tx, at, to=(step, Phase.TOOL_ROUND), rounds=1, usage=judged.reply.usage, lease_until=until):
        return NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)])
    asked, begun = open_calls(tx, rt, run, scene, step, judged)
    if judged.keeps is not None:
        runs.keep_ending(tx, run.id, judged.keeps)
    runnable = [call.id for call in asked if call.status is CallStatus.NEW and not call.parked]
    if not runnable:
        return Transition(intents=[*begun, Advance(run_id=run.id, group=run.group, of=run.subject)])
    at_once = 1 if scene.agent.tool_mode is ToolMode.SEQUENTIAL else scene.agent.concurrency
    batches = spread(runnable, at_once)
    fan_out = CallTools(
        run_id=run.id, thread_id=run.thread_id, step=step, batches=batches, group=run.group, of=run.subject,
        tools={call.id: call.tool for call in asked},
    )  # fmt: skip
    return Transition(intents=[*begun, fan_out])


def _ask_to_repair(
    tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome, why: str
) -> Transition:
    """Once: the note in the journal, in the commit of the reply it is about, is what tells that it was given."""
    run = at.run
    note = journal.entry(run.thread_id, run.id, at.step, Checkpoint.OUTPUT_REFUSED, {"why": why}, rt.now())
    crossing = _ask_again(tx, rt, at, scene, judged, rounds=0, notes=[note])
    if crossing.ours and judged.reply.asks:
        _close_unrun(tx, rt, at, scene, judged.reply)
    return crossing


def _finish(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome, how: Ending) -> Transition:
    """A run that would end of itself goes on instead, if a message waits to be taken in."""
    if how.reason is not Reason.NATURAL_END:
        return _end(tx, rt, at, scene, judged, how)
    crossing = _end(tx, rt, at, scene, judged, how, unless_steered=True)
    if crossing.ours or (waiting := steering.who_waits(tx, rt, at, scene.agent.limits)) is None:
        return crossing
    return _go_on_with(tx, rt, at, scene, judged, waiting) if waiting else _end(tx, rt, at, scene, judged, how)


def _go_on_with(
    tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome, waiting: Sequence[Turn]
) -> Transition:
    reply = judged.reply
    behind = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    first = at.step + 1 + bool(reply.asks)  # asks that are not carried out have their step too
    crossing = steering.take_in(tx, rt, at, waiting, first=first, behind=behind, rounds=1, usage=reply.usage)
    if crossing.ours and reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    return crossing


def _end(
    tx: Tx,
    rt: Runtime,
    at: RunClaim,
    scene: ModelRequest,
    judged: ReplyOutcome,
    how: Ending,
    *,
    unless_steered: bool = False,
) -> Transition:
    reply = judged.reply
    if is_held_up(tx, at.run, how):  # so this is not the answer, and need not fit
        return _finish_later(tx, rt, at, scene, judged, how, unless_steered=unless_steered)
    match judged.output:
        case Refused(why=why):
            if unless_steered and steering.who_waits(tx, rt, at, scene.agent.limits):
                return NOT_OURS  # a message waits, so this is not the answer either
            repair = _in_time(at.run, scene.agent, Infer(), rt.now())
            if not isinstance(repair, Finish):
                return _ask_to_repair(tx, rt, at, scene, judged, why)
            how = repair.ending
        case Ended(ending=ended):
            how = ended
    if not runs.finish(tx, at, how, usage=reply.usage, now=rt.now(), unless_steered=unless_steered):
        return NOT_OURS
    if at.run.suspended:  # such an end waits for nobody
        endings.close_open_calls(tx, rt, at.run, code="run_ended", content=NOT_RUN)
    if reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    text = None if scene.asks_planner else reply.text
    told = {} if scene.planning is None else planning.told(scene.planning)
    told |= judged.output.told() if isinstance(judged.output, Accepted) else {}
    intents = endings.close_turn(tx, rt, at.run, at.step, how, rows, text=text, told=told)
    return Transition(intents=intents, ended=how, usage=reply.usage)


def _finish_later(
    tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome, how: Ending, *, unless_steered: bool
) -> Transition:
    """The reply would end the run, and calls of it still wait for a decision: it is kept, and the run waits with
    them.
    """
    reply = judged.reply
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    crossing = suspend_run(
        tx, rt, at, to=at.step + 1, kept=how, rows=rows, mode=scene.agent.tool_mode, usage=reply.usage, rounds=1,
        unless_steered=unless_steered,
    )  # fmt: skip
    if crossing.ours and reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    return crossing


def _close_unrun(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest, reply: Reply) -> None:
    """A reply that was cut, refused or came too late may hold half a call: closed as not run, never carried out."""
    asked = [not_run(call) for call in new_calls(rt, at.run, scene, dict(enumerate(reply.asks)))]
    now = rt.now()
    calls.open_round(tx, at.run, at.step + 1, asked, now=now, lease_until=now)


def _reply_row(rt: Runtime, at: RunClaim, scene: ModelRequest, judged: ReplyOutcome) -> journal.Row:
    run = at.run
    body = {**body_of(judged.reply), "worker": rt.worker}
    kind = Checkpoint.REPLY_HELD if judged.held else Checkpoint.ASSISTANT_TURN
    if judged.plan is not None and scene.planning is not None:
        body |= state.body_of(scene.planning, judged.plan)
        kind = kind if judged.held else Checkpoint.PLAN
    return journal.entry(run.thread_id, run.id, at.step, kind, body, rt.now())


def _round_rows(tx: Tx, rt: Runtime, at: RunClaim, scene: ModelRequest) -> list[journal.Row]:
    return rows_before(tx, rt, at.run, scene.known)
