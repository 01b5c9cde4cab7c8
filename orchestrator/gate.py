"""The resume gate: at every crossing of a run that has suspended calls, what was decided goes on, and then the run.

Passed at the run's start, at the top of its loop and after every round; all of them are the same place, `after_rest`
of the decider. A run none of whose calls was ever suspended does not come here.
"""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator import children, ending, resting
from chordage.orchestrator.core import resuming
from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.intents import Advance, CallTools, Intent
from chordage.orchestrator.core.records import Call, Phase, Run
from chordage.orchestrator.core.rounds import spread
from chordage.orchestrator.core.status import CallStatus, RunStatus
from chordage.orchestrator.core.suspending import Decision, Suspension, SuspensionStatus, settled_by
from chordage.orchestrator.resting import Crossing
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

Answered = dict[str, tuple[Suspension, Decision]]  # by call


def go_through(rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """What follows; None when nothing holds the run up and the model may be asked."""
    crossing = rt.store.insist(lambda tx: _pass(tx, rt, run, agent))
    if crossing is None:
        return None
    if crossing.rests:
        resting.tell_the_rest(rt, run)
    if crossing.ended:
        ending.tell_the_end(rt, run, crossing.ended)
    return crossing.intents


def _pass(tx: Tx, rt: Runtime, seen: Run, agent: AgentSpec) -> Crossing | None:
    run = runs.lock(tx, seen.id)
    if run is None or run.status is not RunStatus.RUNNING or run.next_inference is None or _moved(run, seen):
        return resting.NOT_OURS
    at = RunClaim(run=run, step=run.next_inference, token=run.claim_token)
    if run.kept is not None and run.kept.reason in resting.FINAL:
        return ending.end(tx, rt, at, run.kept)
    open_calls = calls.unsettled(tx, run.id)
    answered = answers_of(tx, run)
    due = children.in_turn(agent, resuming.due(open_calls, answered, agent.tool_mode), answered)
    if due:
        return Crossing(intents=_replay(tx, rt, run, agent, due, answered))
    settled = resting.just_settled(tx, run)
    ends = run.kept is not None
    if run.phase is not Phase.INFERENCE and (
        resuming.must_wait(settled, open_calls, agent.mixed_round, has_kept_an_end=ends) or children.hold_up(tx, run)
    ):
        rows = [resting.round_row(rt, run, settled)] if settled else []
        return resting.rest(tx, rt, at, to=at.step, kept=run.kept, rows=rows, mode=agent.tool_mode)
    if run.kept is None or open_calls:
        return None
    return ending.end(tx, rt, at, run.kept)


def replay_if_due(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """Only what was decided goes on, and the run nowhere. The run is locked."""
    answered = answers_of(tx, run)
    due = children.in_turn(agent, resuming.due(calls.unsettled(tx, run.id), answered, agent.tool_mode), answered)
    return _replay(tx, rt, run, agent, due, answered) if due else None


def _moved(run: Run, seen: Run) -> bool:
    return (run.epoch, run.step, run.phase) != (seen.epoch, seen.step, seen.phase)


def answers_of(tx: Tx, run: Run) -> Answered:
    """The questions of a run that have their answer, by call."""
    asked = {s.id: s for s in approvals.unsettled(tx, run.id) if s.status is SuspensionStatus.DECIDED}
    found = approvals.decisions_of(tx, asked) if asked else {}
    return {asked[suspension_id].call_id: (asked[suspension_id], answer) for suspension_id, answer in found.items()}


def _replay(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, due: Sequence[Call], answered: Answered) -> list[Intent]:
    """A step of its own, in which the calls that were decided are settled or sent."""
    step = run.step + 1
    owed = resting.owed_rows(tx, rt, run)
    sent, begun = apply(tx, rt, run, agent, due, answered, step=step)
    replay_from = min([call.step for call in sent], default=step)
    runs.open_replay(tx, run, to=step, replay_from=replay_from, lease_until=rt.leases.until(rt.now()))
    journal.append(tx, owed)
    if not sent:
        return [*begun, Advance(run_id=run.id, group=run.group, of=run.subject)]
    at_once = 1 if agent.tool_mode is ToolMode.SEQUENTIAL else agent.concurrency
    batches = spread([call.id for call in sent], at_once)
    fan_out = CallTools(
        run_id=run.id, thread_id=run.thread_id, step=step, batches=batches, group=run.group, of=run.subject,
        tools={call.id: call.tool for call in sent},
    )  # fmt: skip
    return [*begun, fan_out]


def apply(
    tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, due: Sequence[Call], answered: Answered, *, step: int
) -> tuple[list[Call], list[Intent]]:
    """Settle what the answer settles; returned are the calls that have to be carried out, and what becomes of those
    that ask a sub-agent.
    """
    now = rt.now()
    until = rt.leases.until(now)
    sent: list[Call] = []
    for call in due:
        if call.status is CallStatus.NEW:
            calls.unpark(tx, [call.id], step=step, lease_until=until)
            sent.append(call)
        elif _is_sent(tx, rt, call, *answered[call.id], step=step):
            sent.append(call)
    used = [answered[call.id] for call in due if call.id in answered]
    approvals.settle(tx, [asked.id for asked, _ in used])
    approvals.mark_applied(tx, [answer.id for _, answer in used], now)
    return children.begin_among(tx, rt, run, agent, sent, step=step)


def _is_sent(tx: Tx, rt: Runtime, call: Call, asked: Suspension, answer: Decision, *, step: int) -> bool:
    now = rt.now()
    settled = settled_by(asked, answer)
    if settled is None:
        until = rt.leases.until(now)
        return calls.resume(tx, call.id, step=step, arguments=answer.edited_args, lease_until=until)
    if settled.status is not CallStatus.CANCELLED:
        calls.resume(tx, call.id, step=step, arguments=None, lease_until=None)
    calls.answer(
        tx, call.id, status=settled.status, code=settled.code, content=settled.content, full=settled.full, step=step,
        now=now,
    )  # fmt: skip
    return False
