"""What a tool may read of the results of earlier calls: those of its own thread, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import (
    DecisionRequest,
    Question,
    Suspension,
    about_the_unknown,
    arrived,
    seen_by_tool,
)
from chordage.orchestrator.core.errors import (
    Aborted,
    BrokenAgent,
    Conflict,
    NotFound,
    OutOfTime,
    Unavailable,
    UserError,
)
from chordage.orchestrator.core.intents import CommitRound, Intent
from chordage.orchestrator.core.phases import Hook, Resumed, ShownCall
from chordage.orchestrator.core.plugin_state import STATE_CONFLICT
from chordage.orchestrator.core.reasons import TIMEOUT, failed
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, CallStatus
from chordage.orchestrator.core.text import clean_text
from chordage.orchestrator.core.transcript import OUTCOME_UNKNOWN, UNKNOWN_TEXT
from chordage.orchestrator.core.verdicts import Block, SupplyResult, SuspendCall
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.gateways.ports import CallOrder, ResultPage, ToolOutcome
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.run import endings, limits, plugins, task_file, waiting
from chordage.orchestrator.run.approvals import Decided, take_decisions, tell
from chordage.orchestrator.run.limits import Deadline
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, runs
from chordage.orchestrator.store.approvals import decision_of, load, open_about_claim
from chordage.orchestrator.store.calls import CallOutcome, CallToRun
from chordage.orchestrator.store.database import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResults:
    """Implements `ports.ResultReader`."""

    rt: Runtime
    thread_id: str

    def part(self, call_id: str, offset: int, length: int) -> ResultPage:
        with self.rt.store.read() as tx:
            found = calls.result_part(tx, call_id, offset, length)
        if found is None or found.thread_id != self.thread_id:
            raise NotFound(f"there is no result of a call {call_id!r} in this conversation")
        return ResultPage(text=found.text, total=found.total)


# 5a. One tool call: its outcome is a row.
#
# What the tool declares decides what is on record before it starts. An unsafe or reconcilable call is claimed in a
# commit of its own, so that a crash inside it leaves evidence and it is never run again blindly. A pure or idempotent
# call may run twice by its own word: it starts at once, and is claimed with the first heartbeat, or when this is not
# its first wake-up.

log = structlog.get_logger()

BRIEFLY = 2.0  # seconds: a connection was cut, and the next one may be had at once
NOT_STARTED = "The time limit of the turn was reached before this call began: it was not started."
BROKEN_OFF = (
    "The time limit of the turn was reached while this call was running. It is not known whether it took effect, and "
    "it was not run again."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallWork:
    call: Call
    agent_name: str
    epoch: int
    token: str | None
    began: datetime
    limit: Deadline | None = None
    decision: Any = None  # what the tool is told of the answer
    answer: Any = None  # the answer itself
    lease_until: datetime | None = None  # of the claim, as it was made

    @property
    def is_resumed(self) -> bool:
        return self.call.suspension_id is not None


def run_batch(rt: Runtime, call_ids: Sequence[str], *, in_doubt: bool = False) -> list[Intent]:
    """Carry these calls out, one after the other: an agent may cap how many of a round run at once. What follows is
    usually nothing: the body of the chord sees to the round.
    """
    follow: list[Intent] = []
    batch = InFlightWork(run_id="", epoch=0, behind=list(call_ids[1:]), may_hand_over=False)
    with rt.in_flight.tracking(batch):
        for call_id in call_ids:
            batch.behind = [other for other in batch.behind if other != call_id]
            try:
                done = run_call(rt, call_id, in_doubt=in_doubt)
            except _AgentIsBroken as waits:  # those behind it are of the same agent
                return [*follow, *endings.leave_place(rt, waits.run_id)]
            if done is None and _is_in_another_hand(rt, call_id, call_ids):
                break
            follow += done or []
    return follow


def _is_in_another_hand(rt: Runtime, call_id: str, batch: Sequence[str]) -> bool:
    """Then the calls behind it are not ours either: they come one after the other, whoever carries them out."""
    if len(batch) == 1:
        return False
    with rt.store.read() as tx:
        call = calls.load(tx, call_id)
    return call is not None and call.status in IN_FLIGHT_CALL and call.lease_until is not None


def run_call(rt: Runtime, call_id: str, *, in_doubt: bool = False) -> list[Intent] | None:
    """Carry one call out; None where another worker has it, or had. `in_doubt`: this is not the first wake-up, so claim
    before you start.
    """
    follow: list[Intent] = []
    work = _take_up(rt, call_id, in_doubt=in_doubt)
    if work is None:
        return None
    limit = work.limit
    hand = InFlightWork(
        run_id=work.call.run_id, epoch=work.epoch, call_id=call_id, thread_id=work.call.thread_id, token=work.token,
        may_hand_over=False, left=None if limit is None else lambda: limit.left(rt.now()),
    )  # fmt: skip
    try:
        with rt.in_flight.tracking(hand):
            heard = _hearing(rt, work)
            work, refusal = _heard_before(rt, work, heard)
            outcome = refusal or _known_outcome(rt, work) or _in_time(rt, work, hand)
            follow = _settle(rt, work, _heard_after(rt, work, heard, outcome), heard)
    except Aborted:
        log.info("call was cancelled while it ran, or is in another hand", call=call_id, run=work.call.run_id)
    except (SystemExit, KeyboardInterrupt):
        _cut_short(rt, work)
        raise
    except Unavailable:
        if not hand.begun:
            _let_go(rt, work)
        raise
    except Exception:
        _after_a_fault(rt, work, begun=hand.begun)
        raise
    return follow


def _check_still_ours(rt: Runtime, work: CallWork) -> None:
    """The process may have stood still since it claimed the call, and the call may be in another hand by now."""
    if work.lease_until is None or rt.now() < work.lease_until - timedelta(seconds=rt.leases.seconds / 2):
        return
    with rt.store.read() as tx:
        if calls.tokens_in_flight(tx, [work.call.id]).get(work.call.id) != work.token:
            raise Aborted


def _hearing(rt: Runtime, work: CallWork) -> PluginSession | None:
    """None where no plugin listens to tools: the usual case costs nothing."""
    try:
        agent = rt.agents.get(work.agent_name)
        plugin_set = rt.plugin_sets(agent)
    except UserError:  # said when the tool is to run
        return None
    if not (
        plugin_set.listens(Hook.AFTER_TOOL_EXECUTE)
        or (plugin_set.listens(Hook.BEFORE_TOOL_EXECUTE) and work.is_resumed)
    ):
        return None
    with rt.store.read() as tx:
        run = runs.load(tx, work.call.run_id)
    assert run is not None
    return plugins.session(rt, run, agent, work.call.step, call_id=work.call.id)


def _shown(work: CallWork) -> ShownCall:
    call = work.call
    resumed = Resumed(payload=work.answer) if work.is_resumed else None
    return plugins.shown_call(call.id, call.ask_id, call.tool, call.arguments, call.effect, resumed)


def _heard_before(rt: Runtime, work: CallWork, heard: PluginSession | None) -> tuple[CallWork, ToolOutcome | None]:
    """A call that somebody approved goes through the gate once more: what has become forbidden meanwhile stays so."""
    if heard is None or not work.is_resumed:
        return work, None
    try:
        found = plugins.gate(heard, _shown(work))
    except PluginFailed as error:
        _keep_failure(rt, work, error)
        return work, ToolOutcome(code="plugin", content=str(error))
    work = _amended(rt, work, found.arguments(work.call.arguments))
    match found.verdict:
        case Block(reason=reason):
            return work, ToolOutcome(code=found.code or "blocked", content=reason)
        case SupplyResult(content=content):
            return work, ToolOutcome(content=content)
        case SuspendCall() as again:
            return work, ToolOutcome(content=again.prompt, question=again.question)
        case None:
            return work, None


def _amended(rt: Runtime, work: CallWork, arguments: dict[str, Any]) -> CallWork:
    """Whoever looks at the call, or asks about it again, sees what it is carried out with."""
    if arguments == work.call.arguments:
        return work
    if not rt.store.insist_single(lambda tx: calls.amend(tx, work.call, work.token, arguments)):
        raise Aborted
    return replace(work, call=replace(work.call, arguments=arguments))


def _keep_failure(rt: Runtime, work: CallWork, error: PluginFailed) -> None:
    """A broken plugin ends the run, once its round is settled."""
    with rt.store.write() as tx:
        runs.keep_ending(tx, work.call.run_id, failed("plugin", str(error)))


def _heard_after(rt: Runtime, work: CallWork, heard: PluginSession | None, outcome: ToolOutcome) -> ToolOutcome:
    """A broken plugin ends the run, but the tool has run: its outcome is recorded as it was."""
    if heard is None or outcome.question is not None:
        return outcome
    seconds = (rt.now() - work.began).total_seconds()
    try:
        told = plugins.after_tool(heard, _shown(work), outcome.content, outcome.code, seconds)
    except PluginFailed as error:
        _keep_failure(rt, work, error)
        return outcome
    return replace(outcome, content=told)


def _after_a_fault(rt: Runtime, work: CallWork, *, begun: bool) -> None:
    """Nobody foresaw how this ended. It counts like a death; of an unsafe call that had begun nobody knows what it did
    before it.
    """
    if work.call.effect is Effect.UNSAFE and begun:
        _settle(rt, work, ToolOutcome(code=OUTCOME_UNKNOWN, content=UNKNOWN_TEXT))
        return
    with rt.store.single() as tx:
        calls.record_crash(tx, work.call.id, work.token, rt.worker, rt.leases.until(rt.now()))


def _take_up(rt: Runtime, call_id: str, *, in_doubt: bool) -> CallWork | None:
    with rt.store.read() as tx:
        found = calls.load_for_work(tx, call_id)
    if found is None:
        return None
    call, agent_name, running = found.call, found.agent, found.is_running
    token, until = None, None
    if not running or not _may_start(rt, call) or (in_doubt and _is_held_up(rt, call, agent_name)):
        return None
    _check_repaired(rt, call, agent_name)
    limit, now = _limit(rt, found), rt.now()
    if in_doubt or call.resends or call.effect.starts_on_record or call.status is not CallStatus.NEW:
        token, until = rt.new_id(), rt.leases.until(now)
    work = CallWork(
        call=call, agent_name=agent_name, epoch=found.epoch, token=token, began=call.started_at or now, limit=limit,
        lease_until=until,
    )  # fmt: skip
    if call.suspension_id:
        work = _with_answer(rt, work, call.suspension_id)
    return work if token is None or _claim(rt, work, token, now) else None


def _claim(rt: Runtime, work: CallWork, token: str, now: datetime) -> bool:
    """Last of all: what is claimed and does not begin would look like a death."""
    assert work.lease_until is not None
    try:
        with rt.store.single() as tx:
            return calls.claim(tx, work.call, token, rt.worker, now=now, lease_until=work.lease_until)
    except Unavailable:  # it may have been claimed, and only the answer is lost
        _let_go(rt, work)
        raise


def _let_go(rt: Runtime, work: CallWork) -> None:
    """Its tool has not begun: whoever comes next may begin, and nobody has to be asked what became of it. While the
    database stays away nothing is done, and the lease of what was claimed runs out.
    """
    if work.token is not None:
        release = partial(calls.unclaim, call_id=work.call.id, token=work.token, now=rt.now())
        rt.store.insist_single(release, patience=BRIEFLY)


def _limit(rt: Runtime, found: CallToRun) -> Deadline | None:
    try:
        agent = rt.agents.get(found.agent)
    except UserError:  # said when the tool is to run
        return None
    if agent.limits.timeout is None and not found.may_be_limited:
        return None
    with rt.store.read() as tx:
        run = runs.load(tx, found.call.run_id)
    return None if run is None else limits.deadline(rt, run, agent)


class _AgentIsBroken(Exception):
    """A call waits until its agent is repaired."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


def _check_repaired(rt: Runtime, call: Call, agent_name: str) -> None:
    """Before it is claimed: the agent may be repaired, or whole on another worker. Rescue sends for the call again."""
    try:
        rt.agents.get(agent_name)
    except BrokenAgent as error:
        log.warning("a call waits for a broken agent", call=call.id, run=call.run_id, fault=str(error))
        raise _AgentIsBroken(call.run_id) from error
    except UserError as error:  # said when the tool is to run
        log.debug("agent not found", call=call.id, error=str(error))


def _is_held_up(rt: Runtime, call: Call, agent_name: str) -> bool:
    """A wake-up of rescue may come for a call whose lease was up before that of the one it stands behind."""
    if call.place == 0 or not waiting.is_sequential(rt, agent_name):
        return False
    with rt.store.read() as tx:
        return calls.is_behind(tx, call)


def _with_answer(rt: Runtime, work: CallWork, suspension_id: str) -> CallWork:
    with rt.store.read() as tx:
        asked, answer = load(tx, suspension_id), decision_of(tx, suspension_id)
    if asked is None or answer is None:
        return work
    return replace(work, decision=seen_by_tool(asked, answer), answer=answer.payload)


def _may_start(rt: Runtime, call: Call) -> bool:
    """A call that is in somebody's hand stays there until rescue has taken it out: its holder may have been unable to
    renew the lease, and that is judged in one place.
    """
    if call.expiries >= rt.leases.poison_after:
        return False  # rescue ends it
    match call.status:
        case CallStatus.NEW | CallStatus.RESUMING:
            return call.lease_until is not None  # without one it is parked behind a call that waits
        case CallStatus.RUNNING:
            return call.worker is None
        case _:
            return False


def _known_outcome(rt: Runtime, work: CallWork) -> ToolOutcome | None:
    """A reconcilable call that somebody had started: its tool can tell what became of it."""
    if work.call.effect is Effect.RECONCILABLE and work.call.status is CallStatus.RUNNING:
        return rt.tools.reconcile(rt.agents.get(work.agent_name), _order(rt, work))
    return None


def _in_time(rt: Runtime, work: CallWork, hand: InFlightWork) -> ToolOutcome:
    """The run has a time limit: the call is given up when it is reached, and the round's end ends the run."""
    try:
        hand.check()
    except OutOfTime:
        return ToolOutcome(code=TIMEOUT, content=NOT_STARTED)
    try:
        return _carry_out(rt, work, hand)
    except OutOfTime:
        return ToolOutcome(code=TIMEOUT, content=BROKEN_OFF)


def _carry_out(rt: Runtime, work: CallWork, hand: InFlightWork) -> ToolOutcome:
    _check_still_ours(rt, work)
    rt.events.emit(work.call.run_id, "tool.started", call=work.call.id, tool=work.call.tool, worker=rt.worker)

    def on_progress(text: str) -> None:
        with rt.store.single() as tx:
            calls.note_progress(tx, work.call.id, text)
        rt.events.emit(work.call.run_id, "tool.progress", call=work.call.id, text=text)

    try:
        agent = rt.agents.get(work.agent_name)
        hand.begun = True
        return rt.tools.run(agent, _order(rt, work), abort=hand, on_progress=on_progress)
    except UserError as error:
        return ToolOutcome(code="tool_unavailable", content=str(error))


def _order(rt: Runtime, work: CallWork) -> CallOrder:
    call = work.call
    return CallOrder(
        call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, tool=call.tool, arguments=call.arguments,
        idempotency_key=call.idempotency_key, attempt=1 + call.resends, decision=work.decision,
        task=task_file.of_thread(rt, call.thread_id), results=StoredResults(rt=rt, thread_id=call.thread_id),
    )  # fmt: skip


def _settle(rt: Runtime, work: CallWork, outcome: ToolOutcome, heard: PluginSession | None = None) -> list[Intent]:
    question = outcome.question or _asked_about(rt, work, outcome)
    if question is not None:
        notes = partial(plugins.note_beside, at=heard) if heard is not None else None
        if not waiting.suspend_call(rt, work.call, work.agent_name, work.token, question, with_it=notes):
            log.warning("late question refused", call=work.call.id, run=work.call.run_id)
        return []
    record = CallOutcome(
        status=CallStatus.SUCCEEDED if outcome.ok else CallStatus.FAILED,
        code=outcome.code,
        content=clean_text(outcome.content),
        full=clean_text(outcome.full) if outcome.full is not None else None,
        worker=rt.worker,
        started_at=work.began,
        ended_at=rt.now(),
    )
    if not _is_settled(rt, work, record, heard):
        return _answer_the_question(rt, work, record, heard)
    rt.events.emit(work.call.run_id, "tool.settled", call=work.call.id, status=record.status.value, code=record.code)
    return []


def _answer_the_question(rt: Runtime, work: CallWork, record: CallOutcome, heard: PluginSession | None) -> list[Intent]:
    """This process had been taken for dead, and a person was asked what became of the call. As long as nobody has said,
    its true result is the answer.
    """
    with rt.store.read() as tx:
        asked = open_about_claim(tx, work.call.id, work.token) if work.token else None
    if asked is not None:
        result = arrived(asked.id, code=record.code, content=record.content, full=record.full)
        try:
            decided, intents = rt.store.insist(lambda tx: _arrive(tx, rt, result, asked, heard))
        except Conflict:
            log.info("somebody has just answered for the call", call=work.call.id, run=work.call.run_id)
        else:
            log.info("late result answers the question about its call", call=work.call.id, run=work.call.run_id)
            tell(rt, decided)
            return intents
    log.warning("late result refused", call=work.call.id, run=work.call.run_id)
    return []


def _arrive(
    tx: Tx, rt: Runtime, result: DecisionRequest, asked: Suspension, heard: PluginSession | None
) -> tuple[list[Decided], list[Intent]]:
    taken = take_decisions(tx, rt, [result], [asked], "tool")
    if heard is not None:
        plugins.note_beside(tx, heard)
    return taken


def _is_settled(rt: Runtime, work: CallWork, record: CallOutcome, heard: PluginSession | None) -> bool:
    if heard is None or not heard.notes:
        return rt.store.insist_single(lambda tx: calls.settle(tx, work.call, work.token, record))
    return rt.store.insist(lambda tx: _settle_with_notes(tx, work, record, heard))


def _settle_with_notes(tx: Tx, work: CallWork, record: CallOutcome, heard: PluginSession) -> bool:
    """A conflict with what another call of the round noted costs this call its result, and nobody else."""
    with tx.begin_nested() as attempt:
        if not calls.settle(tx, work.call, work.token, record):
            return False  # nor is anything noted of a result that nobody wants
        conflict = plugins.note(tx, heard)
        if conflict is None:
            return True
        attempt.rollback()
    refused = replace(record, status=CallStatus.FAILED, code=STATE_CONFLICT, content=conflict)
    return calls.settle(tx, work.call, work.token, refused)


def _asked_about(rt: Runtime, work: CallWork, outcome: ToolOutcome) -> Question | None:
    """Nobody knows what became of the call: a person may, unless the agent says not to ask."""
    if outcome.code != OUTCOME_UNKNOWN or not waiting.asks_about_unknown(rt, work.agent_name):
        return None
    return about_the_unknown(work.call.tool)


def _cut_short(rt: Runtime, work: CallWork) -> None:
    """The process is told to end inside the call. What may run again is let go at once, and that counts as a death; the
    rest is as after a crash.
    """
    if work.call.effect in {Effect.PURE, Effect.IDEMPOTENT}:
        with rt.store.single() as tx:
            calls.record_crash(tx, work.call.id, work.token, rt.worker, rt.now())


def after_lone_call(rt: Runtime, call_id: str) -> list[Intent]:
    """A call sent outside its chord has no body behind it: whoever ran it asks for the commit."""
    with rt.store.read() as tx:
        call, run = calls.load(tx, call_id), None
        if call is not None:
            run = runs.load(tx, call.run_id)
    if call is None or run is None or run.in_flight:
        return []
    return [CommitRound(run_id=run.id, step=run.step, group=run.group, of=run.subject)]
