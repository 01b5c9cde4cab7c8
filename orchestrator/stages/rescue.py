"""Beside the line: truth is asked what should be moving, and the wake-ups are sent again.

Every message may be lost and every worker may die; this stage is why that costs seconds and not turns. It looks for
leases that ran out, rounds that are settled and not passed, turns that wait although there is budget, and turns past
their deadline, in bounded batches. Several may sweep at once: rows are skipped where another holds them, and what is
sent twice does nothing twice. It does not promise that only the lost is sent again.

Who judges a lease must know that its holder could have renewed it: see `gateways/steadiness.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from chordage.orchestrator.core.agent import Effect, ToolMode
from chordage.orchestrator.core.approvals import (
    Action,
    DecisionRequest,
    OnExpiry,
    Suspension,
    SuspensionStatus,
    about_the_unknown,
)
from chordage.orchestrator.core.errors import Conflict, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import (
    Advance,
    CallTool,
    CancelTurn,
    CommitRound,
    Dispatch,
    Hint,
    Intent,
    StepOn,
    lone_call,
)
from chordage.orchestrator.core.reasons import Ending, Reason, cancelled, failed
from chordage.orchestrator.core.records import Call, Run, Subject
from chordage.orchestrator.core.status import CallStatus, Disposition, RunStatus
from chordage.orchestrator.core.stepping import Drive, OnHeld
from chordage.orchestrator.core.transcript import OUTCOME_UNKNOWN, UNKNOWN_TEXT
from chordage.orchestrator.run import endings, limits
from chordage.orchestrator.run.approvals import take_decisions, tell
from chordage.orchestrator.run.waiting import asks_about_unknown, suspend_call
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, children, fairness, groups, replays, runs, stepped, turns
from chordage.orchestrator.store.approvals import escalate, expired, load
from chordage.orchestrator.store.calls import CallOutcome
from chordage.orchestrator.store.database import Tx

log = structlog.get_logger()

NOBODY = "Nobody decided in time."
NOT_MOVED_ON = "The consumer of the run did not move it on in time."
BATCH = 500  # rows of one transaction


def rescue(rt: Runtime) -> list[Intent]:
    """Each part by itself: what one of them has found is sent, whatever happens to the next."""
    intents: list[Intent] = []
    parts = (
        limits.sweep,
        *_of_leases(rt),
        _questions,
        _held,
        _expired_turns,
        _unwanted,
        _stranded,
        _queued,
        _copies,
    )
    for part in parts:
        try:
            intents += part(rt)
        except Unavailable as error:
            log.warning("the sweep was cut short", part=_name(part), error=str(error))
            if not intents:
                raise
            break
        except Exception:
            log.exception("a part of the sweep failed", part=_name(part))
    return intents


Part = Callable[[Runtime], list[Intent]]


def _of_leases(rt: Runtime) -> tuple[Part, ...]:
    """Those that judge a lease nobody has renewed; none, while it may be that nobody could. They judge by the clock as
    it was before that was asked: if the process stops behind this line, it goes on with the old time, and finds nobody.
    """
    now = rt.now()
    if rt.steadiness is not None and not rt.steadiness.holds():
        log.debug("leases are not judged: the heartbeat of this process was interrupted, or has just begun")
        return ()
    return partial(_runs, now=now), partial(_calls, now=now)


def _name(part: Part) -> str:
    return part.func.__name__ if isinstance(part, partial) else part.__name__


def _runs(rt: Runtime, now: datetime) -> list[Intent]:
    with rt.store.read() as tx:
        seen = runs.expired(tx, now, BATCH)
    # Redis is asked outside the transaction: while it is paused, no row stays locked.
    keys = [run.work_key(step) for run in seen if (step := run.next_inference)]
    in_hand, begun = rt.locks.alive(keys), rt.locks.begun(keys)
    poisoned: list[Run] = []
    intents: list[Intent] = []
    with rt.store.write() as tx:
        for run in runs.expired(tx, now, BATCH, among=[run.id for run in seen]) if seen else ():
            follow = _see_to_run(tx, rt, run, in_hand, begun, now)
            if follow is None:
                poisoned.append(run)
            else:
                intents += follow
    for run in poisoned:  # each by itself: an end locks further runs, of whoever asked this one
        intents += _end_poisoned(rt, run, _poison(rt, run))
    return intents


def _see_to_run(
    tx: Tx, rt: Runtime, run: Run, in_hand: set[str], begun: set[str], now: datetime
) -> list[Intent] | None:
    """None: it has taken too many workers with it."""
    step = run.next_inference
    if step is None:  # its calls have leases of their own
        runs.push_lease(tx, run, lease_until=rt.leases.until(now), resends=run.resends, expiries=run.expiries)
        return []
    if run.work_key(step) in in_hand:
        runs.push_lease(tx, run, lease_until=_soon(rt, now), resends=run.resends, expiries=run.expiries)
        return []
    expiries = run.expiries + _had_a_holder(run, begun=run.work_key(step) in begun)
    return None if expiries >= rt.leases.poison_after else [_wake(tx, rt, run, expiries, now)]


def _had_a_holder(run: Run, *, begun: bool) -> bool:
    """Whether the lease that ran out was somebody's; else only a wake-up was lost. The first to work on a step takes no
    token: the heartbeat puts it on record, and for what ends before the first beat there is a mark in Redis. Whoever
    works on it after a wake-up of ours takes one.
    """
    return run.claim_token is not None or run.claim_worker is not None or (begun and not run.resends)


def _soon(rt: Runtime, now: datetime) -> datetime:
    return now + timedelta(seconds=rt.leases.sweep / 2)


def _wake(tx: Tx, rt: Runtime, run: Run, expiries: int, now: datetime) -> Intent:
    until = rt.leases.until_after_resend(now, run.resends)
    runs.push_lease(tx, run, lease_until=until, resends=run.resends + 1, expiries=expiries)
    log.info("run woken", run=run.id, step=run.step, resends=run.resends + 1, expiries=expiries)
    return Advance(run_id=run.id, group=run.group, of=run.subject)


def _poison(rt: Runtime, run: Run) -> Ending:
    log.error("run is poison", run=run.id, step=run.step, worker=run.claim_worker)
    detail = f"{rt.leases.poison_after} workers died at step {run.step}; the last was {run.claim_worker}"
    return failed("poison", detail)


def _calls(rt: Runtime, now: datetime) -> list[Intent]:
    intents: list[Intent] = []
    poisoned: list[tuple[Run, Call, Ending]] = []
    unknown: list[tuple[Run, Call]] = []
    agents: dict[str, str] = {}
    with rt.store.write() as tx:
        for call in calls.expired(tx, now, BATCH):
            run = runs.load(tx, call.run_id)
            assert run is not None
            agents[run.id] = run.agent
            if call.status is CallStatus.RUNNING and call.effect is Effect.UNSAFE and call.worker is not None:
                unknown.append((run, call))
                continue
            follow = _see_to_call(tx, rt, call, run, now)
            if follow is None:
                poisoned.append((run, call, _poisoned_by(rt, call, run)))
            else:
                intents += follow
    # In transactions that lock the run first, as everybody does who ends one or puts a call of it aside.
    for run, call, why in poisoned:
        intents += _end_poisoned(rt, run, why, by=call)
    for run, call in unknown:
        intents += _close_unknown(rt, run, call, now)
    return _within_the_cap(rt, intents, agents)


def _end_poisoned(rt: Runtime, run: Run, why: Ending, *, by: Call | None = None) -> list[Intent]:
    """Unless it has moved since it was judged: whoever was given up for dead was only late. `by`: the call whose
    workers have died.
    """
    with rt.store.write() as tx:
        now_run = runs.lock(tx, run.id)
        held = now_run if by is None else calls.load(tx, by.id, lock=True)
        if now_run is None or held is None or _lease(held) != _lease(by or run):
            return []
        ended = endings.end_run(tx, rt, now_run, why, content=UNKNOWN_TEXT)
    if ended is not None:
        endings.tell_the_end(rt, run)
    return ended or []


def _lease(held: Run | Call) -> tuple[object, ...]:
    return held.status, held.claim_token, held.lease_until, held.resends, held.expiries


def _within_the_cap(rt: Runtime, intents: Sequence[Intent], agent_of: Mapping[str, str]) -> list[Intent]:
    """Lost calls of an agent that caps how many run at once are sent as one batch: they never exceed the cap."""
    kept: list[Intent] = []
    batches: dict[str, CallTool] = {}
    for intent in intents:
        if not isinstance(intent, CallTool) or not _is_capped(rt, agent_of[intent.run_id]):
            kept.append(intent)
        elif (before := batches.get(intent.run_id)) is None:
            batches[intent.run_id] = intent
        else:
            batches[intent.run_id] = replace(
                before, call_ids=(*before.call_ids, *intent.call_ids), tools={**before.tools, **intent.tools}
            )
    return [*kept, *batches.values()]


def _is_capped(rt: Runtime, agent: str) -> bool:
    try:
        spec = rt.agents.get(agent)
    except UserError:
        return True
    return spec.concurrency is not None or spec.tool_mode is ToolMode.SEQUENTIAL


def _see_to_call(tx: Tx, rt: Runtime, call: Call, run: Run, now: datetime) -> list[Intent] | None:
    """None: it has taken too many workers with it."""
    expiries = call.expiries + (call.status is CallStatus.RUNNING and call.worker is not None)
    if expiries >= rt.leases.poison_after:
        return None
    until = rt.leases.until_after_resend(now, call.resends)
    calls.push_lease(tx, call, lease_until=until, resends=call.resends + 1, expiries=expiries)
    log.info("call woken", call=call.id, run=run.id, resends=call.resends + 1, expiries=expiries)
    return [lone_call(run, call)]


def _poisoned_by(rt: Runtime, call: Call, run: Run) -> Ending:
    log.error("call is poison", call=call.id, tool=call.tool, run=run.id)
    return failed("poison", f"tool {call.tool!r} took {rt.leases.poison_after} workers with it")


def _close_unknown(rt: Runtime, run: Run, call: Call, now: datetime) -> list[Intent]:
    """An unsafe call whose worker died is never run again blindly: a person is asked, or the model is told that nobody
    knows.
    """
    log.warning("outcome of an unsafe call is unknown", call=call.id, tool=call.tool, run=run.id, worker=call.worker)
    if asks_about_unknown(rt, run.agent):
        question = about_the_unknown(call.tool)
        suspend_call(rt, call, run.agent, call.claim_token, question, seen_lease=call.lease_until)
    else:
        outcome = CallOutcome(
            status=CallStatus.FAILED, code=OUTCOME_UNKNOWN, content=UNKNOWN_TEXT, full=None, worker=call.worker or "",
            started_at=call.started_at or now, ended_at=now,
        )  # fmt: skip
        with rt.store.write() as tx:
            seen = calls.load(tx, call.id, lock=True)
            if seen is not None and seen.lease_until == call.lease_until:  # nobody has renewed it since
                calls.settle(tx, call, call.claim_token, outcome)
    return [CommitRound(run_id=run.id, step=run.step, group=run.group, of=run.subject)]


def _questions(rt: Runtime) -> list[Intent]:
    """Questions that nobody answered in time, each as whoever asked laid down."""
    with rt.store.read() as tx:
        late = expired(tx, rt.now(), BATCH)
    intents: list[Intent] = []
    for asked in late:  # each by itself: one that cannot be answered keeps none of the others
        try:
            intents += _answer_for_nobody(rt, asked)
        except UserError as error:
            log.warning("a question could not be closed", suspension=asked.id, error=str(error))
    return intents


def _answer_for_nobody(rt: Runtime, asked: Suspension) -> list[Intent]:
    log.info("a question was not answered in time", suspension=asked.id, call=asked.call_id, then=asked.on_expiry)
    match asked.on_expiry:
        case OnExpiry.ESCALATE:
            with rt.store.write() as tx:
                escalate(tx, asked.id, rt.now())
            rt.events.emit(asked.run_id, "call.overdue", call=asked.call_id, suspension=asked.id)
            return []
        case OnExpiry.CANCEL_RUN:
            return _cancel_undecided(rt, asked)
        case OnExpiry.DENY:
            answer = DecisionRequest(target=asked.id, action=Action.CANCEL, reason=NOBODY)
        case OnExpiry.DEFAULT:
            answer = DecisionRequest(target=asked.id, action=Action.RESUME, payload=asked.default, reason=NOBODY)
    try:
        decided, intents = rt.store.insist(lambda tx: take_decisions(tx, rt, [answer], [asked], "expiry"))
    except Conflict:  # somebody was just in time
        return []
    tell(rt, decided)
    return intents


def _cancel_undecided(rt: Runtime, asked: Suspension) -> list[Intent]:
    with rt.store.write() as tx:
        run = runs.lock(tx, asked.run_id)
        now_asked = load(tx, asked.id)
        if run is None or now_asked is None or now_asked.status is not SuspensionStatus.OPEN:
            return []  # somebody was just in time
        ended = endings.end_run(tx, rt, run, cancelled(NOBODY), content=NOBODY)
    if ended is not None:
        endings.tell_the_end(rt, run)
    return ended or []


def _held(rt: Runtime) -> list[Intent]:
    """Stepped runs that nobody moved on in time."""
    with rt.store.read() as tx:
        late = stepped.overdue(tx, rt.now(), BATCH)
    return [intent for turn_id, run_id in late for intent in _no_longer_held(rt, turn_id, run_id)]


def _no_longer_held(rt: Runtime, turn_id: str, run_id: str | None) -> list[Intent]:
    now = rt.now()
    with rt.store.write() as tx:
        run = runs.lock(tx, run_id) if run_id else None
        row = stepped.load(tx, turn_id, lock=True)
        if row is None or row.held_until is None or row.held_until > now:
            return []  # somebody was just in time
        if run is None or run.status is not RunStatus.WAITING or run.reason is not Reason.HELD:
            stepped.change(tx, row, held_until=None)
            return []
        if row.drive is Drive.STEP and row.on_held is OnHeld.CANCEL:
            ended = endings.end_run(tx, rt, run, cancelled(NOT_MOVED_ON), content=NOT_MOVED_ON)
            stepped.change(tx, row, held_until=None)
        elif row.drive is Drive.STEP and (row.on_held is OnHeld.PARK or row.error is not None):
            # A request that failed is not made again and again with nobody there.
            stepped.change(tx, row, held_until=None, parked=True)
            return []
        else:
            ended, drive = None, Drive.ONCE if row.drive is Drive.STEP else row.drive
            stepped.change(tx, row, held_until=rt.leases.until(now), drive=drive)
    if ended is None:
        return [StepOn(run_id=run.id, group=run.group, of=run.subject)]
    endings.tell_the_end(rt, run)
    return ended


def _expired_turns(rt: Runtime) -> list[Intent]:
    with rt.store.read() as tx:
        overdue = turns.overdue(tx, rt.now(), BATCH)
    return [intent for turn_id in overdue for intent in _expire(rt, turn_id)]


def _expire(rt: Runtime, turn_id: str) -> list[Intent]:
    with rt.store.write() as tx:
        freed = endings.drop_queued(tx, rt, turn_id, Disposition.EXPIRED, "its deadline passed before it could start")
    if freed is not None:
        rt.events.turn_done(turn_id)
        endings.log_unstarted(turn_id, Disposition.EXPIRED)
    return freed or []


def _unwanted(rt: Runtime) -> list[Intent]:
    """Children that nobody waits for any more."""
    with rt.store.read() as tx:
        found = children.unwanted(tx, BATCH)
    why = "whoever had asked does not wait any more"
    return [CancelTurn(turn_id=turn_id, reason=why, of=of) for turn_id, of in found]


def _stranded(rt: Runtime) -> list[Intent]:
    """A line whose head nobody made ready: it came while the one ahead of it both started and ended."""
    now = rt.now()
    with rt.store.write() as tx:
        before = now - timedelta(seconds=rt.leases.sweep)
        found = turns.stranded(tx, before, BATCH, look_again=now + fairness.RESEND_BUSY)
    intents: list[Intent] = []
    for thread_id in found:
        with rt.store.write() as tx:
            freed = turns.make_next_ready(tx, thread_id, rt.now())
        log.info("a line stood still", thread=thread_id, freed=freed)
        intents += [Dispatch(group=freed)] if freed else []
    return intents


def _copies(rt: Runtime) -> list[Intent]:
    """Signed bytes that count no longer are forgotten."""
    now = rt.now()
    with rt.store.read() as tx:
        over = replays.are_over(tx, now)
    if over:
        with rt.store.write() as tx:
            replays.forget(tx, now, BATCH)
    return []


def _queued(rt: Runtime) -> list[Intent]:
    """A dispatch for every queued turn that could start, as far as the budget reaches, and not over and over."""
    with rt.store.single() as tx:
        fairness.wake(tx, rt.now(), BATCH)
    return [intent for group in Group for intent in _queued_in(rt, group)]


def _queued_in(rt: Runtime, group: Group) -> list[Intent]:
    """Where wake-ups were lost, those of turns beyond the budget were too: the runs that end send for them."""
    with rt.store.read() as tx:
        free, hand_on = groups.places(tx, group, default=rt.budgets[group])
        waiting = fairness.next_turns(tx, group, rt.now(), min(free, BATCH)) if free else []
    nudged: list[tuple[str, Subject]] = []
    if waiting:
        nothing_waits = rt.queues.is_empty(group.queue)
        with rt.store.write() as tx:
            nudged = fairness.nudge(tx, [turn_id for turn_id, _ in waiting], rt.now(), nothing_waits=nothing_waits)
    intents: list[Intent] = [Dispatch(group=group, hint=Hint(turn_id, of.thread_id), of=of) for turn_id, of in nudged]
    if not hand_on and (nudged or not free) and groups.await_place(rt.store, group) and not free:
        intents.append(Dispatch(group=group))  # runs may have ended before they knew of it
    return intents
