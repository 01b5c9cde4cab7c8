"""Not in the line of a turn: every few seconds, query the database for work whose wake-up was lost, and send it again.

Every message may be lost and every worker may die; this stage is why that costs seconds and not turns. It looks for
leases that ran out, rounds that are settled and not passed, turns that wait although there is budget, and turns past
their deadline, in bounded batches. Several sweeps may run at once: rows that another holds are skipped, and what is
sent twice does nothing twice. It does not promise that only lost work is sent again.

A process that judges a lease must know that its holder could have renewed it: see `gateways/steadiness.py`. What a
process held that is gone is sent again without a wait for its leases, except calls that may have had an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog

from chordage.orchestrator.core.agent import Effect, ToolMode
from chordage.orchestrator.core.agent_versions import OfAgent
from chordage.orchestrator.core.approvals import (
    EXPIRY,
    UNANSWERED,
    UNDECIDED,
    UNKNOWN_TEXT,
    Action,
    DecisionRequest,
    OnExpiry,
    Suspension,
    SuspensionStatus,
    Why,
    about_the_unknown,
)
from chordage.orchestrator.core.errors import Conflict, Unavailable, UserError, WrongKey
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import (
    CallTool,
    CancelTurn,
    ContinueBulk,
    Dispatch,
    Hint,
    Intent,
    advance,
    commit_round,
    lone_call,
    step_on,
)
from chordage.orchestrator.core.metrics import CLAIMS_EXPIRED, RESCUES, Sums, count
from chordage.orchestrator.core.pruning import limits_for
from chordage.orchestrator.core.reasons import Ending, Reason, cancelled, failed
from chordage.orchestrator.core.records import Call, Run, Subject
from chordage.orchestrator.core.status import CallStatus, Disposition, RunStatus
from chordage.orchestrator.core.stepping import Drive, OnHeld
from chordage.orchestrator.core.transcript import OUTCOME_UNKNOWN
from chordage.orchestrator.run import approvals, endings, limits, pruning, subagents, waiting
from chordage.orchestrator.run.unit import LiveEvent, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals as suspensions
from chordage.orchestrator.store import (
    audit,
    bulk,
    calls,
    children,
    fairness,
    groups,
    metrics,
    processes,
    replays,
    runs,
    seldom_due,
    stepped,
    takeovers,
    turns,
)
from chordage.orchestrator.store.calls import CallOutcome
from chordage.orchestrator.store.takeovers import LostWork

log = structlog.get_logger()

NOT_MOVED_ON = "The consumer of the run did not move it on in time."
BATCH = 500  # rows of one transaction
TAKEN = timedelta(seconds=4)  # who takes a wake-up has ended by then, or its heartbeat has said who has it
BEFORE_ALL = datetime(1, 1, 2, tzinfo=UTC)
LATELY = timedelta(seconds=30)
LONG_GONE = timedelta(minutes=10)  # after which nothing of a process is looked for any more
Part = Callable[[Runtime], list[Intent]]


def rescue(rt: Runtime) -> list[Intent]:
    """Each part by itself: what one part finds is sent, whatever happens to the next."""
    intents: list[Intent] = []
    parts = (
        limits.sweep,
        rescue_left,
        *_of_leases(rt),
        _undecided,
        _held,
        _expired_turns,
        _unwanted_children,
        _stranded,
        _queued,
        _seldom_due,
        _old_turns,
    )
    for part in parts:
        name = part.func.__name__ if isinstance(part, partial) else part.__name__
        try:
            intents += part(rt)
        except WrongKey as error:  # of one row: what the other parts find is not held up
            log.error("a part of the sweep waits for a key", part=name, error=str(error))  # noqa: TRY400 - it says all
        except Unavailable as error:
            log.warning("the sweep was cut short", part=name, error=str(error))
            if not intents:
                raise
            break
        except Exception:
            log.exception("a part of the sweep failed", part=name)
    return intents


def rescue_left(rt: Runtime) -> list[Intent]:
    """Only what processes that are gone have left."""
    now = rt.now()
    with rt.store.read() as tx:
        gone = processes.gone(tx)
        lately = bool(gone) and processes.has_gone_since(tx, now - LATELY)
    if not gone:
        return []
    intents = _runs(rt, now, partial(runs.left, gone=gone), gone)
    intents += _calls(rt, now, partial(calls.left, gone=gone))
    with Unit(rt, rt.store.single) as unit:
        processes.forget(unit.tx, unit.now - LONG_GONE)
    return [*intents, *_untaken(rt, now, gone)] if lately else intents


def _untaken(rt: Runtime, now: datetime, gone: Collection[str]) -> list[Intent]:
    """A process that is gone may have taken messages of which nothing tells. A wake-up that is in no queue was taken,
    and who lives and took it has said so after a while. While a queue is not empty, this cannot be told of what waits
    in it, and nothing is sent: the queue may just be long.
    """
    of_runs = [group for group in Group if rt.queues.is_empty(group.queue)]
    of_calls = [group for group in Group if rt.queues.is_empty(group.tools_queue)]
    leased_before = rt.leases.until(now) - TAKEN
    find_runs = partial(runs.untaken, queues=of_runs, settled_before=now - TAKEN, leased_before=leased_before)
    find_calls = partial(calls.untaken, queues=of_calls, leased_before=leased_before)
    return [*_runs(rt, now, find_runs, gone), *_calls(rt, now, find_calls)]


def _of_leases(rt: Runtime) -> tuple[Part, ...]:
    """The parts that judge leases; none while the holders may have been unable to renew them. They judge by the clock
    as it was before that was asked: a process that stops at this line continues with the old time, and finds nothing.
    """
    now = rt.now()
    if rt.steadiness is not None and not rt.steadiness.holds():
        log.debug("leases are not judged: the heartbeat of this process was interrupted, or has just begun")
        return ()
    return (
        partial(_runs, now=now, find=partial(runs.expired, now=now)),
        partial(_calls, now=now, find=partial(calls.expired, now=now)),
    )


# Runs whose lease ran out, or whose worker is gone.


def _runs(rt: Runtime, now: datetime, find: Callable[..., list[Run]], gone: Collection[str] = ()) -> list[Intent]:
    with rt.store.read() as tx:
        seen = find(tx, limit=BATCH)
    if not seen:
        return []
    # Redis is asked outside the transaction: while it is paused, no row stays locked.
    keys = [run.work_key(step) for run in seen if (step := run.next_inference)]
    in_flight = {key for key, holder in rt.locks.alive(keys).items() if holder not in gone}
    begun = rt.locks.begun(keys)
    if gone:  # its lease has not run out: what another has in flight is that one's
        seen = [run for run in seen if (step := run.next_inference) and run.work_key(step) not in in_flight]
    sums: Sums = Counter()
    with Unit(rt) as unit:
        expired = find(unit.tx, limit=BATCH, among=[run.id for run in seen])
        poisoned = [run for run in expired if not _wake_run(unit, run, in_flight, begun, now, sums)]
        metrics.add(unit.tx, sums)
    intents = unit.intents
    for run in poisoned:  # each by itself: an end locks further runs, those that asked this one
        log.error("run is poison", run=run.id, step=run.step, worker=run.claim_worker)
        detail = f"{rt.leases.poison_after} workers died at step {run.step}; the last was {run.claim_worker}"
        intents = [*intents, *_end_poisoned(rt, run, failed("poison", detail))]
    return intents


def _wake_run(unit: Unit, run: Run, in_flight: set[str], begun: set[str], now: datetime, sums: Sums) -> bool:
    """False: it has taken too many workers with it."""
    leases, step = unit.rt.leases, run.next_inference
    push = partial(runs.push_lease, unit.tx, run)
    if step is None:  # its calls have leases of their own
        push(lease_until=leases.until(now), resends=run.resends, expiries=run.expiries)
        return True
    if run.work_key(step) in in_flight:
        soon = now + timedelta(seconds=leases.sweep / 2)
        push(lease_until=soon, resends=run.resends, expiries=run.expiries)
        return True
    expiries = run.expiries + _had_holder(run, begun=run.work_key(step) in begun)
    if expiries >= leases.poison_after:
        return False
    until = leases.until_after_resend(now, run.resends)
    push(lease_until=until, resends=run.resends + 1, expiries=expiries)
    if expiries > run.expiries:
        lost = LostWork(run_id=run.id, step=step, worker=run.claim_worker, since=run.started_at)
        takeovers.record(unit.tx, lost, now)
        count(sums, CLAIMS_EXPIRED, "model")
    count(sums, RESCUES, "run")
    log.info("run woken", run=run.id, step=run.step, resends=run.resends + 1, expiries=expiries)
    unit.follow(advance(run))
    return True


def _had_holder(run: Run, *, begun: bool) -> bool:
    """Whether a worker held the lease that ran out; otherwise only a wake-up was lost. The first worker at a step takes
    no token: the heartbeat records it, and for what ends before the first beat there is a mark in Redis. A worker that
    comes after a wake-up of ours takes one.
    """
    return run.claim_token is not None or run.claim_worker is not None or (begun and not run.resends)


def _end_poisoned(rt: Runtime, run: Run, ending: Ending, *, by: Call | None = None) -> list[Intent]:
    """Unless it has moved since it was judged: then the worker was late, not dead. `by`: the call whose workers
    died.
    """
    with Unit(rt) as unit:
        current = runs.lock(unit.tx, run.id)
        held = current if by is None else calls.load(unit.tx, by.id, lock=True)
        if current is not None and held is not None and _lease(held) == _lease(by or run):
            endings.end_run(unit, current, ending, content=UNKNOWN_TEXT)
    return unit.intents


def _lease(held: Run | Call) -> tuple[object, ...]:
    return held.status, held.claim_token, held.lease_until, held.resends, held.expiries


# Calls whose lease ran out, or whose worker is gone.


def _calls(rt: Runtime, now: datetime, find: Callable[..., list[Call]]) -> list[Intent]:
    poisoned: list[tuple[Run, Call]] = []
    unknown: list[tuple[Run, Call]] = []
    pins: dict[str, OfAgent] = {}
    sums: Sums = Counter()
    with Unit(rt) as unit:
        for call in find(unit.tx, limit=BATCH):
            try:
                run = runs.load(unit.tx, call.run_id)
            except WrongKey as error:  # its calls wait with it
                log.error("work waits for a key", error=str(error))  # noqa: TRY400 - it says all
                continue
            assert run is not None
            pins[run.id] = run
            if call.status is CallStatus.RUNNING and call.effect is Effect.UNSAFE and call.worker is not None:
                unknown.append((run, call))
            elif not _wake_call(unit, call, run, now, sums):
                poisoned.append((run, call))
        metrics.add(unit.tx, sums)
    intents = unit.intents
    # In transactions that lock the run first, as all do that end a run or suspend a call of it.
    for run, call in poisoned:
        log.error("call is poison", call=call.id, tool=call.tool, run=run.id)
        ending = failed("poison", f"tool {call.tool!r} took {rt.leases.poison_after} workers with it")
        intents = [*intents, *_end_poisoned(rt, run, ending, by=call)]
    for run, call in unknown:
        intents = [*intents, *_close_unknown(rt, run, call)]
    return _within_concurrency(rt, intents, pins)


def _wake_call(unit: Unit, call: Call, run: Run, now: datetime, sums: Sums) -> bool:
    """False: it has taken too many workers with it."""
    leases = unit.rt.leases
    expiries = call.expiries + (call.status is CallStatus.RUNNING and call.worker is not None)
    if expiries >= leases.poison_after:
        return False
    until = leases.until_after_resend(now, call.resends)
    calls.push_lease(unit.tx, call, lease_until=until, resends=call.resends + 1, expiries=expiries)
    if expiries > call.expiries:
        lost = LostWork(
            run_id=call.run_id, call_id=call.id, step=call.step, worker=call.worker, since=call.started_at or now
        )
        takeovers.record(unit.tx, lost, now)
        count(sums, CLAIMS_EXPIRED, "tool")
    count(sums, RESCUES, "call")
    log.info("call woken", call=call.id, run=run.id, resends=call.resends + 1, expiries=expiries)
    unit.follow(lone_call(run, call))
    return True


def _close_unknown(rt: Runtime, run: Run, call: Call) -> list[Intent]:
    """An unsafe call whose worker died is never run again blindly: a person is asked, or the model is told that its
    outcome is unknown.
    """
    log.warning("outcome of an unsafe call is unknown", call=call.id, tool=call.tool, run=run.id, worker=call.worker)
    if waiting.asks_about_unknown(rt, run):
        question = about_the_unknown(call.tool)
        waiting.suspend_call(rt, call, run, call.claim_token, question, seen_lease=call.lease_until)
        return [commit_round(run)]
    with Unit(rt) as unit:
        outcome = CallOutcome(
            status=CallStatus.FAILED, code=OUTCOME_UNKNOWN, content=UNKNOWN_TEXT, full=None, worker=call.worker or "",
            started_at=call.started_at or unit.now, ended_at=unit.now,
        )  # fmt: skip
        current = calls.load(unit.tx, call.id, lock=True)
        if current is not None and current.lease_until == call.lease_until:  # its holder has not renewed it since
            calls.settle(unit.tx, call, call.claim_token, outcome)
        unit.follow(commit_round(run))
    return unit.intents


def _within_concurrency(rt: Runtime, intents: Sequence[Intent], pins: Mapping[str, OfAgent]) -> list[Intent]:
    """Lost calls of an agent that limits how many run at once are sent as one batch, so that the limit holds."""
    kept: list[Intent] = []
    batches: dict[str, CallTool] = {}
    for intent in intents:
        if not isinstance(intent, CallTool) or not _is_limited(rt, pins[intent.run_id]):
            kept.append(intent)
        elif (before := batches.get(intent.run_id)) is None:
            batches[intent.run_id] = intent
        else:
            batches[intent.run_id] = replace(
                before, call_ids=(*before.call_ids, *intent.call_ids), tools={**before.tools, **intent.tools}
            )
    return [*kept, *batches.values()]


def _is_limited(rt: Runtime, agent: OfAgent) -> bool:
    try:
        spec = rt.agent_of(agent)
    except UserError:
        return True
    return spec.concurrency is not None or spec.tool_mode is ToolMode.SEQUENTIAL


# Questions that were not answered in time.


def _undecided(rt: Runtime) -> list[Intent]:
    with rt.store.read() as tx:
        late = suspensions.expired(tx, rt.now(), BATCH)
    intents: list[Intent] = []
    for suspension in late:  # each by itself: one that cannot be answered keeps none of the others
        try:
            intents += _expire_question(rt, suspension)
        except UserError as error:
            log.warning("a question could not be closed", suspension=suspension.id, error=str(error))
    return intents


def _expire_question(rt: Runtime, suspension: Suspension) -> list[Intent]:
    """As its sender laid down."""
    log.info(
        "a question was not answered in time",
        suspension=suspension.id,
        call=suspension.call_id,
        then=suspension.on_expiry,
    )
    match suspension.on_expiry:
        case OnExpiry.ESCALATE:
            with Unit(rt) as unit:
                suspensions.escalate(unit.tx, suspension.id, unit.now)
                overdue = {"call": suspension.call_id, "suspension": suspension.id}
                unit.announce(LiveEvent(run_id=suspension.run_id, kind="call.overdue", data=overdue))
            return []
        case OnExpiry.CANCEL_RUN:
            return _cancel_undecided(rt, suspension)
        case OnExpiry.DENY:
            reason = UNANSWERED if suspension.why in {Why.CHILD, Why.CLIENT} else UNDECIDED
            answer = DecisionRequest(target=suspension.id, action=Action.CANCEL, reason=reason)
        case OnExpiry.DEFAULT:
            answer = DecisionRequest(
                target=suspension.id, action=Action.RESUME, payload=suspension.default, reason=UNDECIDED
            )
    try:
        return insist(rt, lambda unit: approvals.take_decisions(unit, [answer], [suspension], EXPIRY))[1]
    except Conflict:  # a decision was just in time
        return []


def _cancel_undecided(rt: Runtime, suspension: Suspension) -> list[Intent]:
    with Unit(rt) as unit:
        run = runs.lock(unit.tx, suspension.run_id)
        current = suspensions.load(unit.tx, suspension.id)
        if run is not None and current is not None and current.status is SuspensionStatus.OPEN:
            endings.end_run(unit, run, cancelled(UNDECIDED), content=UNDECIDED)
    return unit.intents


# Stepped runs that were not moved on in time.


def _held(rt: Runtime) -> list[Intent]:
    with rt.store.read() as tx:
        late = stepped.overdue(tx, rt.now(), BATCH)
    return [intent for turn_id, run_id in late for intent in _end_hold(rt, turn_id, run_id)]


def _end_hold(rt: Runtime, turn_id: str, run_id: str | None) -> list[Intent]:
    with Unit(rt) as unit:
        run = runs.lock(unit.tx, run_id) if run_id else None
        row = stepped.load(unit.tx, turn_id, lock=True)
        if row is None or row.held_until is None or row.held_until > unit.now:
            return []  # its consumer was just in time
        if run is None or run.status is not RunStatus.WAITING or run.reason is not Reason.HELD:
            stepped.change(unit.tx, row, held_until=None)
        elif row.drive is Drive.STEP and row.on_held is OnHeld.CANCEL:
            endings.end_run(unit, run, cancelled(NOT_MOVED_ON), content=NOT_MOVED_ON)
            stepped.change(unit.tx, row, held_until=None)
        elif row.drive is Drive.STEP and (row.on_held is OnHeld.PARK or row.error is not None):
            # A request that failed is not repeated while its consumer is away.
            stepped.change(unit.tx, row, held_until=None, parked=True)
        else:
            drive = Drive.ONCE if row.drive is Drive.STEP else row.drive
            stepped.change(unit.tx, row, held_until=unit.lease(), drive=drive)
            unit.follow(step_on(run))
    return unit.intents


# Turns in the queue.


def _expired_turns(rt: Runtime) -> list[Intent]:
    with rt.store.read() as tx:
        overdue = turns.overdue(tx, rt.now(), BATCH)
    return [intent for turn_id in overdue for intent in _expire(rt, turn_id)]


def _expire(rt: Runtime, turn_id: str) -> list[Intent]:
    with Unit(rt) as unit:
        endings.drop_queued(unit, turn_id, Disposition.EXPIRED, "its deadline passed before it could start")
    return unit.intents


def _unwanted_children(rt: Runtime) -> list[Intent]:
    with rt.store.read() as tx:
        unwanted = children.unwanted(tx, BATCH)
    return [CancelTurn(turn_id=turn_id, reason=subagents.NO_LONGER_NEEDED, of=of) for turn_id, of in unwanted]


def _stranded(rt: Runtime) -> list[Intent]:
    """Threads with a head of line that was never made ready: it came while the one ahead of it started and ended."""
    before = rt.now() - timedelta(seconds=rt.leases.sweep)
    with rt.store.read() as tx:
        thread_ids, rt.patrol.thread_id = turns.stranded(tx, before, after=rt.patrol.thread_id)
    intents: list[Intent] = []
    for thread_id in thread_ids:
        with Unit(rt) as unit:
            endings.make_next_ready(unit, thread_id)
        log.info("a thread stood still", thread=thread_id, woken=bool(unit.intents))
        intents += unit.intents
    return intents


def _queued(rt: Runtime) -> list[Intent]:
    """A dispatch for every queued turn that could start, as far as the budget reaches, and not over and over."""
    with Unit(rt, rt.store.single) as unit:
        fairness.wake(unit.tx, unit.now, BATCH)
    return [intent for group in Group for intent in _queued_in(rt, group)]


def _queued_in(rt: Runtime, group: Group) -> list[Intent]:
    """Where wake-ups were lost, those of turns beyond the budget were too: the runs that end send for them."""
    with rt.store.read() as tx:
        free, hand_on = groups.places(tx, group, default=rt.budgets[group])
        ready = fairness.next_turns(tx, group, rt.now(), min(free, BATCH)) if free else []
    nudged: list[tuple[str, Subject]] = []
    if ready:
        nothing_waits = rt.queues.is_empty(group.queue)
        with Unit(rt) as unit:
            turn_ids = [turn_id for turn_id, _ in ready]
            nudged = fairness.nudge(unit.tx, turn_ids, unit.now, nothing_waits=nothing_waits)
            sums: Sums = Counter()
            count(sums, RESCUES, "turn", by=len(nudged))
            metrics.add(unit.tx, sums)
    intents: list[Intent] = [Dispatch(group=group, hint=Hint(turn_id, of.thread_id), of=of) for turn_id, of in nudged]
    if not hand_on and (nudged or not free) and groups.await_place(rt.store, group) and not free:
        intents.append(Dispatch(group=group))  # runs may have ended before they knew of it
    return intents


def _seldom_due(rt: Runtime) -> list[Intent]:
    """Send for bulk jobs whose worker is gone, or whose message was lost. Forget signed bytes that can no longer come
    again, and who did what longer ago than the settings keep it.
    """
    now = rt.now()
    audit_before = BEFORE_ALL if rt.audit_keep is None else now - rt.audit_keep
    with rt.store.read() as tx:
        due = seldom_due.find(tx, now, audit_before=audit_before)
    if due.replays or due.audit:
        with Unit(rt) as unit:
            if due.replays:
                replays.forget(unit.tx, now, BATCH)
            if due.audit:
                audit.forget(unit.tx, audit_before, BATCH)
    if not due.bulk:
        return []
    with Unit(rt) as unit:
        job_ids = bulk.wake(unit.tx, unit.now, until=unit.lease(), limit=BATCH)
    return [ContinueBulk(job_id=job_id) for job_id in job_ids]


def _old_turns(rt: Runtime) -> list[Intent]:
    """Some of what ended longer ago than the settings keep it."""
    if rt.turn_keep is not None:
        now = rt.now()
        pruning.prune_some(rt, limits_for(now, older_than=rt.turn_keep, keep_keys=rt.dedupe_keep))
    return []
