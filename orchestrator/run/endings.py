"""How runs and turns end: the last checkpoint, the closing of what is open, and the start of whoever waited.

Every end is one transaction. Afterwards, and only then, whoever waits for the turn is told, and the thread is let go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from chordage.orchestrator.core.errors import BrokenAgent, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.core.kinship import Kin
from chordage.orchestrator.core.model import Attempt, Usage
from chordage.orchestrator.core.reasons import BY_A_MESSAGE, ROLLED_BACK, Ending, Reason, disposition_of, failed
from chordage.orchestrator.core.records import Checkpoint, Phase, Run
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.core.transcript import NOT_RUN, attempts_of
from chordage.orchestrator.run import plugins, subagents, waiting
from chordage.orchestrator.run.waiting import Transition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, journal, outbox, runs, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()

PATIENCE = 3  # how often a run whose agent is not there is tried again


def end_here(rt: Runtime, at: RunClaim, ending: Ending, *, attempts: Sequence[Attempt] = ()) -> list[Intent]:
    """The run ends without another reply, in a transaction of its own. `attempts`: what was tried in vain."""
    crossing = rt.store.insist(lambda tx: end(tx, rt, at, ending, attempts=attempts))
    if crossing.ended:
        tell_the_end(rt, at.run, crossing.ended)
    if crossing.rests:
        waiting.tell_the_rest(rt, at.run)
    return crossing.intents


def end(tx: Tx, rt: Runtime, at: RunClaim, ending: Ending, *, attempts: Sequence[Attempt] = ()) -> Transition:
    """... or comes to rest, while calls of it wait for a decision; the end is kept for afterwards."""
    if waiting.is_held_up(tx, at.run, ending):
        return waiting.suspend_run(tx, rt, at, to=at.step, kept=ending, rows=_settled_round(tx, rt, at.run))
    if not runs.finish(tx, at, ending, usage=waiting.NO_USAGE, now=rt.now()):
        return waiting.NOT_OURS
    close_open_calls(tx, rt, at.run, code="run_ended", content=NOT_RUN)
    intents = close_turn(tx, rt, at.run, at.step, ending, [], text=None, attempts=attempts)
    return Transition(intents=intents, ended=ending)


def close_open_calls(tx: Tx, rt: Runtime, run: Run, *, code: str, content: str) -> None:
    """Each call that is still open gets a row that says so, and nobody is asked about it any more."""
    if run.children:
        subagents.close_waits(tx, rt, run, code=code)
    calls.cancel_of_run(tx, run.id, code=code, content=content, now=rt.now())
    if run.suspended:
        approvals.close_of_run(tx, run.id)


def end_run(tx: Tx, rt: Runtime, seen: Run, ending: Ending, *, content: str) -> list[Intent] | None:
    """End a run from outside: its calls are closed, each with a row that says so. None: it was done already.

    What was seen of it may be old, so it is locked and read again: it may have asked a person or a sub-agent meanwhile.
    """
    run, now = runs.lock(tx, seen.id), rt.now()
    if run is None or not runs.end(tx, run, ending, now):
        return None
    code = ending.code if ending.code in BY_A_MESSAGE else ending.reason.value
    close_open_calls(tx, rt, run, code=code, content=content)
    told = {"reason": ending.reason.value, "code": ending.code, "detail": ending.detail}
    rows = [
        *_settled_round(tx, rt, run),
        journal.entry(run.thread_id, run.id, run.step, Checkpoint.RUN_INTERRUPTED, told, now),
    ]
    if ending.code == ROLLED_BACK:
        rows.append(journal.entry(run.thread_id, run.id, run.step, Checkpoint.ROLLED_BACK, {}, now))
    return close_turn(tx, rt, run, run.step, ending, rows, text=None)


def retry_unknown_agent(rt: Runtime, at: RunClaim, error: UserError) -> list[Intent]:
    """An agent whose files are broken is waited for, without a place in the budget: rescue tries again until they are
    repaired, or the turn is cancelled. One that is gone, or a server of it that is away, is tried again a few times.
    """
    if at.run.resends >= PATIENCE and not isinstance(error, Unavailable | BrokenAgent):
        return end_here(rt, at, failed("agent", str(error)))
    if isinstance(error, BrokenAgent) and (freed := leave_place(rt, at.run.id)):
        return freed
    raise error


def leave_place(rt: Runtime, run_id: str) -> list[Intent]:
    """The run cannot go on until its agent is repaired. Others may have its place; the first time, they are told."""
    with rt.store.write() as tx:
        group = runs.stall(tx, run_id)
        return waiting.hand_on(tx, group) if group else []


def _settled_round(tx: Tx, rt: Runtime, run: Run) -> list[journal.Row]:
    """A run that ends at a settled round has no reply for the round's checkpoint to ride with."""
    is_told = run.status is RunStatus.WAITING and run.reason is not Reason.HELD
    if run.phase is Phase.INFERENCE or run.in_flight or is_told:
        return []
    return waiting.owed_rows(tx, rt, run)


def record_crash(rt: Runtime, run: Run) -> None:
    """A fault of ours, or a reply that cannot be stored, would come again for ever and be paid for each time."""
    with rt.store.write() as tx:
        runs.record_crash(tx, run, rt.leases.until(rt.now()))


def drop_queued(
    tx: Tx,
    rt: Runtime,
    turn_id: str,
    disposition: Disposition,
    detail: str | None,
    *,
    into: str | None = None,
    kin: Kin | None = None,
) -> list[Intent] | None:
    """A turn ends that never started, and the line behind it moves on. None: it is not in the queue any more. `kin`: of
    a child.
    """
    now = rt.now()
    parent = None if kin is None else kin.parent_run
    dropped = turns.end_queued(tx, turn_id, disposition, now, detail=detail, into=into, parent_run=parent)
    if dropped is None:
        return None
    if dropped.reply_target is not None:
        body = {"reason": disposition.value, "code": None, "detail": detail, "text": None}
        outbox.add(tx, dropped.thread_id, turn_id, target=dropped.reply_target, body=body, now=now)
    of_kin = subagents.after_drop(tx, rt, dropped.kin, detail)
    freed = turns.make_next_ready(tx, dropped.thread_id, now)
    return [*of_kin, *([Dispatch(group=freed)] if freed else [])]


def tell_the_end(rt: Runtime, run: Run, how: Ending | None = None, usage: Usage = waiting.NO_USAGE) -> None:
    """After the commit: plugins hear of it, whoever waits for the turn may look, and the thread is let go. Who is told
    before that finds the lock of a run that is done, and takes it over; where a run only rests nobody could.
    """
    plugins.run_end(rt, run)
    rt.events.emit(run.id, "run.finished", turn=run.turn_id)
    rt.events.turn_done(run.turn_id)
    rt.locks.release(run.thread_id, run.owner)
    _log_the_end(rt, run, how, usage)


def _log_the_end(rt: Runtime, run: Run, how: Ending | None, usage: Usage) -> None:
    """One line for a turn, in whichever process ended it. `run`: as it was before; `how` and `usage`: with what it
    ended, where whoever ended it has both in hand. Else its row is read: that end came from outside, and is rare.
    """
    run = run if how is not None else _as_it_ended(rt, run)
    reason = how or (Ending(reason=run.reason, code=run.code, detail=run.detail) if run.reason else None)
    spent = run.usage + usage
    seconds = ((run.ended_at or rt.now()) - run.started_at).total_seconds()
    log.info(
        "turn ended", turn=run.turn_id, run=run.id, thread=run.thread_id, agent=run.agent,
        disposition=disposition_of(reason).value if reason else None, code=reason.code if reason else None,
        seconds=round(seconds, 3), rounds=run.rounds,
        input_tokens=spent.input_tokens, output_tokens=spent.output_tokens,
    )  # fmt: skip


def _as_it_ended(rt: Runtime, run: Run) -> Run:
    try:
        with rt.store.read() as tx:
            return runs.load(tx, run.id) or run
    except Unavailable:  # the end is committed, and must not fail for a line of the log
        return replace(run, reason=None)


def log_unstarted(turn_id: str, disposition: Disposition) -> None:
    """The same for a turn that ends and never had a run of its own."""
    log.info("turn ended", turn=turn_id, disposition=disposition.value)


def close_turn(
    tx: Tx,
    rt: Runtime,
    run: Run,
    step: int,
    ending: Ending,
    rows: list[journal.Row],
    *,
    text: str | None,
    attempts: Sequence[Attempt] = (),
    told: Mapping[str, Any] | None = None,
) -> list[Intent]:
    """The last checkpoint of a run, the end of its turn, and the start of whoever waited for it. `told`: what else is
    said of how it came to its answer.
    """
    now = rt.now()
    rows = rows or _settled_round(tx, rt, run)
    body = {"reason": ending.reason.value, "code": ending.code, "detail": ending.detail, **(told or {})}
    tried = {**body, "attempts": attempts_of(attempts)} if attempts else body
    finished = journal.entry(run.thread_id, run.id, step, Checkpoint.RUN_FINISHED, tried, now)
    journal.append(tx, [*rows, finished])
    of_kin = subagents.after_end(tx, rt, run, ending, text)
    ended = turns.end(tx, run.turn_id, run.thread_id, run.group, disposition_of(ending), now=now)
    if ended.reply_target is not None:
        outbox.add(tx, run.thread_id, run.turn_id, target=ended.reply_target, body={**body, "text": text}, now=now)
    return [*of_kin, *_whoever_waited(ended, run.group)]


def _whoever_waited(ended: turns.EndedTurn, group: Group) -> list[Intent]:
    """For the thread that is free now, its next turn; for the place, whoever has been due longest."""
    due: list[Intent] = [Dispatch(group=group)] if ended.hand_on else []
    if ended.next_in_line is not None:
        of_next, hint, of = ended.next_in_line
        if not due or of_next is not group:
            due.append(Dispatch(group=of_next, hint=hint, of=of))
    return due
