"""What a run does next, decided in one place.

`next_step` decides where there is no new reply: the run has just started, or its round is settled. `record_reply`
decides in the very transaction that records a reply. A reply and what follows from it are one commit: there is no
moment at which one is known and the other is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, assert_never

import structlog

from chordage.orchestrator.core import prices
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import LostRace, UserError
from chordage.orchestrator.core.intents import Advance, CallModel, Intent, advance
from chordage.orchestrator.core.model import Reply, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.output import Accepted, Ended, Refused, Verdict
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending, Reason, failed, out_of_time
from chordage.orchestrator.core.records import Answer, Checkpoint, History, NewCall, Phase, Run, Turn
from chordage.orchestrator.core.rounds import distinct
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.text import clean_reply
from chordage.orchestrator.core.transcript import NOT_RUN, body_of
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.run import (
    approvals,
    checkpoints,
    endings,
    limits,
    output,
    placing,
    planning,
    plugins,
    rounds,
    steering,
    stepping,
    waiting,
)
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome
from chordage.orchestrator.run.placing import UnderWay
from chordage.orchestrator.run.stepping import Recorded
from chordage.orchestrator.run.unit import LiveEvent, RunContinues, RunEnded, Unit, record
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, runs
from chordage.orchestrator.store.runs import OpenedRound, RunClaim
from chordage.orchestrator.strategies import loading

log = structlog.get_logger()


def choose_move(
    run: Run,
    agent: AgentSpec,
    reply: Reply | None,
    now: datetime,
    *,
    plans: Planning | None = None,
    plan: PlanDecision | None = None,
) -> Move:
    """What the strategy wants, unless the time is up. A reply that came too late is kept, and the turn has failed."""
    allowed = run.limits(agent.limits)
    if allowed.timeout is not None and run.worked(now) >= allowed.timeout:
        return Finish(ending=out_of_time(allowed.timeout))
    view = View(rounds=run.rounds, reply=reply, max_rounds=allowed.max_rounds, planning=plans, plan=plan)
    return loading.decide(run.strategy, view)


# Without a new reply.


class Transition(NamedTuple):
    """One thing that may come before the strategy is asked. `applies` costs nothing; `take` returns None where the run
    continues with the next of the list.
    """

    applies: Callable[[Run, AgentSpec], bool]
    take: Callable[[Runtime, RunClaim, AgentSpec], list[Intent] | None]


def _time_limit(rt: Runtime, claim: RunClaim, agent: AgentSpec) -> list[Intent] | None:
    ending = limits.exceeded(rt, claim.run, agent)
    return None if ending is None else limits.end_out_of_time(rt, claim, ending)


def _held_by_consumer(rt: Runtime, claim: RunClaim, agent: AgentSpec) -> list[Intent] | None:
    return stepping.hold_again(rt, claim.run, agent)


def _decided_calls(rt: Runtime, claim: RunClaim, agent: AgentSpec) -> list[Intent] | None:
    return approvals.resume_decided(rt, claim.run, agent)


def _kept_ending(rt: Runtime, claim: RunClaim, _agent: AgentSpec) -> list[Intent] | None:
    assert claim.run.kept is not None
    return endings.end_here(rt, claim, claim.run.kept)


def _strategy(rt: Runtime, claim: RunClaim, agent: AgentSpec) -> list[Intent] | None:
    match choose_move(claim.run, agent, None, rt.now()):
        case Infer() | Plan():
            return None
        case Finish(ending=ending):
            return endings.end_here(rt, claim, ending)
        case RunTools() | RunPlan():
            raise AssertionError(f"strategy {claim.run.strategy!r} runs tools before the model asked for any")


def _steers_of_consumer(rt: Runtime, claim: RunClaim, _agent: AgentSpec) -> list[Intent] | None:
    return stepping.add_steers(rt, claim.run)


def _is_stepped(run: Run, _agent: AgentSpec) -> bool:
    return run.control is Control.STEP


TRANSITIONS = (
    Transition(lambda run, agent: run.may_have_timeout(agent.limits), _time_limit),
    Transition(_is_stepped, _held_by_consumer),
    Transition(lambda run, _agent: bool(run.suspended), _decided_calls),
    Transition(lambda run, _agent: run.kept is not None, _kept_ending),
    Transition(lambda _run, _agent: True, _strategy),
    Transition(_is_stepped, _steers_of_consumer),
)


def next_step(rt: Runtime, run: Run, past: History | None = None) -> list[Intent]:
    """The first of TRANSITIONS that applies and has something to do; otherwise the model is asked. `past`: as for
    `CallModel`.
    """
    step = run.next_inference
    if step is None:
        return []
    claim = RunClaim(run=run, step=step, token=run.claim_token)
    try:
        agent = rt.agent_of(run)
        for each in TRANSITIONS:
            if each.applies(run, agent) and (intents := each.take(rt, claim, agent)) is not None:
                return intents
    except UserError as error:
        return endings.retry_unknown_agent(rt, claim, error)
    except Exception:
        endings.record_crash(rt, run)
        raise
    return [CallModel(run_id=run.id, step=step, group=run.group, of=run.subject, seen=run, past=past)]


# With a reply: judged before the transaction, recorded in it.


def judge(rt: Runtime, request: ModelRequest, reply: Reply, plan: PlanDecision | None = None) -> ReplyOutcome:
    """Ask the plugins and the strategy, and check each call. A broken plugin ends the run; the reply is kept."""
    reply = with_cost(rt, reply)
    run, agent, session = request.run, request.agent, request.session
    reply = clean_reply(reply)
    asks_of_reply = () if request.asks_planner else distinct(reply.asks, request.step)
    reply = reply if asks_of_reply == reply.asks else replace(reply, asks=asks_of_reply)
    try:
        stop = None if session is None else session.after_inference(reply=reply)
        if run.control is Control.STEP and _holds(request):
            return ReplyOutcome(reply=reply, move=Infer(), plan=plan, keeps=stop, held=True)
        wanted = choose_move(run, agent, reply, rt.now(), plans=request.planning, plan=plan)
        if request.form is not None:
            wanted = output.complete_only(wanted, reply)
        move, keeps = _with_stop(wanted, stop)
        asks = _asks(move, request, reply)
        if not asks:
            verdict = None if request.form is None else _verdict(rt, request, reply, wanted, stop)
            return ReplyOutcome(reply=reply, move=move, plan=plan, keeps=keeps, output=verdict)
        beyond, too_many = rounds.beyond_the_limit(rt, run, agent, asks)
        asked, sessions = rounds.check_calls(rt, request, asks, beyond)
    except PluginFailed as error:
        return ReplyOutcome(reply=reply, plan=plan, move=Finish(ending=failed("plugin", str(error))))
    return ReplyOutcome(
        reply=reply, move=move, plan=plan, asked=asked, keeps=keeps or too_many, call_sessions=sessions,
        placed=placing.plan_round(rt, request, asked),
    )  # fmt: skip


def with_cost(rt: Runtime, reply: Reply) -> Reply:
    """The reply with its cost, by the price of this day. It is recorded with its tokens and never computed again.

    Where no model answered there is no cost: of an attempt that failed, a provider tells no tokens. An answer whose
    tokens it does not tell has an unknown one.
    """
    usage, book = reply.usage, rt.prices()
    has_tokens = bool(usage.input_tokens or usage.output_tokens)
    if not has_tokens and all(attempt.fault is not None for attempt in reply.attempts):
        return reply
    cost = prices.cost_of(usage, book, reply.model, rt.now().date()) if book and has_tokens else None
    return replace(reply, usage=replace(usage, cost_nanos=cost, unpriced=int(cost is None)))


def _holds(request: ModelRequest) -> bool:
    return stepping.holds(request.run, Recorded.PLAN if request.asks_planner else Recorded.REPLY)


def _asks(move: Move, request: ModelRequest, reply: Reply) -> dict[int, ToolAsk]:
    """The calls that a move opens, each with its place."""
    match move:
        case RunTools():
            return dict(enumerate(reply.asks))
        case RunPlan():
            return planning.asks_of(move, request.step, request.agent)
        case _:
            return {}


def _verdict(rt: Runtime, request: ModelRequest, reply: Reply, wanted: Move, stop: Ending | None) -> Verdict | None:
    """A run that a plugin ends asks for no repair, but an answer that fits is not lost."""
    assert request.form is not None
    verdict = output.verdict(rt, request.run, request.form, reply, wanted)
    return verdict if stop is None or isinstance(verdict, Accepted) else None


def _with_stop(move: Move, stop: Ending | None) -> tuple[Move, Ending | None]:
    """Where a plugin stops a run, the tools of the round finish first; any other end comes at once. An error wins."""
    if stop is None or (isinstance(move, Finish) and move.ending.reason is Reason.ERROR):
        return move, None
    if isinstance(move, RunTools | RunPlan) and stop.reason is Reason.STOPPED:
        return move, stop
    return Finish(ending=stop), None


def record_reply(rt: Runtime, request: ModelRequest, outcome: ReplyOutcome, under_way: UnderWay | None) -> list[Intent]:
    """Record the reply together with what follows from it, unless another worker was first. `under_way`: a call of it
    that has begun.
    """
    intents = record(rt, lambda unit: _write_reply(unit, request, outcome, under_way))
    if intents is None and _would_end_by_itself(outcome):  # perhaps a message waits, with which it continues instead
        intents = record(rt, lambda unit: _write_reply(unit, request, outcome, under_way, look_for_messages=True))
    if intents is None:
        log.warning("late reply refused", run=request.run.id, step=request.step, epoch=request.run.epoch)
    return intents or []


def _would_end_by_itself(outcome: ReplyOutcome) -> bool:
    return isinstance(outcome.move, Finish) and outcome.move.ending.reason is Reason.NATURAL_END


def _write_reply(
    unit: Unit,
    request: ModelRequest,
    outcome: ReplyOutcome,
    under_way: UnderWay | None,
    *,
    look_for_messages: bool = False,
) -> None:
    """Raises LostRace: nothing is written. The statements need no answer from one another, so they share trips."""
    match outcome.move:
        case Infer() if outcome.held:
            _hold(unit, request, outcome)
        case Infer():
            _ask_again(unit, request, outcome, rounds=0 if outcome.plan is not None else 1)
        case Plan():
            raise AssertionError(f"strategy {request.run.strategy!r} answers a reply with a plan to be made")
        case RunTools() | RunPlan():
            _open_round(unit, request, outcome, under_way)
        case Finish(ending=ending) if look_for_messages:
            _take_in_or_end(unit, request, outcome, ending)
        case Finish(ending=ending):
            _end(unit, request, outcome, ending, unless_steered=ending.reason is Reason.NATURAL_END)
        case other:
            assert_never(other)
    unit.announce(_reply_event(request, outcome), first=True)
    if request.session is not None and not isinstance(outcome.move, RunTools | RunPlan):
        plugins.store_notes_or_log(unit.tx, request.session)


def _reply_event(request: ModelRequest, outcome: ReplyOutcome) -> LiveEvent:
    reply, plan = outcome.reply, outcome.plan
    if plan is not None:
        made = {"step": request.step, "ends": plan.ends, "commands": len(plan.commands)}
        return LiveEvent(run_id=request.run.id, kind="plan.made", data=made)
    replied = {"step": request.step, "text": reply.text, "calls": len(reply.asks)}
    return LiveEvent(run_id=request.run.id, kind="model.replied", data=replied)


def _continues(unit: Unit, run: Run) -> None:
    """The worker that started the run makes its first request at once: its lock on the thread is fresh."""
    has_just_started = run.step == 1 and not run.resends and run.control is Control.AUTO
    if not has_just_started:
        unit.announce(RunContinues(run=run))


def _ask_again(
    unit: Unit, request: ModelRequest, outcome: ReplyOutcome, *, rounds: int, notes: Sequence[journal.Row] = ()
) -> None:
    run, usage = request.run, outcome.reply.usage
    to = (request.step + 1, Phase.INFERENCE)
    runs.open_step(
        unit.tx, request.claim, to=to, rounds=rounds, usage=usage, lease_until=unit.lease(), by=unit.rt.worker
    )
    journal.append(unit.tx, [*_rows(unit, request, outcome), *notes])
    unit.follow(advance(run))
    _continues(unit, run)


def _hold(unit: Unit, request: ModelRequest, outcome: ReplyOutcome) -> None:
    assert request.terms is not None
    run = request.run
    stepping.hold_reply(
        unit, request.claim, outcome.reply, _rows(unit, request, outcome), kept=outcome.keeps,
        withheld=list(request.withheld), sent=request.terms.sent,
    )  # fmt: skip
    if run.suspended and waiting.may_continue(unit, run, request.agent.tool_mode):
        waiting.resume_run(unit, run)  # a decision came while the model was asked; the run is held again after it


def _open_round(unit: Unit, request: ModelRequest, outcome: ReplyOutcome, under_way: UnderWay | None) -> None:
    run, step, usage = request.run, request.step + 1, outcome.reply.usage
    opened = runs.open_round(unit.tx, request.claim, to=step, usage=usage, lease_until=unit.lease(), by=unit.rt.worker)
    rows = _rows(unit, request, outcome)
    journal.append(unit.tx, rows)
    asked = rounds.open_calls(unit, request, step, outcome)
    if outcome.keeps is not None:
        runs.keep_ending(unit.tx, run.id, run.thread_id, outcome.keeps)
    if rounds.is_settled_here(asked, outcome, under_way):
        past = _continued(request, rows, rounds.answers(run, step, asked))
        unit.follow_result(lambda: _carry_on(opened(), past))
    else:
        rounds.send_placed(unit, run, request.agent, step, asked, outcome, under_way)
    for call in asked:
        if call.started_at is not None:
            _announce_begun(unit, run, call)
    _continues(unit, run)


def _continued(request: ModelRequest, rows: Sequence[journal.Row], answers: Sequence[Answer]) -> History | None:
    """The history behind a round of which every call is settled, as it would be read."""
    past = request.past
    if past is None or request.planning is not None:  # a plan is no part of the history
        return None
    return replace(
        past, entries=[*past.entries, *journal.unread_history(rows)], calls=[*past.calls, *answers], is_read=False
    )


def _carry_on(opened: OpenedRound, past: History | None) -> Advance:
    """This process alone knows of the step that follows. Once a call was suspended, its answer may change what was
    said, and once a message waits it comes next.
    """
    run = opened.run
    if past is not None:
        past = None if run.suspended or run.steers else replace(past, asked=opened.asked)
    return Advance(run_id=run.id, group=run.group, of=run.subject, seen=run, past=past)


def _announce_begun(unit: Unit, run: Run, call: NewCall) -> None:
    """A call that ran before its reply was recorded."""
    started = {"call": call.id, "tool": call.tool, "worker": call.worker}
    unit.announce(LiveEvent(run_id=run.id, kind="tool.started", data=started))
    if call.ended_at is not None:
        settled = {"call": call.id, "status": call.status.value, "code": call.code}
        unit.announce(LiveEvent(run_id=run.id, kind="tool.settled", data=settled))


def _take_in_or_end(unit: Unit, request: ModelRequest, outcome: ReplyOutcome, ending: Ending) -> None:
    """A run that would end by itself continues instead, if a message waits to be taken in."""
    messages = steering.waiting_messages(unit, request.claim, request.agent.limits)
    if messages is None:
        raise LostRace
    if messages:
        _take_in(unit, request, outcome, messages)
    else:
        _end(unit, request, outcome, ending)


def _take_in(unit: Unit, request: ModelRequest, outcome: ReplyOutcome, messages: Sequence[Turn]) -> None:
    reply = outcome.reply
    first = request.step + 1 + bool(reply.asks)  # asks that are not carried out have their step too
    behind = _rows(unit, request, outcome)
    steering.take_in(unit, request.claim, messages, first=first, behind=behind, rounds=1, usage=reply.usage)
    if reply.asks:
        rounds.close_calls(unit, request, reply)
    _continues(unit, request.run)


def _end(
    unit: Unit, request: ModelRequest, outcome: ReplyOutcome, ending: Ending, *, unless_steered: bool = False
) -> None:
    claim, run, reply = request.claim, request.run, outcome.reply
    if run.suspended and waiting.ends_after_decisions(unit, run, ending):  # so this is not the answer, and need not fit
        _end_later(unit, request, outcome, ending, unless_steered=unless_steered)
        return
    match outcome.output:
        case Refused(why=why):
            if unless_steered and steering.waiting_messages(unit, claim, request.agent.limits):
                raise LostRace  # a message waits, so this is not the answer either
            limit = run.limits(request.agent.limits).timeout
            if limit is None or run.worked(unit.now) < limit:
                _ask_for_repair(unit, request, outcome, why)
                return
            ending = out_of_time(limit)
        case Ended(ending=failure):
            ending = failure
    runs.finish(unit.tx, claim, ending, usage=reply.usage, now=unit.now, unless_steered=unless_steered)
    if run.suspended:  # an end that waits for no decision
        endings.close_open_calls(unit, run, code="run_ended", content=NOT_RUN)
    if reply.asks:
        rounds.close_calls(unit, request, reply)
    details = {} if request.planning is None else planning.details(request.planning)
    details |= outcome.output.details() if isinstance(outcome.output, Accepted) else {}
    text = None if request.asks_planner else reply.text
    rows = _rows(unit, request, outcome)
    unit.announce(RunEnded(run=run, ending=ending, usage=reply.usage))
    endings.close_turn(unit, run, request.step, ending, rows, text=text, details=details, is_last=True)


def _ask_for_repair(unit: Unit, request: ModelRequest, outcome: ReplyOutcome, why: str) -> None:
    """Once: the note in the journal, written with the reply it is about, says that it was done."""
    run = request.run
    note = journal.entry(run.thread_id, run.id, request.step, Checkpoint.OUTPUT_REFUSED, {"why": why}, unit.now)
    _ask_again(unit, request, outcome, rounds=0, notes=[note])
    if outcome.reply.asks:
        rounds.close_calls(unit, request, outcome.reply)


def _end_later(
    unit: Unit, request: ModelRequest, outcome: ReplyOutcome, ending: Ending, *, unless_steered: bool
) -> None:
    """The reply would end the run while calls of it wait for a decision: it is kept, and the run waits with them."""
    reply = outcome.reply
    waiting.suspend_run(
        unit, request.claim, to=request.step + 1, kept=ending, rows=_rows(unit, request, outcome),
        mode=request.agent.tool_mode, usage=reply.usage, rounds=1, unless_steered=unless_steered,
    )  # fmt: skip
    if reply.asks:
        rounds.close_calls(unit, request, reply)


def _rows(unit: Unit, request: ModelRequest, outcome: ReplyOutcome) -> list[journal.Row]:
    """The checkpoint of the round before, and the reply."""
    run = request.run
    checkpoint = checkpoints.of_round(unit, run, checkpoints.settled_calls(unit.tx, run, request.known))
    body = {**body_of(outcome.reply), "worker": unit.rt.worker}
    if request.claim.digest:
        body["agent_digest"] = request.claim.digest
    kind = Checkpoint.REPLY_HELD if outcome.held else Checkpoint.ASSISTANT_TURN
    if outcome.plan is not None and request.planning is not None:
        body |= state.body_of(request.planning, outcome.plan)
        kind = kind if outcome.held else Checkpoint.PLAN
    return [*checkpoint, journal.entry(run.thread_id, run.id, request.step, kind, body, unit.now)]
