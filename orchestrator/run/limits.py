"""Time limits: until when a run may work, and how it ends after that.

A limit is of working time: time in which a run waited for people does not count, time in which its sub-agents worked
does. A sub-agent has no more time than is left to the runs above it. The worker that holds a model call or a tool gives
it up at the deadline and ends the run, or leaves that to the end of its round. If that worker has died, the sweep of
rescue ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.model import Attempt, Reply, StopReason
from chordage.orchestrator.core.reasons import Ending, out_of_time
from chordage.orchestrator.core.records import Checkpoint, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.transcript import body_of
from chordage.orchestrator.run import checkpoints, endings
from chordage.orchestrator.run.unit import NO_USAGE, RunEnded, Unit, record
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import children, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()

GRACE = timedelta(seconds=2)  # the worker that holds the work knows what was said so far, so it may end the run first
CALL_CLOSED = (
    "The time limit of the turn was reached before this call had a result. If it had started, it is not known whether "
    "it took effect."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    run: Run  # whose limit it is: the run that works, or one above it
    at: datetime
    ending: Ending  # of the run that works

    def left(self, now: datetime) -> float:
        return (self.at - now).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialReply:
    """What is kept of a model call that was given up."""

    text: str = ""
    reasoning: str = ""  # kept with a text alone
    attempts: tuple[Attempt, ...] = ()
    details: Mapping[str, Any] | None = None  # what the end of the run says of its plans


def deadline(rt: Runtime, run: Run, agent: AgentSpec) -> Deadline | None:
    """The earliest of the run and of those above it. None: there is no limit."""
    own = _limit(agent, run)
    if run.kin is None:
        return None if own is None else _own(run, own, rt.now())
    with rt.store.read() as tx:
        return _earliest(tx, rt, run, agent)


def exceeded(rt: Runtime, run: Run, agent: AgentSpec) -> Ending | None:
    """How the run has to end now, if its time is up."""
    limit = deadline(rt, run, agent)
    return limit.ending if limit is not None and limit.left(rt.now()) <= 0 else None


def _limit(agent: AgentSpec | None, run: Run) -> float | None:
    return run.timeout if agent is None else run.limits(agent.limits).timeout


def _own(run: Run, limit: float, now: datetime) -> Deadline:
    left = timedelta(seconds=limit - run.worked(now))
    return Deadline(run=run, at=now + left, ending=out_of_time(limit))


def _earliest(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec | None) -> Deadline | None:
    now = rt.now()
    own = _limit(agent, run)
    deadlines = [] if own is None else [_own(run, own, now)]
    deadlines += [_of_parent(tx, parent, limit, now) for parent, limit in _above(tx, rt, run)]
    return min(deadlines, key=lambda each: each.at, default=None)


def _above(tx: Tx, rt: Runtime, run: Run) -> Iterator[tuple[Run, float]]:
    """The open runs above it that have a limit."""
    above = run
    while above.kin is not None and (parent := runs.load(tx, above.kin.parent_run)) is not None:
        limit = _limit(_agent(rt, parent, tx), parent)
        if limit is not None and parent.status is not RunStatus.DONE:
            yield parent, limit
        above = parent


def _of_parent(tx: Tx, parent: Run, limit: float, now: datetime) -> Deadline:
    """For a run that waits for its child, time counts while the child works."""
    worked = timedelta(seconds=parent.worked(parent.rested_since or now))
    if parent.rested_since is not None:
        worked += subagents.covered(children.spans(tx, parent.id, parent.rested_since, now))
    ending = out_of_time(limit, of=parent.agent)
    return Deadline(run=parent, at=now + timedelta(seconds=limit) - worked, ending=ending)


def _agent(rt: Runtime, run: Run, tx: Tx) -> AgentSpec | None:
    """None: it cannot be loaded now, so that only the limit of the turn counts."""
    try:
        return rt.agent_of(run, tx)
    except UserError:
        return None


def end_out_of_time(rt: Runtime, claim: RunClaim, ending: Ending, partial: PartialReply | None = None) -> list[Intent]:
    """The worker that holds the run's work ends it."""
    return record(rt, lambda unit: _end(unit, claim, ending, partial or PartialReply())) or []


def _end(unit: Unit, claim: RunClaim, ending: Ending, partial: PartialReply) -> None:
    run = claim.run
    runs.finish(unit.tx, claim, ending, usage=NO_USAGE, now=unit.now)
    endings.close_open_calls(unit, run, code="run_ended", content=CALL_CLOSED)
    rows = checkpoints.of_round(unit, run)
    if partial.text:
        cut = Reply(
            text=partial.text, reasoning=partial.reasoning, asks=(), stop=StopReason.UNKNOWN, model="",
            attempts=partial.attempts,
        )  # fmt: skip
        body = {**body_of(cut), "worker": unit.rt.worker}
        if claim.digest:
            body["agent_digest"] = claim.digest
        rows.append(journal.entry(run.thread_id, run.id, claim.step, Checkpoint.ASSISTANT_TURN, body, unit.now))
    interrupted = {"reason": ending.reason.value, "code": ending.code, "detail": ending.detail}
    rows.append(journal.entry(run.thread_id, run.id, claim.step, Checkpoint.RUN_INTERRUPTED, interrupted, unit.now))
    attempts: Sequence[Attempt] = () if partial.text else partial.attempts
    endings.close_turn(
        unit, run, claim.step, ending, rows, text=partial.text or None, attempts=attempts, details=partial.details,
        is_last=True,
    )  # fmt: skip
    unit.announce(RunEnded(run=run, ending=ending))


def sweep(rt: Runtime) -> list[Intent]:
    """End the runs whose time was up a while ago, and which the worker that held them has not ended."""
    now = rt.now()
    limited = [name for name in rt.agents.names() if _has_limit(rt, name)]
    with rt.store.read() as tx:
        working = runs.maybe_limited(tx, limited, rt.agents.digests(), before=now - GRACE)
        deadlines = [_earliest(tx, rt, run, _agent(rt, run, tx)) for run in working]
    late = {limit.run.id for limit in deadlines if limit is not None and limit.at + GRACE <= now}
    return [intent for run_id in sorted(late) for intent in _end_late(rt, run_id)]


def _has_limit(rt: Runtime, name: str) -> bool:
    try:
        return rt.agents.get(name).limits.timeout is not None
    except UserError:
        return False


def _end_late(rt: Runtime, run_id: str) -> list[Intent]:
    with Unit(rt) as unit:
        run = runs.lock(unit.tx, run_id)
        ending = None if run is None or run.status is RunStatus.DONE else _overrun(unit, run)
        if run is None or ending is None:
            return []
        log.warning("run is out of time", run=run.id, step=run.step, worker=run.claim_worker, detail=ending.detail)
        endings.end_run(unit, run, ending, content=CALL_CLOSED)
    return unit.intents


def _overrun(unit: Unit, run: Run) -> Ending | None:
    """As it is now that the run is locked. It may wait, with or without sub-agents at work."""
    limit = _limit(_agent(unit.rt, run, unit.tx), run)
    if limit is None:
        return None
    late = replace(_of_parent(unit.tx, run, limit, unit.now), ending=out_of_time(limit))
    return late.ending if late.left(unit.now) <= 0 else None
