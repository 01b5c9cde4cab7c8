"""5. One tool call: its outcome is a row.

What the tool declares decides what is on record before it starts. An unsafe or reconcilable call is claimed in a commit
of its own, so that a crash inside it leaves evidence and it is never run again blindly. A pure or idempotent call may
run twice by its own declaration: it starts at once, and is claimed with the first heartbeat, or when this is not its
first wake-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode, WhenChanged
from chordage.orchestrator.core.agent_versions import AgentPin
from chordage.orchestrator.core.approvals import (
    RESULT_SOURCE,
    UNKNOWN_TEXT,
    Question,
    about_the_unknown,
    arrived,
    seen_by_tool,
)
from chordage.orchestrator.core.errors import (
    Aborted,
    BrokenAgent,
    Conflict,
    OutOfTime,
    Unavailable,
    UserError,
)
from chordage.orchestrator.core.intents import CallHere, CommitRound, Intent, commit_round
from chordage.orchestrator.core.phases import Hook, Resumed, ShownCall
from chordage.orchestrator.core.placement import STAY
from chordage.orchestrator.core.plugin_state import STATE_CONFLICT
from chordage.orchestrator.core.reasons import TIMEOUT, failed
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, CallStatus
from chordage.orchestrator.core.text import clean_text
from chordage.orchestrator.core.transcript import OUTCOME_UNKNOWN
from chordage.orchestrator.core.verdicts import Block, SupplyResult, SuspendCall
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.run import approvals, endings, limits, placing, plugins, waiting
from chordage.orchestrator.run.limits import Deadline
from chordage.orchestrator.run.orders import order_of
from chordage.orchestrator.run.placing import UnderWay
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.run.unit import LiveEvent, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals as suspensions
from chordage.orchestrator.store import calls, runs
from chordage.orchestrator.store.calls import CallEnd, CallOutcome, CallToRun

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
    pin: AgentPin
    agent: AgentSpec | None  # as it was when the call was taken: the tool runs by what its plugins were asked for
    fault: str = ""  # why it could not be loaded
    epoch: int
    token: str | None
    began: datetime
    limit: Deadline | None = None
    decision: Any = None  # what the tool is shown of the answer
    answer: Any = None  # the answer itself
    lease_until: datetime | None = None  # of the claim, as it was made

    @property
    def is_resumed(self) -> bool:
        return self.call.suspension_id is not None


RunTool = Callable[[Runtime, CallWork, InFlightWork], ToolOutcome]


class _AgentIsBroken(Exception):
    """A call waits until its agent is repaired."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


def run_batch(
    rt: Runtime, call_ids: Sequence[str], *, in_doubt: bool = False, claimed_for: str | None = None
) -> list[Intent]:
    """Carry these calls out, one after the other: an agent may limit how many of a round run at once. What follows is
    usually nothing, because the body of the chord commits the round. `claimed_for`: the agent, where their sender knew
    that the first is claimed before it starts.
    """
    if in_doubt or len(call_ids) == 1:
        return _run_each(rt, call_ids, in_doubt=in_doubt, claimed_for=claimed_for)
    ran = _run_together(rt, call_ids)
    return [*ran.intents, *_run_each(rt, ran.rest, claimed_for=claimed_for, under_way=ran.under_way)]


def call_here(rt: Runtime, intent: CallHere) -> list[Intent]:
    """The calls of a round that stay in the process of their run. What would hold it up is sent."""
    if isinstance(intent.under_way, UnderWay):
        rest = [call_id for call_id in intent.call_ids if call_id != intent.under_way.call_id]
        return [*_run_each(rt, rest, under_way=intent.under_way), *_after(intent)]
    ran = _run_together(rt, intent.call_ids)
    if ran.under_way is None:
        return [*ran.intents, *_run_each(rt, ran.rest), *_after(intent)]
    return [*ran.intents, *placing.go_on(intent, ran.under_way, ran.rest)]


def _after(intent: CallHere) -> list[Intent]:
    """Those that were sent may still be carried out: then the body of their chord finds the round settled."""
    return [CommitRound(run_id=intent.run_id, step=intent.step, group=intent.group, of=intent.of)]


def _run_each(
    rt: Runtime,
    call_ids: Sequence[str],
    *,
    in_doubt: bool = False,
    claimed_for: str | None = None,
    under_way: UnderWay | None = None,
) -> list[Intent]:
    """`under_way`: a call before them that has begun."""
    intents: list[Intent] = []
    batch = InFlightWork(run_id="", epoch=0, behind=list(call_ids), may_hand_over=False)
    is_alone = under_way is None and len(call_ids) == 1
    with nullcontext() if is_alone else rt.in_flight.tracking(batch):
        intents += [] if under_way is None else _finish(rt, under_way)
        for call_id in call_ids:
            batch.behind = [other for other in batch.behind if other != call_id]
            try:
                more = _run_call(rt, call_id, in_doubt=in_doubt, claimed_for=claimed_for)
            except _AgentIsBroken as waits:  # the calls behind it are of the same agent
                return [*intents, *endings.leave_place(rt, waits.run_id)]
            if more is None and len(call_ids) > 1 and _is_held_elsewhere(rt, call_id):
                break  # so are the calls behind it: one worker carries them out one after the other
            intents += more or []
    return intents


def _is_held_elsewhere(rt: Runtime, call_id: str) -> bool:
    with rt.store.read() as tx:
        call = calls.load(tx, call_id)
    return call is not None and call.status in IN_FLIGHT_CALL and call.lease_until is not None


def _run_call(rt: Runtime, call_id: str, *, in_doubt: bool, claimed_for: str | None) -> list[Intent] | None:
    """Carry one call out; None where another worker has it, or had. `in_doubt`: this is not the first wake-up, so claim
    the call before it starts.
    """
    work = None if in_doubt or claimed_for is None else _take_by_claim(rt, call_id, claimed_for)
    work = work or _take(rt, call_id, in_doubt=in_doubt)
    return None if work is None else _carry_out(rt, work, _run_tool)


def _carry_out(rt: Runtime, work: CallWork, run: RunTool) -> list[Intent]:
    intents: list[Intent] = []
    call, limit = work.call, work.limit
    tracked = InFlightWork(
        run_id=call.run_id, epoch=work.epoch, call_id=call.id, thread_id=call.thread_id, token=work.token,
        may_hand_over=False, left=None if limit is None else lambda: limit.left(rt.now()),
    )  # fmt: skip
    try:
        with rt.in_flight.tracking(tracked):
            session = _plugin_session(rt, work)
            work, refusal = _ask_plugins_before(rt, work, session)
            outcome = refusal or _known_outcome(rt, work) or _run_in_time(rt, work, tracked, run)
            intents = _settle(rt, work, _ask_plugins_after(rt, work, session, outcome), session)
    except Aborted:
        log.info("call was cancelled while it ran, or another worker holds it", call=call.id, run=call.run_id)
    except (SystemExit, KeyboardInterrupt):
        _release_if_repeatable(rt, work)
        raise
    except Unavailable:
        if not tracked.begun:
            _unclaim(rt, call.id, work.token)
        raise
    except Exception:
        _record_fault(rt, work, begun=tracked.begun)
        raise
    return intents


# Several calls together.


@dataclass(frozen=True, kw_only=True, slots=True)
class RanTogether:
    """`rest`: what was not carried out. `under_way`: what had not ended at the bound."""

    rest: Sequence[str]
    under_way: UnderWay | None = None
    intents: Sequence[Intent] = ()


def _run_together(rt: Runtime, call_ids: Sequence[str]) -> RanTogether:
    """Carry these calls out if they are plain, and record the outcomes in one commit. As a single call they are `new`
    while they run; all of them may run again.
    """
    with rt.store.read() as tx:
        loaded = calls.load_for_work(tx, *call_ids)
    works = _plain(rt, loaded) if len(loaded) == len(call_ids) else None
    if works is None:
        return RanTogether(rest=call_ids)
    agent = works[0].agent
    assert agent is not None
    try:
        series = rt.tools.begin(agent, [_order(rt, work) for work in works])
    except UserError:  # it has its words for the model when the call is carried out by itself
        return RanTogether(rest=call_ids)
    for work in works:
        _announce_start(rt, work)
    ended = [(work, result) for work, result in zip(works, series.wait(STAY), strict=True) if result is not None]
    for work, result in ended:
        rt.durations.note(work.pin.agent, work.call.tool, result.seconds)
    records = [
        CallEnd(call=work.call, token=None, outcome=_outcome(rt, work, result))
        for work, result in ended
        if result.question is None
    ]
    if records:
        insist(rt, lambda unit: _record_together(unit, records))
    asking = [intent for work, result in ended if result.question for intent in _settle(rt, work, result)]
    at = series.under_way
    under_way = None if at is None else UnderWay(call_id=works[at].call.id, token=None, series=series)
    begun = {work.call.id for work, _ in ended} | ({under_way.call_id} if under_way else set())
    rest = [work.call.id for work in works if work.call.id not in begun]
    return RanTogether(rest=rest, under_way=under_way, intents=asking)


def _plain(rt: Runtime, loaded: Sequence[CallToRun]) -> list[CallWork] | None:
    """None where any call needs more than to be carried out."""
    pin = loaded[0].pin
    try:
        agent = rt.agent_of(pin)
    except UserError:
        return None
    is_limited = agent.limits.timeout is not None or loaded[0].may_be_limited
    if is_limited or agent.tool_mode is ToolMode.SEQUENTIAL or placing.after_hook_is_heard(rt, agent):
        return None
    if not all(each.is_running and _is_fresh(each.call) for each in loaded):
        return None
    now = rt.now()
    return [CallWork(call=each.call, pin=pin, agent=agent, epoch=each.epoch, token=None, began=now) for each in loaded]


def _is_fresh(call: Call) -> bool:
    """It may run again, and nothing has happened to it."""
    is_untouched = call.status is CallStatus.NEW and call.lease_until is not None and call.suspension_id is None
    return is_untouched and not (call.effect.starts_on_record or call.resends or call.expiries)


def _record_together(unit: Unit, records: Sequence[CallEnd]) -> None:
    for record, is_settled in zip(records, calls.settle_all(unit.tx, records), strict=True):
        if is_settled:
            _announce_end(unit, record.call, record.outcome)
        else:
            log.warning("late result refused", call=record.call.id, run=record.call.run_id)


def _finish(rt: Runtime, under_way: UnderWay) -> list[Intent]:
    """Wait for a call that has begun, and record what comes of it, as for one that runs by itself."""
    with rt.store.read() as tx:
        loaded = calls.load_for_work(tx, under_way.call_id)
    if not loaded:
        return []
    call, pin = loaded[0].call, loaded[0].pin
    try:
        agent = rt.agent_of(pin)
    except Unavailable:  # a plugin may have to change the result
        raise
    except UserError:  # its file is being edited: no plugin of it has to get the result
        agent = None
    work = CallWork(
        call=call, pin=pin, agent=agent, epoch=loaded[0].epoch, token=under_way.token,
        began=call.started_at or rt.now(), limit=_limit(rt, loaded[0], agent), lease_until=call.lease_until,
    )  # fmt: skip

    def finish(_rt: Runtime, work: CallWork, tracked: InFlightWork) -> ToolOutcome:
        tracked.begun = True
        outcome = under_way.series.finish(abort=tracked, on_progress=partial(_note_progress, rt, call))
        return outcome or _run_tool(rt, work, tracked)

    return _carry_out(rt, work, finish)


# Taking the call.


def _take(rt: Runtime, call_id: str, *, in_doubt: bool) -> CallWork | None:
    with rt.store.read() as tx:
        found = calls.load_for_work(tx, call_id)
    if not found:
        return None
    (loaded,) = found
    call = loaded.call
    if not loaded.is_running or not _may_start(rt, call):
        return None
    agent, fault = _agent(rt, call, loaded.pin)
    if in_doubt and _is_behind(rt, call, agent):
        return None
    limit, now = _limit(rt, loaded, agent), rt.now()
    token, until = None, None
    if in_doubt or call.resends or call.effect.starts_on_record or call.status is not CallStatus.NEW:
        token, until = rt.new_id(), rt.leases.until(now)
    work = CallWork(
        call=call, pin=loaded.pin, agent=agent, fault=fault, epoch=loaded.epoch, token=token,
        began=call.started_at or now, limit=limit, lease_until=until,
    )  # fmt: skip
    if call.suspension_id:
        work = _with_answer(rt, work, call.suspension_id)
    return work if token is None or _claim(rt, work, token) else None


def _take_by_claim(rt: Runtime, call_id: str, agent_name: str) -> CallWork | None:
    """Load and claim in one statement a call that needs nothing but to be claimed. As for every claim, the agent is
    loaded before: the tool begins next. None: it is not claimed, and `_take` looks what there is to do; so it is where
    the run began with another version.
    """
    try:
        agent = rt.agents.get(agent_name)
    except UserError:
        return None
    if agent.limits.timeout is not None:
        return None
    token = rt.new_id()
    try:
        with Unit(rt, rt.store.single) as unit:
            now, until = unit.now, unit.lease()
            claimed = calls.claim_new(
                unit.tx, call_id, token, rt.worker, agent=agent_name, digest=_version_of(agent), now=now,
                lease_until=until,
            )  # fmt: skip
    except Unavailable:  # as in `_claim`
        _unclaim(rt, call_id, token)
        raise
    if claimed is None:
        return None
    return CallWork(
        call=claimed.call, pin=claimed.pin, agent=agent, epoch=claimed.epoch, token=token, began=now, lease_until=until,
    )  # fmt: skip


def _version_of(agent: AgentSpec) -> str | None:
    """With which the runs began that continue with this agent; None: with any."""
    return None if agent.when_changed is WhenChanged.FOLLOW else agent.digest


def _agent(rt: Runtime, call: Call, pin: AgentPin) -> tuple[AgentSpec | None, str]:
    """The agent, or why it cannot be loaded.

    Before the call is claimed: a broken agent may be repaired, or be whole on another worker. Rescue sends for the call
    again.
    """
    try:
        return rt.agent_of(pin), ""
    except BrokenAgent as error:
        log.warning("a call waits for a broken agent", call=call.id, run=call.run_id, fault=str(error))
        raise _AgentIsBroken(call.run_id) from error
    except Unavailable:  # the version of its run cannot be read: the call waits, as for its own row
        raise
    except UserError as error:
        log.debug("agent not found", call=call.id, error=str(error))
        return None, str(error)


def _may_start(rt: Runtime, call: Call) -> bool:
    """A call that a worker holds stays with it until rescue has taken it back: the holder may have been unable to renew
    the lease, and that is judged in one place.
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


def _is_behind(rt: Runtime, call: Call, agent: AgentSpec | None) -> bool:
    """Rescue may send for a call whose lease ran out before that of the call ahead of it."""
    if call.place == 0 or agent is None or agent.tool_mode is not ToolMode.SEQUENTIAL:
        return False
    with rt.store.read() as tx:
        return calls.is_behind(tx, call)


def _limit(rt: Runtime, loaded: CallToRun, agent: AgentSpec | None) -> Deadline | None:
    if agent is None or (agent.limits.timeout is None and not loaded.may_be_limited):
        return None
    with rt.store.read() as tx:
        run = runs.load(tx, loaded.call.run_id)
    return None if run is None else limits.deadline(rt, run, agent)


def _with_answer(rt: Runtime, work: CallWork, suspension_id: str) -> CallWork:
    with rt.store.read() as tx:
        asked, answer = suspensions.load(tx, suspension_id), suspensions.decision_of(tx, suspension_id)
    if asked is None or answer is None:
        return work
    return replace(work, decision=seen_by_tool(asked, answer), answer=answer.payload)


def _claim(rt: Runtime, work: CallWork, token: str) -> bool:
    """Last of all: a call that is claimed and does not begin would look like a death."""
    assert work.lease_until is not None
    try:
        with Unit(rt, rt.store.single) as unit:
            return calls.claim(unit.tx, work.call, token, rt.worker, now=unit.now, lease_until=work.lease_until)
    except Unavailable:  # it may have been claimed, and only the answer is lost
        _unclaim(rt, work.call.id, token)
        raise


def _unclaim(rt: Runtime, call_id: str, token: str | None) -> None:
    """The tool has not begun: the next worker may begin it, and no person has to be asked about it. While the database
    stays away nothing is done, and the lease of the claim runs out.
    """
    if token is not None:
        insist(
            rt, lambda unit: calls.unclaim(unit.tx, call_id, token, unit.now), patience=BRIEFLY, opening=rt.store.single
        )


# Plugins.


def _plugin_session(rt: Runtime, work: CallWork) -> PluginSession | None:
    """None where no plugin listens to tools."""
    if work.agent is None or not rt.has_plugins(work.agent):
        return None
    plugin_set = rt.plugin_sets(work.agent)
    if not (
        plugin_set.listens(Hook.AFTER_TOOL_EXECUTE)
        or (plugin_set.listens(Hook.BEFORE_TOOL_EXECUTE) and work.is_resumed)
    ):
        return None
    with rt.store.read() as tx:
        run = runs.load(tx, work.call.run_id)
    assert run is not None
    return plugins.session(rt, run, work.agent, work.call.step, call_id=work.call.id)


def _shown(work: CallWork) -> ShownCall:
    call = work.call
    resumed = Resumed(payload=work.answer) if work.is_resumed else None
    return ShownCall(
        id=call.id, ask_id=call.ask_id, tool=call.tool, arguments=call.arguments, effect=call.effect, resumed=resumed
    )


def _ask_plugins_before(
    rt: Runtime, work: CallWork, session: PluginSession | None
) -> tuple[CallWork, ToolOutcome | None]:
    """An approved call is checked once more: what has been forbidden meanwhile stays forbidden."""
    if session is None or not work.is_resumed:
        return work, None
    try:
        gate = session.before_tool(_shown(work))
    except PluginFailed as error:
        _keep_failure(rt, work, error)
        return work, ToolOutcome(code="plugin", content=str(error))
    work = _amended(rt, work, gate.arguments(work.call.arguments))
    match gate.verdict:
        case Block(reason=reason):
            return work, ToolOutcome(code=gate.code or "blocked", content=reason)
        case SupplyResult(content=content):
            return work, ToolOutcome(content=content)
        case SuspendCall() as suspension:
            return work, ToolOutcome(content=suspension.prompt, question=suspension.question)
        case None:
            return work, None


def _amended(rt: Runtime, work: CallWork, arguments: dict[str, Any]) -> CallWork:
    """Stored, so that people who look at the call, or are asked about it again, see what it is carried out with."""
    if arguments == work.call.arguments:
        return work
    amended, _ = insist(
        rt, lambda unit: calls.amend(unit.tx, work.call, work.token, arguments), opening=rt.store.single
    )
    if not amended:
        raise Aborted
    return replace(work, call=replace(work.call, arguments=arguments))


def _ask_plugins_after(rt: Runtime, work: CallWork, session: PluginSession | None, outcome: ToolOutcome) -> ToolOutcome:
    """A broken plugin ends the run, but the tool has run: its outcome is recorded as it was."""
    if session is None or outcome.question is not None:
        return outcome
    seconds = (rt.now() - work.began).total_seconds()
    try:
        content = session.after_tool(_shown(work), outcome.content, outcome.code, seconds)
    except PluginFailed as error:
        _keep_failure(rt, work, error)
        return outcome
    return replace(outcome, content=content)


def _keep_failure(rt: Runtime, work: CallWork, error: PluginFailed) -> None:
    """A broken plugin ends the run, once its round is settled."""
    with Unit(rt) as unit:
        runs.keep_ending(unit.tx, work.call.run_id, work.call.thread_id, failed("plugin", str(error)))


# Running the tool.


def _known_outcome(rt: Runtime, work: CallWork) -> ToolOutcome | None:
    """Of a reconcilable call that was started before: its tool can tell what became of it."""
    if work.call.effect is Effect.RECONCILABLE and work.call.status is CallStatus.RUNNING:
        return rt.tools.reconcile(work.agent or rt.agent_of(work.pin), _order(rt, work))
    return None


def _run_in_time(rt: Runtime, work: CallWork, tracked: InFlightWork, run: RunTool) -> ToolOutcome:
    """If the run has a time limit, the call is given up when it is reached, and the end of the round ends the run."""
    try:
        tracked.check()
    except OutOfTime:
        return ToolOutcome(code=TIMEOUT, content=NOT_STARTED)
    try:
        outcome = run(rt, work, tracked)
    except OutOfTime:
        return ToolOutcome(code=TIMEOUT, content=BROKEN_OFF)
    rt.durations.note(work.pin.agent, work.call.tool, outcome.seconds)
    return outcome


def _run_tool(rt: Runtime, work: CallWork, tracked: InFlightWork) -> ToolOutcome:
    if work.agent is None:  # its plugins could not be asked either
        return ToolOutcome(code="tool_unavailable", content=work.fault)
    _check_still_ours(rt, work)
    _announce_start(rt, work)
    try:
        tracked.begun = True
        progress = partial(_note_progress, rt, work.call)
        return rt.tools.run(work.agent, _order(rt, work), abort=tracked, on_progress=progress)
    except UserError as error:
        return ToolOutcome(code="tool_unavailable", content=str(error))


def _announce_start(rt: Runtime, work: CallWork) -> None:
    rt.events.emit(work.call.run_id, "tool.started", call=work.call.id, tool=work.call.tool, worker=rt.worker)


def _note_progress(rt: Runtime, call: Call, text: str) -> None:
    with Unit(rt, rt.store.single) as unit:
        calls.note_progress(unit.tx, call, text)
        unit.announce(LiveEvent(run_id=call.run_id, kind="tool.progress", data={"call": call.id, "text": text}))


def _check_still_ours(rt: Runtime, work: CallWork) -> None:
    """The process may have stood still since it claimed the call, and another worker may hold it by now."""
    if work.lease_until is None or rt.now() < work.lease_until - timedelta(seconds=rt.leases.seconds / 2):
        return
    with rt.store.read() as tx:
        if calls.tokens_in_flight(tx, [work.call.id]).get(work.call.id) != work.token:
            raise Aborted


def _order(rt: Runtime, work: CallWork) -> CallOrder:
    call = work.call
    return order_of(rt, call, call.run_id, call.thread_id, attempt=1 + call.resends, decision=work.decision)


# Recording what came of it.


def _settle(rt: Runtime, work: CallWork, outcome: ToolOutcome, session: PluginSession | None = None) -> list[Intent]:
    call = work.call
    question = outcome.question or _question_about_unknown(rt, work, outcome)
    if question is not None:
        also = partial(_store_notes, session=session)
        if not waiting.suspend_call(rt, call, work.pin, work.token, question, also=also):
            log.warning("late question refused", call=call.id, run=call.run_id)
        return []
    record = _outcome(rt, work, outcome)
    has_notes = session is not None and bool(session.notes)
    opening = None if has_notes else rt.store.single
    is_settled, intents = insist(rt, lambda unit: _record(unit, work, record, session), opening=opening)
    return intents if is_settled else _answer_question(rt, work, record, session)


def _outcome(rt: Runtime, work: CallWork, outcome: ToolOutcome) -> CallOutcome:
    return CallOutcome(
        status=CallStatus.SUCCEEDED if outcome.ok else CallStatus.FAILED, code=outcome.code,
        content=clean_text(outcome.content), full=clean_text(outcome.full) if outcome.full is not None else None,
        worker=rt.worker, started_at=work.began, ended_at=rt.now(),
    )  # fmt: skip


def _record(unit: Unit, work: CallWork, record: CallOutcome, session: PluginSession | None) -> bool:
    """A conflict with the notes of another call of the round costs this call its result, and no other."""
    settle = partial(calls.settle, unit.tx, work.call, work.token)
    if session is not None and session.notes:
        with unit.tx.begin_nested() as savepoint:  # rolled back without an exception where the notes conflict
            if not settle(record):
                return False  # notes about a refused result are dropped with it
            conflict = plugins.store_notes(unit.tx, session)
            if conflict is not None:
                savepoint.rollback()
        if conflict is not None:
            record = replace(record, status=CallStatus.FAILED, code=STATE_CONFLICT, content=conflict)
            if not settle(record):
                return False
    elif not settle(record):
        return False
    _announce_end(unit, work.call, record)
    return True


def _announce_end(unit: Unit, call: Call, record: CallOutcome) -> None:
    settled = {"call": call.id, "status": record.status.value, "code": record.code}
    unit.announce(LiveEvent(run_id=call.run_id, kind="tool.settled", data=settled))


def _store_notes(unit: Unit, session: PluginSession | None) -> None:
    if session is not None:
        plugins.store_notes_or_log(unit.tx, session)


def _answer_question(rt: Runtime, work: CallWork, record: CallOutcome, session: PluginSession | None) -> list[Intent]:
    """This process had been declared dead, and a person was asked about the call's outcome. Until that question is
    answered, the true result is its answer.
    """
    call = work.call
    with rt.store.read() as tx:
        asked = suspensions.open_about_claim(tx, call.id, work.token) if work.token else None
    if asked is not None:
        result = arrived(asked.id, code=record.code, content=record.content, full=record.full)

        def take(unit: Unit) -> None:
            approvals.take_decisions(unit, [result], [asked], RESULT_SOURCE)
            _store_notes(unit, session)

        try:
            _, intents = insist(rt, take)
        except Conflict:
            log.info("the question about the call has just been answered", call=call.id, run=call.run_id)
        else:
            log.info("late result answers the question about its call", call=call.id, run=call.run_id)
            return intents
    log.warning("late result refused", call=call.id, run=call.run_id)
    return []


def _question_about_unknown(rt: Runtime, work: CallWork, outcome: ToolOutcome) -> Question | None:
    """A person may know the outcome, unless the agent says not to ask."""
    if outcome.code != OUTCOME_UNKNOWN or not waiting.asks_about_unknown(rt, work.pin):
        return None
    return about_the_unknown(work.call.tool)


def _record_fault(rt: Runtime, work: CallWork, *, begun: bool) -> None:
    """An unforeseen end counts like a death. What an unsafe call did before it, once it had begun, is unknown."""
    if work.call.effect is Effect.UNSAFE and begun:
        _settle(rt, work, ToolOutcome(code=OUTCOME_UNKNOWN, content=UNKNOWN_TEXT))
        return
    with Unit(rt, rt.store.single) as unit:
        calls.record_crash(unit.tx, work.call.id, work.token, rt.worker, unit.lease())


def _release_if_repeatable(rt: Runtime, work: CallWork) -> None:
    """The process is told to end inside the call. A call that may run again is released at once, which counts as a
    death; any other is treated as after a crash.
    """
    if work.call.effect in {Effect.PURE, Effect.IDEMPOTENT}:
        with Unit(rt, rt.store.single) as unit:
            calls.record_crash(unit.tx, work.call.id, work.token, rt.worker, unit.now)


def after_lone_call(rt: Runtime, call_id: str) -> list[Intent]:
    """A call sent outside its chord has no body behind it: its worker asks for the commit."""
    with rt.store.read() as tx:
        call = calls.load(tx, call_id)
        run = None if call is None else runs.load(tx, call.run_id)
    return [] if run is None or run.in_flight else [commit_round(run)]
