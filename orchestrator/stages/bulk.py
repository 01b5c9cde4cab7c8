"""Not in the line of a turn: cancel or retry all turns that fit a search, or send dead letters again, as a job.

The job is a row. A message carries out a part of it, and follows itself until no target is left. Each target is acted
on in the transaction that moves the job past it: a worker may die at any instruction, and the message may come twice,
and no target is acted on twice. What a target refuses is noted with the reason, and the job continues. After the death
of its worker rescue sends for the job again.

Not promised: that a turn which fits the search no longer when its row is locked, a moment after it was looked at, is
left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from chordage.orchestrator.core import bulk as rules
from chordage.orchestrator.core import message
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.bulk import (
    BEGINNING,
    BulkAction,
    BulkCount,
    BulkJob,
    BulkRequest,
    BulkState,
    delivery_of,
)
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.errors import Conflict, Crossed, Forbidden, LostRace, NotFound, Unavailable, UserError
from chordage.orchestrator.core.intents import ContinueBulk, Intent
from chordage.orchestrator.core.message import TurnRequest, group_of
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.run import arrivals, cancelling
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, bulk, outbox, turn_search
from chordage.orchestrator.store.turn_search import TurnConditions
from chordage.orchestrator.views.requests import retry_request
from chordage.orchestrator.views.turn_search import conditions_of, filter_from_json

log = structlog.get_logger()

AT_ONE_GO = 3.0  # seconds; then another message continues, so that other work of the queue is not kept waiting
TARGETS = 100  # that are looked up at once
LOOKS = 50  # of one message that may find none
TRIES = 8  # that a target may lose to others


def count_bulk(rt: Runtime, request: BulkRequest) -> BulkCount:
    """How many targets there are."""
    rules.check_request(request)
    if request.chosen is not None:
        return BulkCount(number=len(request.chosen))
    with rt.store.read() as tx:
        if request.action is BulkAction.REDELIVER:
            return bulk.count_dead(tx, space=request.space)
        return turn_search.count(tx, _conditions(request.wanted, request.space))


def start_bulk(rt: Runtime, request: BulkRequest) -> tuple[BulkJob, list[Intent]]:
    """Store the job, which workers carry out. The same request under the same key finds the job that is there."""
    count = count_bulk(rt, request)
    with Unit(rt) as unit:
        job = BulkJob(
            id=rt.new_id(), action=request.action, wanted=request.wanted, chosen=request.chosen, query=request.query,
            reason=request.reason, space=request.space, agents=request.agents, groups=request.groups,
            asked_by=request.by.name, address=request.by.address, request_key=request.key, digest=request.digest,
            counted=count.number, is_estimate=count.is_estimate, state=BulkState.OPEN, position=BEGINNING, done=0,
            refused=0, created_at=unit.now, ended_at=None,
        )  # fmt: skip
        if bulk.add(unit.tx, job, lease_until=unit.lease()):
            detail = dict(rules.recorded(request, count))
            audit.record(unit.tx, request.by, Audited.BULK_STARTED, job.id, now=unit.now, detail=detail)
            unit.follow(ContinueBulk(job_id=job.id))
            return job, unit.intents
        assert request.key is not None
        known = bulk.by_key(unit.tx, request.by.name, request.key)
    assert known is not None
    if known.digest != request.digest:
        raise Conflict(f"the key {request.key!r} was used for another bulk job, {known.id}: give each its own")
    return known, []


def stop_bulk(rt: Runtime, job_id: str, by: Actor, *, space: str | None = None) -> BulkJob:
    """What is done stays done. Once more: nothing changes."""
    with Unit(rt) as unit:
        job = bulk.load(unit.tx, job_id)
        if job is None or (space is not None and job.space != space):
            raise NotFound(f"there is no bulk job {job_id!r:.80}")
        if bulk.stop(unit.tx, job_id, unit.now):
            audit.record(unit.tx, by, Audited.BULK_STOPPED, job_id, now=unit.now)
        stopped = bulk.load(unit.tx, job_id)
    assert stopped is not None
    return stopped


def continue_bulk(rt: Runtime, job_id: str) -> list[Intent]:
    """The next part of the job. Follows: what its targets lead to, and the part behind this one."""
    token = rt.new_id()
    with Unit(rt) as unit:
        job = bulk.claim(unit.tx, job_id, token, rt.worker, now=unit.now, until=unit.lease())
    if job is None:
        return []
    intents: list[Intent] = []
    try:
        is_over = _carry_out(rt, job, token, intents)
    except Unavailable as error:
        log.warning("a bulk job was cut short; rescue will send for it", job=job_id, error=str(error))
        return intents
    if not is_over:
        with Unit(rt) as unit:
            if bulk.release(unit.tx, job, token, until=unit.lease()):
                unit.follow(ContinueBulk(job_id=job_id))
        intents += unit.intents
    return intents


def _carry_out(rt: Runtime, job: BulkJob, token: str, intents: list[Intent]) -> bool:
    """Whether this message has nothing more to do with it: it is over, or it was taken away."""
    act, give_up = _ACTS[job.action](rt, job), time.monotonic() + AT_ONE_GO
    for _ in range(LOOKS):
        targets, up_to = _next_targets(rt, job)
        for target in targets:
            if rt.in_flight.stopping or time.monotonic() > give_up:
                return False
            following = _pass(rt, job, token, target, act)
            if following is None:
                return True
            intents += following
            job = replace(job, position=target)
        if up_to is None:
            with Unit(rt) as unit:
                bulk.finish(unit.tx, job, token, unit.now)
            return True
        if up_to != job.position:
            with Unit(rt) as unit:
                if not bulk.move(unit.tx, job, token, up_to, until=unit.lease()):
                    return True
            job = replace(job, position=up_to)
    return False


def _next_targets(rt: Runtime, job: BulkJob) -> tuple[Sequence[str], str | None]:
    """And how far was looked, if there may be more behind it."""
    if job.chosen is not None:
        return rules.behind(job, job.chosen), None
    with rt.store.read() as tx:
        if job.action is BulkAction.REDELIVER:
            after = delivery_of(job.position) if job.position else 0
            dead = bulk.next_dead(tx, after, until=job.created_at, space=job.space, limit=TARGETS)
            targets = [rules.target_of(number) for number in dead]
            return targets, targets[-1] if len(targets) == TARGETS else None
        fitting = turn_search.next_fitting(
            tx, _conditions_of(job), job.position, upwards=job.action.goes_up, limit=TARGETS
        )
    return fitting.ids, fitting.up_to


def _conditions(wanted: dict[str, object] | None, space: str | None) -> TurnConditions:
    return conditions_of(filter_from_json(wanted or {}), space)


def _conditions_of(job: BulkJob) -> TurnConditions:
    """Turns that came after the job was asked for are not meant."""
    wanted = _conditions(job.wanted, job.space)
    return replace(wanted, until=min(wanted.until or job.created_at, job.created_at))


# One target.

# What is done about a target: `prepare` before the transaction, and what it returns inside it. Both raise UserError.
Act = Callable[[str], Callable[[Unit], None]]


def _pass(rt: Runtime, job: BulkJob, token: str, target: str, act: Act) -> list[Intent] | None:
    """Act on it and move the job past it, or note why not. None: the job is not this worker's any more."""
    why = "it changes too fast: try again"
    for _ in range(TRIES):
        try:
            carry_out = act(target)
            with Unit(rt) as unit:
                if not bulk.move(unit.tx, job, token, target, until=unit.lease(), done=1):
                    return None
                carry_out(unit)
        except (LostRace, Crossed):
            continue
        except Unavailable:
            raise
        except UserError as refusal:
            why = str(refusal)
            break
        except Exception as error:  # of one target: the others are not given up for it
            log.exception("a bulk job failed at a target", job=job.id, target=target)
            why = f"a fault of Chordage: {type(error).__name__}"
            break
        else:
            return unit.intents
    with Unit(rt) as unit:
        if not bulk.move(unit.tx, job, token, target, until=unit.lease(), refused=1):
            return None
        bulk.note_refusal(unit.tx, job, rules.shown_target(job.action, target), why)
    return []


def _canceller(rt: Runtime, job: BulkJob) -> Act:
    wanted = None if job.chosen is not None else _conditions_of(job)

    def prepare(turn_id: str) -> Callable[[Unit], None]:
        if job.space is not None:
            with rt.store.read() as tx:
                cancelling.check_reach(tx, turn_id, job.space)
        return lambda unit: cancel(unit, turn_id)

    def cancel(unit: Unit, turn_id: str) -> None:
        if wanted is not None and not turn_search.fits(unit.tx, wanted, turn_id):
            raise Conflict("it no longer fits the search")
        if not cancelling.cancel(unit, turn_id, job.reason):
            raise Conflict("it was done before")

    return prepare


def _retrier(rt: Runtime, job: BulkJob) -> Act:
    """A turn that is done never changes, so its message may be read before the transaction."""

    def prepare(turn_id: str) -> Callable[[Unit], None]:
        with rt.store.read() as tx:
            request = retry_request(tx, turn_id, space=job.space)
        request = replace(request, by=bulk.actor_of(job))
        agent = arrivals.check_request(rt, request, rt.now())
        _allow(job, agent, request)
        arrivals.defer_will(rt, request, agent.name)
        return lambda unit: retry(unit, agent, request)

    def retry(unit: Unit, agent: AgentSpec, request: TurnRequest) -> None:
        if (known := arrivals.find_duplicate(unit.tx, agent, request, unit.now)) is not None:
            raise Conflict(f"it was retried before: that is turn {known.turn_id}")
        arrivals.admit(unit, agent, request, [])

    return prepare


def _allow(job: BulkJob, agent: AgentSpec, request: TurnRequest) -> None:
    if request.control is Control.STEP:
        raise Conflict("it is stepped: its consumer retries it")
    if job.agents is not None and agent.name not in job.agents:
        raise Forbidden(f"the key {job.asked_by} may not address agent {agent.name!r}")
    if job.groups is not None and (group := group_of(request)) not in job.groups:
        raise Forbidden(f"the key {job.asked_by} may not use group {group.value!r}")


def _redeliverer(_rt: Runtime, job: BulkJob) -> Act:
    def redeliver(unit: Unit, number: int) -> None:
        delivery = outbox.load(unit.tx, number)
        if delivery is None or not message.holds(job.space, delivery.thread_id):
            raise NotFound(f"there is no delivery {number}; `chordage deliveries` lists them")
        if delivery.status is DeliveryStatus.DEAD and delivery.dead_at and delivery.dead_at > job.created_at:
            raise Conflict("it was sent again meanwhile, and is a dead letter once more")
        if not outbox.retry_dead(unit.tx, number, unit.now):
            raise Conflict(f"it is {delivery.status.value}, no dead letter")

    return lambda target: lambda unit: redeliver(unit, delivery_of(target))


_ACTS: dict[BulkAction, Callable[[Runtime, BulkJob], Act]] = {
    BulkAction.CANCEL: _canceller,
    BulkAction.RETRY: _retrier,
    BulkAction.REDELIVER: _redeliverer,
}
