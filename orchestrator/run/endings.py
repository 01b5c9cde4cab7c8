"""How runs and turns end: the last checkpoint, the closing of what is open, and the start of what waited.

Every end is one transaction. The unit announces it: plugins are informed, waiters are woken, the thread is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chordage.orchestrator.core.errors import BrokenAgent, Unavailable, UserError
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.core.model import Attempt
from chordage.orchestrator.core.reasons import BY_A_MESSAGE, ROLLED_BACK, Ending, Reason, disposition_of, failed
from chordage.orchestrator.core.records import Checkpoint, Kin, Phase, Run
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.core.transcript import NOT_RUN, attempts_of
from chordage.orchestrator.run import checkpoints, starting, subagents, waiting
from chordage.orchestrator.run.unit import NO_USAGE, RunEnded, TurnDropped, Unit, record
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, journal, outbox, runs, turns
from chordage.orchestrator.store.runs import RunClaim

PATIENCE = 3  # how often a run whose agent is missing is tried again


def end_here(rt: Runtime, claim: RunClaim, ending: Ending, *, attempts: Sequence[Attempt] = ()) -> list[Intent]:
    """End the run without another reply, in a transaction of its own. `attempts`: model calls that failed."""
    return record(rt, lambda unit: end_claimed(unit, claim, ending, attempts=attempts)) or []


def end_claimed(unit: Unit, claim: RunClaim, ending: Ending, *, attempts: Sequence[Attempt] = ()) -> None:
    """End the run, or suspend it with this end kept while calls of it wait for a decision."""
    run = claim.run
    if waiting.ends_after_decisions(unit, run, ending):
        waiting.suspend_run(unit, claim, to=claim.step, kept=ending, rows=_last_checkpoint(unit, run))
        return
    runs.finish(unit.tx, claim, ending, usage=NO_USAGE, now=unit.now)
    close_open_calls(unit, run, code="run_ended", content=NOT_RUN)
    unit.announce(RunEnded(run=run, ending=ending))
    close_turn(unit, run, claim.step, ending, [], text=None, attempts=attempts, digest=claim.digest, is_last=True)


def end_run(unit: Unit, seen: Run, ending: Ending, *, content: str) -> bool:
    """End a run from outside; each open call gets `content` as its result. False: it was done already.

    What was seen of it may be old, so it is locked and read again: it may have asked a person or a sub-agent meanwhile.
    """
    run = runs.lock(unit.tx, seen.id)
    if run is None or not runs.end(unit.tx, run, ending, unit.now):
        return False
    code = ending.code if ending.code in BY_A_MESSAGE else ending.reason.value
    close_open_calls(unit, run, code=code, content=content)
    body = {"reason": ending.reason.value, "code": ending.code, "detail": ending.detail}
    rows = [
        *_last_checkpoint(unit, run),
        journal.entry(run.thread_id, run.id, run.step, Checkpoint.RUN_INTERRUPTED, body, unit.now),
    ]
    if ending.code == ROLLED_BACK:
        rows.append(journal.entry(run.thread_id, run.id, run.step, Checkpoint.ROLLED_BACK, {}, unit.now))
    close_turn(unit, run, run.step, ending, rows, text=None)
    unit.announce(RunEnded(run=run))
    return True


def close_open_calls(unit: Unit, run: Run, *, code: str, content: str) -> None:
    """Give each open call a result that says so, and withdraw the questions about them."""
    if run.children:
        subagents.close_waiting_calls(unit, run, code=code)
    calls.cancel_of_run(unit.tx, run.id, code=code, content=content, now=unit.now)
    if run.suspended:
        approvals.close_of_run(unit.tx, run.id)


def close_turn(
    unit: Unit,
    run: Run,
    step: int,
    ending: Ending,
    rows: list[journal.Row],
    *,
    text: str | None,
    attempts: Sequence[Attempt] = (),
    details: Mapping[str, Any] | None = None,
    digest: str = "",
    is_last: bool = False,
) -> None:
    """The last checkpoint of a run, the end of its turn, and the start of what waited for it. `attempts`: model calls
    that failed, and the `digest` of the version of the agent that made them. `details`: what the journal says besides
    of how it came to its answer. `is_last`: the transaction takes no further lock, so it may start the next turn
    itself.
    """
    rows = rows or _last_checkpoint(unit, run)
    body = {"reason": ending.reason.value, "code": ending.code, "detail": ending.detail, **(details or {})}
    finished = {**body, "attempts": attempts_of(attempts)} if attempts else body
    if attempts and digest:
        finished = {**finished, "agent_digest": digest}
    row = journal.entry(run.thread_id, run.id, step, Checkpoint.RUN_FINISHED, finished, unit.now)
    journal.append(unit.tx, [*rows, row])
    if run.kin is not None or run.children:
        subagents.after_end(unit, run, ending, text)
    ended = turns.end(unit.tx, run.turn_id, run.thread_id, run.group, disposition_of(ending), now=unit.now)
    if ended.reply_target is not None:
        reply = {**body, "text": text}
        # Sent after stages/project.py has announced the end.
        outbox.add(unit.tx, run.thread_id, run.turn_id, target=ended.reply_target, body=reply, now=unit.now)
    if ended.hand_on and is_last:  # the place in the budget, for the turn that is due first
        starting.hand_on(unit, run, several=ended.several)
    elif ended.hand_on:
        unit.follow(Dispatch(group=run.group))
    if ended.next_in_line is not None:  # the thread, for its own next turn
        group, hint, of = ended.next_in_line
        if not ended.hand_on or group is not run.group:
            unit.follow(Dispatch(group=group, hint=hint, of=of))


def _last_checkpoint(unit: Unit, run: Run) -> list[journal.Row]:
    """A run that ends at a settled round has no further reply to record the round's checkpoint with."""
    is_recorded = run.status is RunStatus.WAITING and run.reason is not Reason.HELD
    if run.phase is Phase.INFERENCE or run.in_flight or is_recorded:
        return []
    return checkpoints.of_round(unit, run)


def drop_queued(
    unit: Unit,
    turn_id: str,
    disposition: Disposition,
    detail: str | None,
    *,
    into: str | None = None,
    kin: Kin | None = None,
) -> bool:
    """End a turn that never started; the line behind it moves up. False: it is not queued any more. `kin`: of a
    child.
    """
    parent = None if kin is None else kin.parent_run
    dropped = turns.end_queued(unit.tx, turn_id, disposition, unit.now, detail=detail, into=into, parent_run=parent)
    if dropped is None:
        return False
    if dropped.reply_target is not None:
        body = {"reason": disposition.value, "code": None, "detail": detail, "text": None}
        outbox.add(unit.tx, dropped.thread_id, turn_id, target=dropped.reply_target, body=body, now=unit.now)
    if dropped.kin is not None:
        subagents.after_drop(unit, dropped.kin, detail)
    make_next_ready(unit, dropped.thread_id)
    unit.announce(TurnDropped(turn_id=turn_id, disposition=disposition))
    return True


def make_next_ready(unit: Unit, thread_id: str) -> None:
    freed = turns.make_next_ready(unit.tx, thread_id, unit.now)
    if freed:
        unit.follow(Dispatch(group=freed))


def retry_unknown_agent(rt: Runtime, claim: RunClaim, error: UserError) -> list[Intent]:
    """A run whose agent is broken leaves its place in the budget, and rescue tries again until the files are repaired
    or the turn is cancelled. An agent that is gone, or whose server is away, is tried again a few times.
    """
    if claim.run.resends >= PATIENCE and not isinstance(error, Unavailable | BrokenAgent):
        return end_here(rt, claim, failed("agent", str(error)))
    if isinstance(error, BrokenAgent) and (intents := leave_place(rt, claim.run.id)):
        return intents
    raise error


def leave_place(rt: Runtime, run_id: str) -> list[Intent]:
    """The run cannot continue until its agent is repaired. The first time, its place is handed on."""
    with Unit(rt) as unit:
        group = runs.stall(unit.tx, run_id)
        if group:
            waiting.hand_on_place(unit, group)
    return unit.intents


def record_crash(rt: Runtime, run: Run) -> None:
    """A fault of ours, or a reply that cannot be stored, would come again for ever and be paid for each time."""
    with Unit(rt) as unit:
        runs.record_crash(unit.tx, run, unit.lease())
