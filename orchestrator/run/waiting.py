"""How calls and runs are suspended, and how a run that waits is resumed.

A call that is suspended and its question are written in one transaction. A run that waits has no lease, no thread lock
and no place in the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import OnUnknown, ToolMode
from chordage.orchestrator.core.agent_versions import OfAgent
from chordage.orchestrator.core.approvals import Question, SuspensionStatus
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, advance
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Call, Checkpoint, NewCall, Run
from chordage.orchestrator.core.rounds import due
from chordage.orchestrator.run import starting
from chordage.orchestrator.run.unit import NO_USAGE, LiveEvent, RunContinues, RunSuspended, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, children, groups, journal, runs
from chordage.orchestrator.store.approvals import CallInQuestion
from chordage.orchestrator.store.runs import RunClaim

FINAL = frozenset({Reason.CANCELLED, Reason.ERROR})  # an end for these reasons waits for no decision


def ends_after_decisions(unit: Unit, run: Run, ending: Ending) -> bool:
    """Whether calls of the run still wait, so that this end has to. Locks the run."""
    if not run.suspended or ending.reason in FINAL:
        return False
    runs.mark_suspended(unit.tx, run.id)
    return bool(calls.unsettled(unit.tx, run.id))


def suspend_run(
    unit: Unit,
    claim: RunClaim,
    *,
    to: int,
    kept: Ending | None,
    rows: Sequence[journal.Row],
    mode: ToolMode = ToolMode.PARALLEL,
    usage: Usage = NO_USAGE,
    rounds: int = 0,
    unless_steered: bool = False,
) -> None:
    """Running -> Waiting. A decision that came while the last work was done resumes the run at once."""
    tx, run = unit.tx, claim.run
    if kept is not None and kept.reason is Reason.NATURAL_END:
        kept = None  # there will be results that the model has not seen: it is asked again
    runs.suspend(tx, claim, to=to, kept=kept, rounds=rounds, usage=usage, now=unit.now, unless_steered=unless_steered)
    open_calls = calls.unsettled(tx, run.id)
    waits = {"calls": [call.id for call in open_calls]}
    journal.append(tx, [*rows, journal.entry(run.thread_id, run.id, to, Checkpoint.RUN_WAITING, waits, unit.now)])
    decided = decided_calls(unit, run)
    if decided and due(open_calls, decided, mode):
        runs.resume(tx, run, rested_ms=run.rested_ms, lease_until=unit.lease())
        unit.follow(advance(run))
        unit.announce(RunContinues(run=run))
    else:
        unit.announce(RunSuspended(run=run))
        hand_on(unit, run)


def hand_on(unit: Unit, run: Run) -> None:
    """The place of a run that this transaction suspends or holds. It takes no further lock."""
    if awaited := groups.place_awaited(unit.tx, run.group):
        starting.hand_on(unit, run, several=awaited == groups.SEVERAL)


def resume_run(unit: Unit, run: Run) -> None:
    """Waiting -> Running. Time in which a sub-agent worked is not counted as rest."""
    since = run.rested_since or unit.now
    rested = unit.now - since
    if run.children:
        rested -= subagents.covered(children.spans(unit.tx, run.id, since, unit.now))
    rested_ms = run.rested_ms + max(0, int(rested.total_seconds() * 1000))
    runs.resume(unit.tx, run, rested_ms=rested_ms, lease_until=unit.lease())
    unit.follow(advance(run))


def hand_on_place(unit: Unit, group: Group) -> None:
    """A run of this group has left its place in the budget, in this transaction or before it."""
    if groups.place_awaited(unit.tx, group):
        unit.follow(Dispatch(group=group))


def may_continue(unit: Unit, run: Run, mode: ToolMode) -> bool:
    """Whether some call of it could run now: it was decided about, or the call ahead of it is settled."""
    return bool(due(calls.unsettled(unit.tx, run.id), decided_calls(unit, run), mode))


def decided_calls(unit: Unit, run: Run) -> set[str]:
    asked = approvals.unsettled(unit.tx, run.id)
    return {suspension.call_id for suspension in asked if suspension.status is SuspensionStatus.DECIDED}


def suspend_call(
    rt: Runtime,
    call: Call,
    agent: OfAgent,
    token: str | None,
    question: Question,
    *,
    seen_lease: datetime | None = None,
    also: Callable[[Unit], None] = lambda _unit: None,
) -> bool:
    """Suspend a call that has started. False: it is settled, or not ours.

    `seen_lease`: only while this lease is not renewed; the holder of the token may still come with the result.
    `also`: what else to write in the same transaction.
    """
    suspension_id = rt.new_id()
    sequential = is_sequential(rt, agent)

    def work(unit: Unit) -> bool:
        runs.mark_suspended(unit.tx, call.run_id)
        if not calls.suspend(unit.tx, call, token, suspension_id, seen_lease=seen_lease):
            return False
        if sequential:
            calls.park_behind(unit.tx, call)
        claim = token if seen_lease is not None else None
        approvals.ask(unit.tx, suspension_id, _in_question(call, agent.agent), question, unit.now, about_claim=claim)
        also(unit)
        shown = {"call": call.id, "suspension": suspension_id, "tool": call.tool, "prompt": question.prompt}
        unit.announce(LiveEvent(run_id=call.run_id, kind="call.suspended", data=shown))
        return True

    return insist(rt, work)[0]


def suspend_idle_call(unit: Unit, call: Call, agent: str, question: Question) -> bool:
    """Suspend a call that no worker holds. Its run is locked."""
    suspension_id = unit.rt.new_id()
    if not calls.suspend(unit.tx, call, None, suspension_id):
        return False
    approvals.ask(unit.tx, suspension_id, _in_question(call, agent), question, unit.now)
    return True


def _in_question(call: Call, agent: str) -> CallInQuestion:
    return CallInQuestion(
        call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, agent=agent, step=call.step, tool=call.tool,
        arguments=call.arguments,
    )  # fmt: skip


def ask_before_start(unit: Unit, run: Run, step: int, call: NewCall) -> None:
    """The question about a call that is suspended before it starts; its row has been written."""
    assert call.question is not None
    assert call.suspension_id is not None
    about = CallInQuestion(
        call_id=call.id, run_id=run.id, thread_id=run.thread_id, agent=run.agent, step=step, tool=call.tool,
        arguments=call.arguments,
    )  # fmt: skip
    approvals.ask(unit.tx, call.suspension_id, about, call.question, unit.now)


def is_sequential(rt: Runtime, agent: OfAgent) -> bool:
    """Whether its calls run one after the other, so that one that waits stops those behind it."""
    try:
        return rt.agent_of(agent).tool_mode is ToolMode.SEQUENTIAL
    except UserError:
        return False


def asks_about_unknown(rt: Runtime, agent: OfAgent) -> bool:
    """Whether a person is asked about the outcome of an unsafe call. An agent that cannot be loaded has not refused."""
    try:
        return rt.agent_of(agent).on_unknown is OnUnknown.ASK
    except UserError:
        return True
