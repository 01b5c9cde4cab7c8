"""Time limits: until when a run may work, and how it ends when it may not any more.

A limit is of working time: what a run has waited for people does not count, what its sub-agents have worked does. A
sub-agent has no more time than is left to the runs above it. Whoever has a model call or a tool in hand gives it up at
the deadline and ends the run, or lets its round end it. If that process has died, the sweep ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from chordage.orchestrator.core import kinship, limits
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.model import Attempt, Reply, StopReason
from chordage.orchestrator.core.reasons import Ending, out_of_time
from chordage.orchestrator.core.records import Checkpoint, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.transcript import body_of
from chordage.orchestrator.run import endings, waiting
from chordage.orchestrator.run.waiting import Transition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import children, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()

GRACE = timedelta(seconds=2)  # whoever has the work in hand knows what was said so far, so the sweep lets it go first
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
class Broken:
    """What is kept of a model call that was given up."""

    text: str = ""
    attempts: tuple[Attempt, ...] = ()
    told: Mapping[str, Any] | None = None  # what the end of the run says of its plans


NOTHING = Broken()


def deadline(rt: Runtime, run: Run, agent: AgentSpec) -> Deadline | None:
    """The earliest of the run and of those above it. None: nobody has set one."""
    own = _limit(agent, run)
    if run.kin is None:
        return None if own is None else _own(run, own, rt.now())
    with rt.store.read() as tx:
        return _earliest(tx, rt, run, agent)


def is_over(rt: Runtime, run: Run, agent: AgentSpec) -> Ending | None:
    """How the run has to end now, if its time is up."""
    found = deadline(rt, run, agent)
    return found.ending if found is not None and found.left(rt.now()) <= 0 else None


def _limit(agent: AgentSpec | None, run: Run) -> float | None:
    return run.timeout if agent is None else limits.of_run(agent.limits, run).timeout


def _own(run: Run, limit: float, now: datetime) -> Deadline:
    left = timedelta(seconds=limit - run.worked(now))
    return Deadline(run=run, at=now + left, ending=out_of_time(limit))


def _earliest(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec | None) -> Deadline | None:
    now = rt.now()
    own = _limit(agent, run)
    found = [] if own is None else [_own(run, own, now)]
    found += [_of_parent(tx, parent, limit, now) for parent, limit in _above(tx, rt, run)]
    return min(found, key=lambda one: one.at, default=None)


def _above(tx: Tx, rt: Runtime, run: Run) -> Iterator[tuple[Run, float]]:
    """The open runs above it that have a limit."""
    above = run
    while above.kin is not None and (parent := runs.load(tx, above.kin.parent_run)) is not None:
        limit = _limit(_agent(rt, parent), parent)
        if limit is not None and parent.status is not RunStatus.DONE:
            yield parent, limit
        above = parent


def _of_parent(tx: Tx, parent: Run, limit: float, now: datetime) -> Deadline:
    """A run that waits for its child goes on counting while the child works."""
    worked = timedelta(seconds=parent.worked(parent.rested_since or now))
    if parent.rested_since is not None:
        worked += kinship.covered(children.spans(tx, parent.id, parent.rested_since, now))
    how = out_of_time(limit, of=parent.agent)
    return Deadline(run=parent, at=now + timedelta(seconds=limit) - worked, ending=how)


def _agent(rt: Runtime, run: Run) -> AgentSpec | None:
    """None: it cannot be loaded now, so that only the limit of the turn counts."""
    try:
        return rt.agents.get(run.agent)
    except UserError:
        return None


def end_here(rt: Runtime, at: RunClaim, how: Ending, broken: Broken = NOTHING) -> list[Intent]:
    """The run ends where it stands, by whoever had its work in hand."""
    crossing = rt.store.insist(lambda tx: _end(tx, rt, at, how, broken))
    if crossing.ended:
        endings.tell_the_end(rt, at.run, crossing.ended)
    return crossing.intents


def _end(tx: Tx, rt: Runtime, at: RunClaim, how: Ending, broken: Broken) -> Transition:
    run, now = at.run, rt.now()
    if not runs.finish(tx, at, how, usage=waiting.NO_USAGE, now=now):
        return waiting.NOT_OURS
    endings.close_open_calls(tx, rt, run, code="run_ended", content=CALL_CLOSED)
    rows = waiting.owed_rows(tx, rt, run)
    if broken.text:
        cut = Reply(text=broken.text, asks=(), stop=StopReason.UNKNOWN, model="", attempts=broken.attempts)
        body = {**body_of(cut), "worker": rt.worker}
        rows.append(journal.entry(run.thread_id, run.id, at.step, Checkpoint.ASSISTANT_TURN, body, now))
    told = {"reason": how.reason.value, "code": how.code, "detail": how.detail}
    rows.append(journal.entry(run.thread_id, run.id, at.step, Checkpoint.RUN_INTERRUPTED, told, now))
    attempts: Sequence[Attempt] = () if broken.text else broken.attempts
    intents = endings.close_turn(
        tx, rt, run, at.step, how, rows, text=broken.text or None, attempts=attempts, told=broken.told
    )
    return Transition(intents=intents, ended=how)


def sweep(rt: Runtime) -> list[Intent]:
    """End the runs whose time was up a while ago: nobody who has their work in hand has done so."""
    now = rt.now()
    limited = [name for name in rt.agents.names() if _has_limit(rt, name)]
    with rt.store.read() as tx:
        working = runs.maybe_limited(tx, limited, before=now - GRACE)
        found = [_earliest(tx, rt, run, _agent(rt, run)) for run in working]
    late = {one.run.id for one in found if one is not None and one.at + GRACE <= now}
    return [intent for run_id in sorted(late) for intent in _end_late(rt, run_id)]


def _has_limit(rt: Runtime, name: str) -> bool:
    try:
        return rt.agents.get(name).limits.timeout is not None
    except UserError:
        return False


def _end_late(rt: Runtime, run_id: str) -> list[Intent]:
    with rt.store.write() as tx:
        run = runs.lock(tx, run_id)
        how = None if run is None or run.status is RunStatus.DONE else _overrun(tx, rt, run)
        if run is None or how is None:
            return []
        log.warning("run is out of time", run=run.id, step=run.step, worker=run.claim_worker, detail=how.detail)
        ended = endings.end_run(tx, rt, run, how, content=CALL_CLOSED)
    if ended is not None:
        endings.tell_the_end(rt, run)
    return ended or []


def _overrun(tx: Tx, rt: Runtime, run: Run) -> Ending | None:
    """As it is now that the run is locked. It may rest and count nothing, or rest and count what its children do."""
    limit, now = _limit(_agent(rt, run), run), rt.now()
    if limit is None:
        return None
    found = replace(_of_parent(tx, run, limit, now), ending=out_of_time(limit))
    return found.ending if found.left(now) <= 0 else None
