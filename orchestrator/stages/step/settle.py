"""Results that came while a reply was held: who made it has not seen them, so it is not the answer yet.

A run of its own would have waited with its reply and asked again; whether somebody decides before or after the consumer
says `next` must make no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.intents import Advance, Intent
from chordage.orchestrator.core.model import Reply, ToolAsk
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
from chordage.orchestrator.run import endings, planning, stepping, subagents, transitions, waiting
from chordage.orchestrator.run.output import verdict, whole
from chordage.orchestrator.run.stepping import Recorded
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening as opening_
from chordage.orchestrator.stages.step.opening import At, Known, Opening
from chordage.orchestrator.store import approvals, calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies.shipped import plans


def results_unseen(seen: SteppedRows, held: Held, rule: Settled, answers: Sequence[Answer]) -> list[str]:
    """Calls of earlier rounds that were decided about since the reply, where the run would end with it."""
    if rule.route is not Route.END or rule.fate is not Fate.APPENDED or rule.ending != NATURAL_END or held.is_capped:
        return []
    assert seen.held is not None
    return [call.id for call in answers if _is_unseen(call, seen.held.run_id, seen.held.step)]


def _is_unseen(call: Answer, run_id: str, step: int) -> bool:
    is_of_before = call.run_id == run_id and call.step <= step
    return is_of_before and (call.replayed_at or 0) > step and call.status not in OPEN_CALL


def asked_again(rule: Settled) -> Settled:
    return replace(rule, route=Route.ASK, ending=None)


def row(rt: Runtime, seen: SteppedRows, call_ids: Sequence[str]) -> journal.Row:
    """It has waited for them, with its reply: so the next prompt says that there is news further up."""
    assert seen.held is not None
    held = seen.held
    body = {"calls": list(call_ids)}
    return journal.entry(held.thread_id, held.run_id, held.step, Checkpoint.RUN_WAITING, body, rt.now())


# A held run goes on: what becomes of its reply is decided by rule, and written in one transaction.
#
# This is the only place where the history of a stepped run grows by itself.


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What will be written, if nothing has changed until then."""

    rule: Settled
    step: int  # behind which the run goes on, and where the consumer's messages are recorded
    opening: Opening | None = None  # calls that are to be carried out, or closed
    stale: list[str] = field(default_factory=list)  # calls that nobody wants any more
    output: Verdict | None = None  # on a reply that ends the run, where it has to fit a form
    planned: dict[str, Any] | None = None  # the plan that is on record from here on
    late: list[str] = field(default_factory=list)  # calls whose results came while the reply was held
    told: dict[str, Any] = field(default_factory=dict)  # what the end of the run says beside its answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    changes: dict[str, Any]
    intents: list[Intent]
    ended: bool = False


def plan(rt: Runtime, seen: SteppedRows) -> Plan:
    run = run_of(rt, seen)
    agent = tuned(rt.agents.get(run.agent), seen.row)
    _refuse_open_calls(seen)

    form = rt.outputs(agent)

    def move_for(reply: Reply) -> Move:
        return whole(form, reply, transitions.next_move(run, agent, reply, rt.now(), plans=plans_so_far))

    held, found = held_by(seen), opening_.known(rt, run)
    plans_so_far = planning.read(rt, run, agent, found.entries, found.answers) if plans(run.strategy) else None
    rule = settled(held, move_for)
    if unseen := results_unseen(seen, held, rule, found.answers):
        rule = asked_again(rule)
    rule, output = _judged(rt, seen, held, rule, form)
    step = seen.row.reply_step if _stands_at_reply(rule, seen) else run.step
    assert step is not None
    if rule.route is Route.ASK:
        _refuse_the_same(seen, found, step)
    told = {} if plans_so_far is None else planning.told(plans_so_far)
    plain = Plan(rule=rule, step=step, stale=_stale(rule, seen.calls), output=output, told=told, late=unseen)
    if not rule.open_ids or (rule.of_reply and seen.calls):
        return plain
    return opened(rt, seen, plain, opening_.at_step(rt, seen, step, agent, found), dict(enumerate(rule.asks)))


def opened(rt: Runtime, seen: SteppedRows, plain: Plan, at: At, asks: Mapping[int, ToolAsk]) -> Plan:
    """With the calls it opens, or closes, each at its place."""
    rule = plain.rule
    try:
        judged = (
            opening_.judged(rt, seen, at, asks, rule.open_ids)
            if rule.route is Route.TOOLS
            else opening_.closed(rt, at, asks, rule.open_ids, rule.closes or "not_run")
        )
    except PluginFailed as error:
        broken = replace(rule, route=Route.END, ending=failed("plugin", str(error)), open_ids=frozenset())
        return replace(plain, rule=broken)
    return replace(plain, opening=at.opening(judged))


def _judged(
    rt: Runtime, seen: SteppedRows, held: Held, rule: Settled, form: OutputForm | None
) -> tuple[Settled, Verdict | None]:
    """The answer has to be what the agent demands; one that is not is sent back once, as in any run."""
    run, reply = _run(seen), seen.reply
    if form is None or reply is None or rule.fate is not Fate.APPENDED or rule.ending is None:
        return rule, None
    if run.suspended and _waits(rt, run):  # so this is not the answer
        return rule, None
    found = verdict(rt, run, form, reply, Finish(ending=rule.ending))
    if isinstance(found, Refused) and held.is_capped:
        found = given_up(found.why)
    match found:
        case Refused():
            return replace(rule, route=Route.ASK, ending=None), found
        case Ended(ending=how):
            return replace(rule, ending=how), found
        case _:
            return rule, found


def _waits(rt: Runtime, run: Run) -> bool:
    with rt.store.read() as tx:
        return bool(calls.unsettled(tx, run.id))


def run_of(rt: Runtime, seen: SteppedRows) -> Run:
    """The time in which it has been held is none in which it has worked."""
    run = _run(seen)
    return replace(run, rested_ms=rested_ms(rt, run))


def _run(seen: SteppedRows) -> Run:
    assert seen.run is not None
    return seen.run


def held_by(seen: SteppedRows) -> Held:
    row = seen.row
    return Held(
        reply=seen.reply, mutated=row.mutated, given=row.given, steered=bool(row.steers or _run(seen).steers),
        kept=_run(seen).kept, iteration=row.iteration, max_iterations=row.max_iterations, cap_policy=row.cap_policy,
    )  # fmt: skip


def _stands_at_reply(rule: Settled, seen: SteppedRows) -> bool:
    """The calls of the reply stand behind the reply, whether it became history by itself or through the consumer."""
    return seen.held is not None and (rule.fate is Fate.APPENDED or (rule.of_reply and bool(rule.open_ids)))


def _stale(rule: Settled, of_reply: Sequence[Call]) -> list[str]:
    """Calls of the reply that still wait, and will not stand in the history, or not as they are."""
    wanted = rule.open_ids if rule.of_reply and rule.route is Route.TOOLS else frozenset()
    return [call.id for call in of_reply if call.status in OPEN_CALL and call.ask_id not in wanted]


def _refuse_open_calls(seen: SteppedRows) -> None:
    if left := client_messages.left_open(seen.row.given):
        told = f"no result stands behind the asks {', '.join(left)}: give the whole history anew with `params`"
        raise StepRefused(told, code="open_calls", rev=seen.row.rev, standing=seen.standing.value)


def _refuse_the_same(seen: SteppedRows, found: Known, step: int) -> None:
    """A request that differs in nothing from the one before would be paid for again, and for ever."""
    row = seen.row
    if not row.mutated or row.sent_hash is None:
        return
    entries = [*found.entries, *_entries(seen, step)]
    if digest(build(entries, found.answers), row.params) == row.sent_hash:
        told = "the next request would be the same as the last: change something, or take the messages back"
        raise StepRefused(told, code="noop_mutation", rev=row.rev, standing=seen.standing.value)


def _entries(
    seen: SteppedRows, step: int, output: Verdict | None = None, planned: dict[str, Any] | None = None
) -> list[Entry]:
    """What becomes history, as it will be recorded."""
    run, row = _run(seen), seen.row
    found: list[tuple[int, Checkpoint, dict[str, Any]]] = []
    if planned is not None:
        found.append((step, Checkpoint.PLAN, planned))
    elif seen.held is not None and not row.mutated:
        found.append((seen.held.step, Checkpoint.ASSISTANT_TURN, seen.held.body))
        if isinstance(output, Refused):
            found.append((seen.held.step, Checkpoint.OUTPUT_REFUSED, {"why": output.why}))
    if row.given:
        body = {"messages": row.given, "replaces": row.replaces}
        found.append((step, Checkpoint.CLIENT_MESSAGES, body))
    return [
        Entry(id=PENDING, thread_id=run.thread_id, run_id=run.id, step=at, kind=kind, body=body)
        for at, kind, body in found
    ]


def write(tx: Tx, rt: Runtime, seen: SteppedRows, plan: Plan) -> Done:
    """`seen` is locked, and as it was when the plan was made."""
    run, now = _run(seen), rt.now()
    entries = _entries(seen, plan.step, plan.output, plan.planned)
    rows = [journal.entry(run.thread_id, run.id, one.step, one.kind, one.body, now) for one in entries]
    journal.append(tx, [*rows, row(rt, seen, plan.late)] if plan.late else rows)
    given_up = _give_up(tx, rt, run, _all_stale(tx, seen, plan), code=plan.rule.closes or "not_run")
    match plan.rule.route:
        case Route.TOOLS:
            done = _into_the_round(tx, rt, seen, plan)
        case Route.ASK:
            done = _to_the_model(tx, rt, seen, plan)
        case Route.END:
            done = _to_the_end(tx, rt, seen, plan)
    return replace(done, intents=[*given_up, *done.intents])


def _all_stale(tx: Tx, seen: SteppedRows, plan: Plan) -> list[str]:
    """Where the consumer has given the whole history anew, also what is open of rounds before."""
    if not seen.row.replaces:
        return plan.stale
    of_reply = {call.id for call in seen.calls}
    return [*plan.stale, *(call.id for call in calls.unsettled(tx, _run(seen).id) if call.id not in of_reply)]


def _give_up(tx: Tx, rt: Runtime, run: Run, call_ids: Sequence[str], *, code: str) -> list[Intent]:
    """Nobody wants these calls any more, nor is asked about them, nor are their sub-agents to go on."""
    if not call_ids:
        return []
    approvals.close_of_calls(tx, call_ids)
    calls.cancel(tx, call_ids, code=code, content=NOT_RUN, now=rt.now())
    if not run.children:
        return []
    return [intent for call_id in call_ids for intent in subagents.given_up(tx, call_id=call_id)]


_SETTLED: Mapping[str, Any] = {
    "mutated": False, "parked": False, "reply_step": None, "given": [], "replaces": False, "verdicts": {},
    "withheld": [], "error": None, "held_until": None, "going": True, "plan": None,
}  # fmt: skip


def _changes(seen: SteppedRows, **more: Any) -> dict[str, Any]:
    drive = Drive.STEP if seen.row.drive is Drive.ONCE else seen.row.drive
    return {**_SETTLED, "drive": drive, **more}


def rested_ms(rt: Runtime, run: Run) -> int:
    since = run.rested_since or rt.now()
    return run.rested_ms + int((rt.now() - since).total_seconds() * 1000)


def _into_the_round(tx: Tx, rt: Runtime, seen: SteppedRows, plan: Plan) -> Done:
    run = _run(seen)
    if plan.opening is not None:
        intents = opening_.send(tx, rt, run, plan.opening, rounds=1, rested_ms=rested_ms(rt, run))
    else:  # its calls were carried out while it was held
        _go(tx, rt, run, to=(run.step, run.phase), rounds=1)
        intents = [Advance(run_id=run.id, group=run.group, of=run.subject)]
    if plan.rule.ending is not None:
        runs.keep_ending(tx, run.id, plan.rule.ending)
    if stepping.holds(run, Recorded.RESULTS if plan.planned is None else Recorded.ROUND):
        return Done(changes=_changes(seen, going=False, withheld=seen.row.withheld), intents=intents)
    return Done(changes=_changes(seen), intents=intents)


def _go(tx: Tx, rt: Runtime, run: Run, *, to: tuple[int, Phase], rounds: int = 0) -> None:
    until = rt.leases.until(rt.now())
    runs.resume_held(tx, run, to=to, rounds=rounds, rested_ms=rested_ms(rt, run), lease_until=until)


def _to_the_model(tx: Tx, rt: Runtime, seen: SteppedRows, plan: Plan) -> Done:
    run, row = _run(seen), seen.row
    is_news = row.given or row.steers or run.phase is Phase.HELD or seen.held is not None or plan.planned is not None
    if is_news:
        news = [stepping.steers_row(rt, run, run.step, row.steers)] if row.steers else []
        journal.append(tx, [*waiting.owed_rows(tx, rt, run), *news])
    to = (max(run.step, plan.step) + 1, Phase.INFERENCE) if is_news else (run.step, run.phase)
    is_round = plan.rule.fate is Fate.APPENDED and plan.output is None
    _go(tx, rt, run, to=to, rounds=int(is_round))
    _close(tx, rt, run, plan)
    changes = _changes(seen, steers=[] if is_news else row.steers)
    return Done(changes=changes, intents=[Advance(run_id=run.id, group=run.group, of=run.subject)])


def _close(tx: Tx, rt: Runtime, run: Run, plan: Plan) -> None:
    if plan.opening is not None:
        now = rt.now()
        calls.open_round(tx, run, plan.opening.step, plan.opening.judged.asked, now=now, lease_until=now)


def _to_the_end(tx: Tx, rt: Runtime, seen: SteppedRows, plan: Plan) -> Done:
    run, how = _run(seen), plan.rule.ending
    assert how is not None
    _close(tx, rt, run, plan)
    if how.reason not in waiting.FINAL and run.suspended and calls.unsettled(tx, run.id):
        return _wait_before_the_end(tx, rt, seen, how)
    runs.finish_held(tx, run, how, rt.now())
    endings.close_open_calls(tx, rt, run, code="run_ended", content=NOT_RUN)
    reply = seen.reply if plan.rule.fate is Fate.APPENDED else None
    step = seen.held.step if seen.held is not None and reply is not None else run.step
    rows = waiting.owed_rows(tx, rt, run)
    text = reply.text if reply else None
    told = plan.told | (plan.output.told() if isinstance(plan.output, Accepted) else {})
    intents = endings.close_turn(tx, rt, run, step, how, rows, text=text, told=told)
    return Done(changes=_changes(seen), intents=intents, ended=True)


def _wait_before_the_end(tx: Tx, rt: Runtime, seen: SteppedRows, how: Ending) -> Done:
    """Calls of an earlier round still wait for a decision: the run waits with them, as any run does."""
    run = _run(seen)
    journal.append(tx, waiting.owed_rows(tx, rt, run))
    _go(tx, rt, run, to=(run.step + 1, Phase.REPLAY))
    if how.reason is not Reason.NATURAL_END:
        runs.keep_ending(tx, run.id, how)
    return Done(changes=_changes(seen), intents=[Advance(run_id=run.id, group=run.group, of=run.subject)])
