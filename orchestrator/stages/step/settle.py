"""A held run moves on: a rule decides what becomes of its reply, and one transaction writes it.

This is the only place where the history of a stepped run grows by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.intents import advance
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.moves import Finish, Move
from chordage.orchestrator.core.output import Accepted, Ended, Refused, Verdict, given_up
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, Reason, failed
from chordage.orchestrator.core.records import Answer, Call, Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.settling import Fate, Held, Route, Settled, settled
from chordage.orchestrator.core.status import OPEN_CALL
from chordage.orchestrator.core.stepping import PENDING, Drive, digest, tuned
from chordage.orchestrator.core.transcript import NOT_RUN, build
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.run import (
    checkpoints,
    endings,
    output,
    planning,
    rounds,
    stepping,
    subagents,
    transitions,
    waiting,
)
from chordage.orchestrator.run.model_request import ModelRequest
from chordage.orchestrator.run.stepping import Recorded
from chordage.orchestrator.run.unit import RunEnded, Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening as openings
from chordage.orchestrator.stages.step.opening import KnownHistory, Opening
from chordage.orchestrator.store import approvals, calls, journal, runs
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies.shipped import plans

Changes = dict[str, Any]  # of the row of a stepped turn


# Before the transaction.


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """What will be written, if nothing has changed until then."""

    rule: Settled
    step: int  # behind which the run continues, and where the consumer's messages are recorded
    opening: Opening | None = None  # calls that are to be carried out, or closed
    stale: list[str] = field(default_factory=list)  # calls that are no longer wanted
    output: Verdict | None = None  # on a reply that ends the run, where it has to fit a form
    planned: dict[str, Any] | None = None  # the plan that is recorded
    late: list[str] = field(default_factory=list)  # calls whose results came while the reply was held
    details: dict[str, Any] = field(default_factory=dict)  # what the end of the run records beside its answer


def settle(rt: Runtime, seen: SteppedRows) -> Settlement:
    run = working_run(rt, seen)
    agent = tuned(rt.agent_of(run), seen.row)
    _refuse_open_calls(seen)
    form = rt.outputs(agent)

    def move_for(reply: Reply) -> Move:
        move = transitions.choose_move(run, agent, reply, rt.now(), plans=plans_so_far)
        return move if form is None else output.complete_only(move, reply)

    held, history = held_by(seen), openings.read_history(rt, run)
    entries, answers = history.entries, history.answers
    plans_so_far = planning.read(rt, run, agent, entries, answers) if plans(run.strategy) else None
    rule = settled(held, move_for)
    if unseen := _unseen_results(seen, held, rule, answers):
        rule = replace(rule, route=Route.ASK, ending=None)
    rule, verdict = _with_verdict(rt, seen, held, rule, form)
    step = seen.row.reply_step if _is_at_reply(rule, seen) else run.step
    assert step is not None
    if rule.route is Route.ASK:
        _refuse_same_request(seen, history, step)
    details = {} if plans_so_far is None else planning.details(plans_so_far)
    settlement = Settlement(
        rule=rule, step=step, stale=_stale(rule, seen.calls), output=verdict, details=details, late=unseen
    )
    if not rule.open_ids or (rule.of_reply and seen.calls):
        return settlement
    request = openings.request_at(rt, seen, step, agent, history)
    return with_opening(rt, seen, settlement, request, dict(enumerate(rule.asks)))


def with_opening(
    rt: Runtime, seen: SteppedRows, settlement: Settlement, request: ModelRequest, asks: rounds.Asks
) -> Settlement:
    """With the calls it opens, or closes, each at its place."""
    rule = settlement.rule
    try:
        if rule.route is Route.TOOLS:
            opening = openings.check(rt, seen, request, asks, rule.open_ids)
        else:
            opening = openings.closed(rt, request, asks, rule.open_ids, rule.closes or "not_run")
    except PluginFailed as error:
        broken = replace(rule, route=Route.END, ending=failed("plugin", str(error)), open_ids=frozenset())
        return replace(settlement, rule=broken)
    return replace(settlement, opening=opening)


def _unseen_results(seen: SteppedRows, held: Held, rule: Settled, answers: Sequence[Answer]) -> list[str]:
    """Calls of earlier rounds that were decided about since the reply, where the run would end with it.

    The model has not seen their results, so its reply is not the answer yet. A run driven automatically would have
    waited with its reply and asked again; whether the decision comes before or after the consumer says `next` must make
    no difference.
    """
    if rule.route is not Route.END or rule.fate is not Fate.APPENDED or rule.ending != NATURAL_END or held.is_capped:
        return []
    assert seen.held is not None
    run_id, step = seen.held.run_id, seen.held.step
    return [
        call.id
        for call in answers
        if call.run_id == run_id and call.step <= step < (call.replayed_at or 0) and call.status not in OPEN_CALL
    ]


def _with_verdict(
    rt: Runtime, seen: SteppedRows, held: Held, rule: Settled, form: OutputForm | None
) -> tuple[Settled, Verdict | None]:
    """The answer has to be what the agent demands; one that is not is sent back once, as in any run."""
    run, reply = _run(seen), seen.reply
    if form is None or reply is None or rule.fate is not Fate.APPENDED or rule.ending is None:
        return rule, None
    if run.suspended and _has_open_calls(rt, run):  # so this is not the answer
        return rule, None
    verdict = output.verdict(rt, run, form, reply, Finish(ending=rule.ending))
    if isinstance(verdict, Refused) and held.is_capped:
        verdict = given_up(verdict.why)
    match verdict:
        case Refused():
            return replace(rule, route=Route.ASK, ending=None), verdict
        case Ended(ending=ending):
            return replace(rule, ending=ending), verdict
        case _:
            return rule, verdict


def _has_open_calls(rt: Runtime, run: Run) -> bool:
    with rt.store.read() as tx:
        return bool(calls.unsettled(tx, run.id))


def working_run(rt: Runtime, seen: SteppedRows) -> Run:
    """Time in which it has been held is not counted as work."""
    run = _run(seen)
    return replace(run, rested_ms=rested_ms(run, rt.now()))


def rested_ms(run: Run, now: datetime) -> int:
    return run.rested_ms + int((now - (run.rested_since or now)).total_seconds() * 1000)


def _run(seen: SteppedRows) -> Run:
    assert seen.run is not None
    return seen.run


def held_by(seen: SteppedRows) -> Held:
    row = seen.row
    return Held(
        reply=seen.reply, mutated=row.mutated, given=row.given, steered=bool(row.steers or _run(seen).steers),
        kept=_run(seen).kept, iteration=row.iteration, max_iterations=row.max_iterations, cap_policy=row.cap_policy,
    )  # fmt: skip


def _is_at_reply(rule: Settled, seen: SteppedRows) -> bool:
    """The calls of the reply come behind the reply, whether it became history by itself or through the consumer."""
    return seen.held is not None and (rule.fate is Fate.APPENDED or (rule.of_reply and bool(rule.open_ids)))


def _stale(rule: Settled, of_reply: Sequence[Call]) -> list[str]:
    """Calls of the reply that still wait, and will not be in the history, or not as they are."""
    wanted = rule.open_ids if rule.of_reply and rule.route is Route.TOOLS else frozenset()
    return [call.id for call in of_reply if call.status in OPEN_CALL and call.ask_id not in wanted]


def _refuse_open_calls(seen: SteppedRows) -> None:
    if left := client_messages.left_open(seen.row.given):
        problem = f"there is no result for the asks {', '.join(left)}: give the whole history anew with `params`"
        raise StepRefused(problem, code="open_calls", rev=seen.row.rev, standing=seen.standing.value)


def _refuse_same_request(seen: SteppedRows, history: KnownHistory, step: int) -> None:
    """A request that differs in nothing from the one before would be paid for again, and for ever."""
    row = seen.row
    if not row.mutated or row.sent_hash is None:
        return
    entries = [*history.entries, *_entries(seen, step)]
    if digest(build(entries, history.answers), row.params) == row.sent_hash:
        problem = "the next request would be the same as the last: change something, or take the messages back"
        raise StepRefused(problem, code="noop_mutation", rev=row.rev, standing=seen.standing.value)


def _entries(
    seen: SteppedRows, step: int, verdict: Verdict | None = None, planned: dict[str, Any] | None = None
) -> list[Entry]:
    """What becomes history, as it will be recorded."""
    run, row = _run(seen), seen.row
    rows: list[tuple[int, Checkpoint, dict[str, Any]]] = []
    if planned is not None:
        rows.append((step, Checkpoint.PLAN, planned))
    elif seen.held is not None and not row.mutated:
        rows.append((seen.held.step, Checkpoint.ASSISTANT_TURN, seen.held.body))
        if isinstance(verdict, Refused):
            rows.append((seen.held.step, Checkpoint.OUTPUT_REFUSED, {"why": verdict.why}))
    if row.given:
        rows.append((step, Checkpoint.CLIENT_MESSAGES, {"messages": row.given, "replaces": row.replaces}))
    return [
        Entry(id=PENDING, thread_id=run.thread_id, run_id=run.id, step=at, kind=kind, body=body)
        for at, kind, body in rows
    ]


# Inside the transaction.


def write(unit: Unit, seen: SteppedRows, settlement: Settlement) -> Changes:
    """`seen` is locked, and as it was when the settlement was made."""
    run = _run(seen)
    entries = _entries(seen, settlement.step, settlement.output, settlement.planned)
    rows = [journal.entry(run.thread_id, run.id, entry.step, entry.kind, entry.body, unit.now) for entry in entries]
    if settlement.late:  # the run has waited for them, with its reply: so the next prompt says that they are new
        assert seen.held is not None
        body = {"calls": settlement.late}
        rows.append(journal.entry(run.thread_id, run.id, seen.held.step, Checkpoint.RUN_WAITING, body, unit.now))
    journal.append(unit.tx, rows)
    _give_up(unit, run, _all_stale(unit, seen, settlement), code=settlement.rule.closes or "not_run")
    match settlement.rule.route:
        case Route.TOOLS:
            return _into_round(unit, seen, settlement)
        case Route.ASK:
            return _to_model(unit, seen, settlement)
        case Route.END:
            return _to_end(unit, seen, settlement)


def _all_stale(unit: Unit, seen: SteppedRows, settlement: Settlement) -> list[str]:
    """Where the consumer has given the whole history anew, also what is open of rounds before."""
    if not seen.row.replaces:
        return settlement.stale
    of_reply = {call.id for call in seen.calls}
    before = [call.id for call in calls.unsettled(unit.tx, _run(seen).id) if call.id not in of_reply]
    return [*settlement.stale, *before]


def _give_up(unit: Unit, run: Run, call_ids: Sequence[str], *, code: str) -> None:
    """These calls are no longer wanted: their questions are withdrawn and their sub-agents cancelled."""
    if not call_ids:
        return
    approvals.close_of_calls(unit.tx, call_ids)
    calls.cancel(unit.tx, call_ids, code=code, content=NOT_RUN, now=unit.now)
    if run.children:
        for call_id in call_ids:
            subagents.give_up(unit, call_id=call_id)


_MOVED_ON: Mapping[str, Any] = {
    "mutated": False, "parked": False, "reply_step": None, "given": [], "replaces": False, "verdicts": {},
    "withheld": [], "error": None, "held_until": None, "going": True, "plan": None,
}  # fmt: skip


def _changes(seen: SteppedRows, **more: Any) -> Changes:
    drive = Drive.STEP if seen.row.drive is Drive.ONCE else seen.row.drive
    return {**_MOVED_ON, "drive": drive, **more}


def _resume(unit: Unit, run: Run, *, to: tuple[int, Phase], rounds_made: int = 0) -> None:
    rested = rested_ms(run, unit.now)
    runs.resume_held(unit.tx, run, to=to, rounds=rounds_made, rested_ms=rested, lease_until=unit.lease())


def _into_round(unit: Unit, seen: SteppedRows, settlement: Settlement) -> Changes:
    run = _run(seen)
    if settlement.opening is not None:
        openings.send(unit, run, settlement.opening, rounds_made=1, rested_ms=rested_ms(run, unit.now))
    else:  # its calls were carried out while it was held
        _resume(unit, run, to=(run.step, run.phase), rounds_made=1)
        unit.follow(advance(run))
    if settlement.rule.ending is not None:
        runs.keep_ending(unit.tx, run.id, run.thread_id, settlement.rule.ending)
    if stepping.holds(run, Recorded.RESULTS if settlement.planned is None else Recorded.ROUND):
        return _changes(seen, going=False, withheld=seen.row.withheld)
    return _changes(seen)


def _to_model(unit: Unit, seen: SteppedRows, settlement: Settlement) -> Changes:
    run, row = _run(seen), seen.row
    is_news = bool(
        row.given or row.steers or run.phase is Phase.HELD or seen.held is not None or settlement.planned is not None
    )
    if is_news:
        steers = [stepping.steers_row(unit, run, run.step, row.steers)] if row.steers else []
        journal.append(unit.tx, [*checkpoints.of_round(unit, run), *steers])
    to = (max(run.step, settlement.step) + 1, Phase.INFERENCE) if is_news else (run.step, run.phase)
    is_round = settlement.rule.fate is Fate.APPENDED and settlement.output is None
    _resume(unit, run, to=to, rounds_made=int(is_round))
    _close(unit, run, settlement)
    unit.follow(advance(run))
    return _changes(seen, steers=[] if is_news else row.steers)


def _close(unit: Unit, run: Run, settlement: Settlement) -> None:
    if (opening := settlement.opening) is not None:
        calls.insert(unit.tx, run, opening.step, opening.outcome.asked, now=unit.now, lease_until=unit.now)


def _to_end(unit: Unit, seen: SteppedRows, settlement: Settlement) -> Changes:
    run, ending = _run(seen), settlement.rule.ending
    assert ending is not None
    _close(unit, run, settlement)
    if ending.reason not in waiting.FINAL and run.suspended and calls.unsettled(unit.tx, run.id):
        return _wait_before_end(unit, seen, ending)
    runs.finish_held(unit.tx, run, ending, unit.now)
    endings.close_open_calls(unit, run, code="run_ended", content=NOT_RUN)
    reply = seen.reply if settlement.rule.fate is Fate.APPENDED else None
    step = seen.held.step if seen.held is not None and reply is not None else run.step
    text = reply.text if reply else None
    accepted = settlement.output.details() if isinstance(settlement.output, Accepted) else {}
    details = settlement.details | accepted
    endings.close_turn(unit, run, step, ending, checkpoints.of_round(unit, run), text=text, details=details)
    unit.announce(RunEnded(run=run))
    return _changes(seen)


def _wait_before_end(unit: Unit, seen: SteppedRows, ending: Ending) -> Changes:
    """Calls of an earlier round still wait for a decision: the run waits with them, as any run does."""
    run = _run(seen)
    journal.append(unit.tx, checkpoints.of_round(unit, run))
    _resume(unit, run, to=(run.step + 1, Phase.REPLAY))
    if ending.reason is not Reason.NATURAL_END:
        runs.keep_ending(unit.tx, run.id, run.thread_id, ending)
    unit.follow(advance(run))
    return _changes(seen)
