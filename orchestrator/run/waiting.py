"""How a run comes to rest: nothing of it moves until somebody decides, and it holds nothing meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chordage.orchestrator.core import kinship
from chordage.orchestrator.core.agent import OnUnknown, ToolMode
from chordage.orchestrator.core.approvals import Question, SuspensionStatus
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, Dispatch, Intent
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Answer, Call, Checkpoint, NewCall, Phase, Run
from chordage.orchestrator.core.rounds import due
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, children, groups, journal, runs
from chordage.orchestrator.store.approvals import CallInQuestion
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

NO_USAGE = Usage()
FINAL = frozenset({Reason.CANCELLED, Reason.ERROR})  # such an end waits for nobody


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """What came of a crossing: whether it was ours to pass, whether the run came to its end or to rest there, and
    what follows.
    """

    intents: list[Intent] = field(default_factory=list)
    ours: bool = True
    ended: Ending | None = None  # with what, where the run came to its end
    usage: Usage = NO_USAGE  # of the reply that it ended with
    rests: bool = False
    steered: tuple[str, ...] = ()  # turns that the run has taken in
    held: bool = False  # it lies with its consumer

    @property
    def goes_on(self) -> bool:
        return self.ours and not (self.ended or self.rests or self.held)


NOT_OURS = Transition(ours=False)


def is_held_up(tx: Tx, run: Run, how: Ending) -> bool:
    """Whether this end has to wait, because calls of the run do. The run is locked from here on."""
    if not run.suspended or how.reason in FINAL:
        return False
    runs.mark_suspended(tx, run.id)
    return bool(calls.unsettled(tx, run.id))


def suspend_run(
    tx: Tx,
    rt: Runtime,
    at: RunClaim,
    *,
    to: int,
    kept: Ending | None,
    rows: Sequence[journal.Row],
    mode: ToolMode = ToolMode.PARALLEL,
    usage: Usage = NO_USAGE,
    rounds: int = 0,
    unless_steered: bool = False,
) -> Transition:
    """Running -> Waiting. A decision that came in while the last work was done moves it on at once."""
    if kept is not None and kept.reason is Reason.NATURAL_END:
        kept = None  # there will be results that the model has not seen: it is asked again
    if not runs.suspend(
        tx, at, to=to, kept=kept, rounds=rounds, usage=usage, now=rt.now(), unless_steered=unless_steered
    ):
        return NOT_OURS
    run, now = at.run, rt.now()
    waits = {"calls": [call.id for call in calls.unsettled(tx, run.id)]}
    journal.append(tx, [*rows, journal.entry(run.thread_id, run.id, to, Checkpoint.RUN_WAITING, waits, now)])
    if _is_decided(tx, run, mode):
        runs.resume(tx, run, rested_ms=run.rested_ms, lease_until=rt.leases.until(now))
        return Transition(intents=[Advance(run_id=run.id, group=run.group, of=run.subject)])
    return Transition(intents=hand_on(tx, run.group), rests=True)


def hand_on(tx: Tx, group: Group) -> list[Intent]:
    """For the place that a run of this group has freed, in this transaction or before it."""
    return [Dispatch(group=group)] if groups.is_place_awaited(tx, group) else []


def wake(tx: Tx, rt: Runtime, run: Run) -> Advance:
    """Waiting -> Running. The time in which a child was at work is none in which the run has rested."""
    now = rt.now()
    since = run.rested_since or now
    rested = now - since
    if run.children:
        rested -= kinship.covered(children.spans(tx, run.id, since, now))
    rested_ms = run.rested_ms + max(0, int(rested.total_seconds() * 1000))
    runs.resume(tx, run, rested_ms=rested_ms, lease_until=rt.leases.until(now))
    return Advance(run_id=run.id, group=run.group, of=run.subject)


def may_go_on(tx: Tx, run: Run, mode: ToolMode) -> bool:
    """Whether some call of it could be carried out now: it was decided about, or what it stood behind is settled."""
    decided = {s.call_id for s in approvals.unsettled(tx, run.id) if s.status is SuspensionStatus.DECIDED}
    return bool(due(calls.unsettled(tx, run.id), decided, mode))


def _is_decided(tx: Tx, run: Run, mode: ToolMode) -> bool:
    decided = {s.call_id for s in approvals.unsettled(tx, run.id) if s.status is SuspensionStatus.DECIDED}
    return bool(decided) and bool(due(calls.unsettled(tx, run.id), decided, mode))


def tell_the_rest(rt: Runtime, run: Run) -> None:
    """After the commit: the lock is let go, and whoever watches may look into the inbox."""
    rt.locks.release(run.thread_id, run.owner)
    rt.events.emit(run.id, "run.waiting", turn=run.turn_id)


def just_settled(tx: Tx, run: Run) -> list[Call]:
    """The calls of the round or the replay at which the run stands."""
    match run.phase:
        case Phase.TOOL_ROUND:
            joined = calls.of_replay(tx, run.id, run.step) if run.suspended else []
            return [*calls.of_step(tx, run.id, run.step), *joined]
        case Phase.REPLAY:
            return calls.of_replay(tx, run.id, run.step)
        case Phase.INFERENCE | Phase.HELD:
            return []


def owed_rows(tx: Tx, rt: Runtime, run: Run) -> list[journal.Row]:
    """The checkpoint of that round or replay: it rides in the run's next commit."""
    settled = just_settled(tx, run)
    return [round_row(rt, run, settled)] if settled else []


def rows_before(tx: Tx, rt: Runtime, run: Run, known: Sequence[Answer]) -> list[journal.Row]:
    """The checkpoint of the round or replay before, if it has none yet: it rides in the next commit of the run."""
    match run.phase:
        case Phase.INFERENCE | Phase.HELD:
            return []
        case Phase.REPLAY:
            return owed_rows(tx, rt, run)
        case Phase.TOOL_ROUND if run.suspended:
            return owed_rows(tx, rt, run)
        case Phase.TOOL_ROUND:
            settled = [call for call in known if call.run_id == run.id and call.step == run.step]
            return [round_row(rt, run, settled)]


def round_row(rt: Runtime, run: Run, settled: Sequence[Answer | Call]) -> journal.Row:
    body = {"calls": [{"id": call.id, "status": call.status.value, "code": call.code} for call in settled]}
    return journal.entry(run.thread_id, run.id, run.step, Checkpoint.TOOL_RESULTS, body, rt.now())


# How a call is put aside until somebody has decided: one transaction, in which the call and its question are rows.


def suspend_call(
    rt: Runtime,
    call: Call,
    agent: str,
    token: str | None,
    question: Question,
    *,
    seen_lease: datetime | None = None,
    with_it: Callable[[Tx], None] | None = None,
) -> bool:
    """A call that has started asks. `seen_lease`: only while nobody has renewed it; then its holder, whose token this
    is, may still come with the result. `with_it`: what else is on record from the same moment on. False: it is settled,
    or not ours.
    """
    suspension_id = rt.new_id()
    sequential = is_sequential(rt, agent)

    def work(tx: Tx) -> bool:
        runs.mark_suspended(tx, call.run_id)
        if not calls.suspend(tx, call, token, suspension_id, seen_lease=seen_lease):
            return False
        if sequential:
            calls.park_behind(tx, call)
        about = CallInQuestion(
            call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, agent=agent, step=call.step, tool=call.tool,
            arguments=call.arguments,
        )  # fmt: skip
        claim = token if seen_lease is not None else None
        approvals.ask(tx, suspension_id, about, question, rt.now(), about_claim=claim)
        if with_it is not None:
            with_it(tx)
        return True

    if not rt.store.insist(work):
        return False
    tell(rt, call.run_id, call.id, suspension_id, call.tool, question)
    return True


def suspend_idle_call(tx: Tx, rt: Runtime, call: Call, agent: str, question: Question) -> bool:
    """A call that is in nobody's hand, in a transaction that has locked its run."""
    suspension_id = rt.new_id()
    if not calls.suspend(tx, call, None, suspension_id):
        return False
    about = CallInQuestion(
        call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, agent=agent, step=call.step, tool=call.tool,
        arguments=call.arguments,
    )  # fmt: skip
    approvals.ask(tx, suspension_id, about, question, rt.now())
    return True


def record_question(tx: Tx, rt: Runtime, run: Run, step: int, asked: NewCall) -> None:
    """A call that was put aside before it started; its row has been written."""
    assert asked.question is not None
    assert asked.suspension_id is not None
    about = CallInQuestion(
        call_id=asked.id, run_id=run.id, thread_id=run.thread_id, agent=run.agent, step=step, tool=asked.tool,
        arguments=asked.arguments,
    )  # fmt: skip
    approvals.ask(tx, asked.suspension_id, about, asked.question, rt.now())


def tell(rt: Runtime, run_id: str, call_id: str, suspension_id: str, tool: str, question: Question) -> None:
    """As soon as it is asked, not when the slowest call of the round has come back."""
    rt.events.emit(run_id, "call.suspended", call=call_id, suspension=suspension_id, tool=tool, prompt=question.prompt)


def is_sequential(rt: Runtime, agent: str) -> bool:
    """Whether its calls come one after the other, and one that waits holds up those behind it."""
    try:
        return rt.agents.get(agent).tool_mode is ToolMode.SEQUENTIAL
    except UserError:
        return False


def asks_about_unknown(rt: Runtime, agent: str) -> bool:
    """Whether a person is asked what became of an unsafe call. An agent that cannot be loaded cannot have refused."""
    try:
        return rt.agents.get(agent).on_unknown is OnUnknown.ASK
    except UserError:
        return True
