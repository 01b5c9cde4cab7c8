"""The one place that decides what a run does next, and opens it.

Used by every stage at whose end a run stands at a crossing: `advance` when nothing or a settled round lies before it,
`inference` in the very transaction that records the reply. A crossing is so passed and recorded at once; there is no
moment at which a reply is known and what follows from it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, assert_never

from chordage.orchestrator import (
    asking,
    children,
    ending,
    gate,
    holding,
    offering,
    phasing,
    planning,
    resting,
    shaping,
    steering,
)
from chordage.orchestrator.core import storable
from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode, ToolSpec
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import Advance, CallModel, CallTools, Intent
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.output import Accepted, Ended, Refused, Verdict
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.plugin_state import STATE_CONFLICT
from chordage.orchestrator.core.reasons import Ending, Reason, failed, stopped
from chordage.orchestrator.core.records import Answer, Checkpoint, NewCall, Phase, Run, Turn
from chordage.orchestrator.core.rounds import distinct, generations, spread
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.suspending import Question
from chordage.orchestrator.core.transcript import NOT_RUN, body_of
from chordage.orchestrator.core.verdicts import Block, SupplyResult, SuspendCall
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.holding import Recorded, Terms
from chordage.orchestrator.phasing import Hearing
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.resting import Crossing
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, claims, journal
from chordage.orchestrator.store.claims import Position
from chordage.orchestrator.store.tx import Tx
from chordage.orchestrator.strategies import loading


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What an inference knew when it asked the model; the reply is judged against the same."""

    agent: AgentSpec
    specs: dict[str, ToolSpec]  # offered
    withheld: frozenset[str] = frozenset()  # tools of the agent that plugins keep from the model
    known: Sequence[Answer]
    hearing: Hearing
    planning: Planning | None = None  # of a strategy that plans
    asks_planner: bool = False  # the reply will be a plan
    form: OutputForm | None = None  # what the answer has to be
    recalls: bool = False  # not all calls of the run are among the known: a summary stands for some
    lives: Counter[str] | None = None  # then, of the ids that the reply uses
    terms: Terms | None = None  # of the consumer of a stepped run


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A reply, and what follows from it: decided before the transaction in which it is recorded begins."""

    reply: Reply
    move: Move
    plan: PlanDecision | None = None  # the reply, read as what it is
    asked: list[NewCall] = field(default_factory=list)
    keeps: Ending | None = None  # with what the run ends once the round is settled
    hearings: list[Hearing] = field(default_factory=list)  # of the calls that plugins noted something about
    output: Verdict | None = None  # on a reply that would end the run, where it has to fit a form
    held: bool = False  # what follows is said by the run's consumer


def next_move(
    run: Run,
    agent: AgentSpec,
    reply: Reply | None,
    now: datetime,
    *,
    plans: Planning | None = None,
    plan: PlanDecision | None = None,
) -> Move:
    view = View(rounds=run.rounds, reply=reply, max_rounds=agent.limits.max_rounds, planning=plans, plan=plan)
    return _in_time(run, agent, loading.decide(run.strategy, view), now)


def _in_time(run: Run, agent: AgentSpec, move: Move, now: datetime) -> Move:
    limit = agent.limits.timeout
    if limit is not None and not isinstance(move, Finish) and run.worked(now) > limit:
        return Finish(ending=stopped("timeout", f"the limit of {limit:g} s for a turn was reached"))
    return move


def after_rest(rt: Runtime, run: Run) -> list[Intent]:
    """The run has no reply before it: it has just started, or its round is settled."""
    step = run.next_inference
    if step is None:
        return []
    at = Position(run=run, step=step, token=run.claim_token)
    try:
        agent = rt.agents.get(run.agent)
        if run.control is Control.STEP and (held := holding.at_rest(rt, run, agent)) is not None:
            return held
        if run.suspended and (held_up := gate.go_through(rt, run, agent)) is not None:
            return held_up
        if run.kept is not None:  # the round after which it was to stop is settled
            return ending.end_here(rt, at, run.kept)
        move = next_move(run, agent, None, rt.now())
    except UserError as error:
        return ending.bear_with_the_room(rt, at, error)
    except Exception:
        ending.count_as_death(rt, run)
        raise
    match move:
        case Infer() if run.control is Control.STEP and (moved := holding.with_news(rt, run)) is not None:
            return moved
        case Infer() | Plan():
            return [CallModel(run_id=run.id, step=step, group=run.group, seen=run)]
        case Finish(ending=how):
            return ending.end_here(rt, at, how)
        case RunTools() | RunPlan():
            raise AssertionError(f"strategy {run.strategy!r} runs tools before the model asked for any")


def judge(rt: Runtime, at: Position, scene: Scene, reply: Reply, plan: PlanDecision | None = None) -> Judged:
    """Plugins are heard, the strategy is asked, each call goes through its gate. A broken plugin ends the run, and the
    reply is kept all the same.
    """
    reply = storable.reply(reply)
    reply = replace(reply, asks=() if scene.asks_planner else distinct(reply.asks, at.step))
    try:
        stop = phasing.after_inference(scene.hearing, reply=reply)
        if holding.holds(at.run, Recorded.REPLY):
            return Judged(reply=reply, move=Infer(), keeps=stop, held=True)
        then = next_move(at.run, scene.agent, reply, rt.now(), plans=scene.planning, plan=plan)
        then = shaping.whole(scene.form, reply, then)
        move, keeps = _with_stop(then, stop)
        asks = _asks_of(move, at, scene, reply)
        if not asks:
            output = _output(rt, at.run, scene, reply, then, stop)
            return Judged(reply=reply, move=move, plan=plan, keeps=keeps, output=output)
        asked, hearings = _through_the_gate(rt, at, scene, asks)
        asked = children.put_aside(rt, at.run, scene.agent, asked)
    except PluginFailed as error:
        return Judged(reply=reply, plan=plan, move=Finish(ending=failed("plugin", str(error))))
    return Judged(reply=reply, move=move, plan=plan, asked=asked, keeps=keeps, hearings=hearings)


def _asks_of(move: Move, at: Position, scene: Scene, reply: Reply) -> dict[int, ToolAsk]:
    """The calls that a move opens, each with its place."""
    match move:
        case RunTools():
            return dict(enumerate(reply.asks))
        case RunPlan():
            return planning.asks_of(move, at.step, scene.agent.plan)
        case _:
            return {}


def _output(rt: Runtime, run: Run, scene: Scene, reply: Reply, then: Move, stop: Ending | None) -> Verdict | None:
    """A run that a plugin ends asks for no repair, but an answer that fits is not lost."""
    found = shaping.verdict(rt, run, scene.form, reply, then)
    return found if stop is None or isinstance(found, Accepted) else None


def _with_stop(move: Move, stop: Ending | None) -> tuple[Move, Ending | None]:
    """Where it is stopped, the round's tools finish first; any other end comes at once."""
    if stop is None:
        return move, None
    if isinstance(move, RunTools | RunPlan) and stop.reason is Reason.STOPPED:
        return move, stop
    return Finish(ending=stop), None


def after_reply(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged) -> Crossing:
    """Record the reply together with what follows from it. Nothing is written when somebody else was first."""
    match judged.move:
        case Infer() if judged.held:
            crossing = _hold(tx, rt, at, scene, judged)
        case Infer():
            rounds = 1 if judged.plan is None else 0  # the end of planning is no round
            crossing = _ask_again(tx, rt, at, scene, judged, rounds=rounds)
        case Plan():
            raise AssertionError(f"strategy {at.run.strategy!r} answers a reply with a plan to be made")
        case RunTools() | RunPlan():
            crossing = _open_round(tx, rt, at, scene, judged)
        case Finish(ending=how):
            crossing = _finish(tx, rt, at, scene, judged, how)
        case other:
            assert_never(other)
    if crossing.ours and not isinstance(judged.move, RunTools | RunPlan):
        phasing.note_beside(tx, scene.hearing)
    return crossing


def _ask_again(
    tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, *, rounds: int, notes: Sequence[journal.Row] = ()
) -> Crossing:
    to, until, usage = (at.step + 1, Phase.INFERENCE), rt.leases.until(rt.now()), judged.reply.usage
    if not claims.go_on(tx, at, to=to, rounds=rounds, usage=usage, lease_until=until):
        return resting.NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged), *notes])
    return Crossing(intents=[Advance(run_id=at.run.id, group=at.run.group)])


def _hold(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged) -> Crossing:
    assert scene.terms is not None
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    return holding.hold_reply(
        tx, rt, at, judged.reply, rows, kept=judged.keeps, withheld=list(scene.withheld), sent=scene.terms.sent
    )


def _open_round(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged) -> Crossing:
    run, step, now, reply = at.run, at.step + 1, rt.now(), judged.reply
    until = rt.leases.until(now)
    if not claims.go_on(tx, at, to=(step, Phase.TOOL_ROUND), rounds=1, usage=reply.usage, lease_until=until):
        return resting.NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)])
    asked = _in_line(scene.agent, _noted(tx, scene, judged))
    calls.open_round(tx, run, step, asked, now=now, lease_until=until)
    _ask_about(tx, rt, run, step, asked)
    begun = children.begin_round(tx, rt, run, scene.agent, asked)
    if judged.keeps is not None:
        claims.keep(tx, run.id, judged.keeps)
    runnable = [call.id for call in asked if call.status is CallStatus.NEW and not call.parked]
    if not runnable:
        return Crossing(intents=[*begun, Advance(run_id=run.id, group=run.group)])
    at_once = 1 if scene.agent.tool_mode is ToolMode.SEQUENTIAL else scene.agent.concurrency
    batches = spread(runnable, at_once)
    fan_out = CallTools(run_id=run.id, thread_id=run.thread_id, step=step, batches=batches, group=run.group)
    return Crossing(intents=[*begun, fan_out])


def _noted(tx: Tx, scene: Scene, judged: Judged) -> list[NewCall]:
    """What plugins noted about a call is written with it; a conflict costs that call its run, and no other. What they
    noted before, about the reply, comes first: the later word stands.
    """
    phasing.note_beside(tx, scene.hearing)
    conflicts = {at.call_id: why for at in judged.hearings if (why := phasing.note(tx, at)) is not None}
    return [
        _refused(call, STATE_CONFLICT, conflicts[call.id]) if call.id in conflicts else call for call in judged.asked
    ]


def _in_line(agent: AgentSpec, asked: list[NewCall]) -> list[NewCall]:
    """In sequence, what stands behind a call that waits is parked; and a sub-agent is not asked before its turn."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL:
        return asked
    waits = (place for place, call in enumerate(asked) if call.question is not None or children.asks_one(agent, call))
    first = next(waits, len(asked))
    return [replace(call, parked=place >= first and call.status is CallStatus.NEW) for place, call in enumerate(asked)]


def _refused(call: NewCall, code: str, content: str) -> NewCall:
    return replace(
        call, status=CallStatus.FAILED, code=code, content=content, question=None, suspension_id=None, parked=False
    )


def _ask_about(tx: Tx, rt: Runtime, run: Run, step: int, asked: Sequence[NewCall]) -> None:
    """A question for each call that was put aside before it started."""
    suspended = [call for call in asked if call.question is not None]
    if suspended or any(call.parked for call in asked):
        claims.note_suspension(tx, run.id)
    for call in suspended:
        asking.ask_before(tx, rt, run, step, call)


def _through_the_gate(
    rt: Runtime, at: Position, scene: Scene, asks: Mapping[int, ToolAsk]
) -> tuple[list[NewCall], list[Hearing]]:
    """Each call in the model's order: runnable, put aside, or settled with a result that tells the model why."""
    asked: list[NewCall] = []
    hearings: list[Hearing] = []
    for call, ask in zip(_new_calls(rt, at.run, scene, asks), asks.values(), strict=True):
        heard = scene.hearing.of_call(call.id, at.step + 1)
        judged = _judged(rt, scene, heard, call, ask)
        asked.append(judged)
        hearings += [heard] if heard.notes else []
    return asked, hearings


def gate_some(
    rt: Runtime, at: Position, scene: Scene, asks: Mapping[int, ToolAsk], said: Callable[[NewCall], NewCall | None]
) -> Judged:
    """Those of the asks that are to be opened. `said`: the call as its consumer has settled it; as it is, and it goes
    through its gate; None, and it is left out.
    """
    asked: list[NewCall] = []
    hearings: list[Hearing] = []
    for call, ask in zip(_new_calls(rt, at.run, scene, asks), asks.values(), strict=True):
        given = said(call)
        if given is None:
            continue
        heard = scene.hearing.of_call(call.id, at.step + 1)
        asked.append(given if given.status is not CallStatus.NEW else _judged(rt, scene, heard, call, ask))
        hearings += [heard] if heard.notes else []
    asked = children.put_aside(rt, at.run, scene.agent, asked)
    reply = Reply(text="", asks=tuple(asks.values()), stop=StopReason.TOOL_USE, model="")
    return Judged(reply=reply, move=RunTools(), asked=asked, hearings=hearings)


def open_some(
    tx: Tx, rt: Runtime, run: Run, scene: Scene, step: int, judged: Judged
) -> tuple[list[NewCall], list[Intent]]:
    """Their rows, their questions, the sub-agents they ask, and what plugins noted."""
    now = rt.now()
    asked = _in_line(scene.agent, _noted(tx, scene, judged))
    calls.open_round(tx, run, step, asked, now=now, lease_until=rt.leases.until(now))
    _ask_about(tx, rt, run, step, asked)
    return asked, children.begin_round(tx, rt, run, scene.agent, asked)


def _new_calls(rt: Runtime, run: Run, scene: Scene, asks: Mapping[int, ToolAsk]) -> Iterator[NewCall]:
    lives = generations(run.id, scene.known) if scene.lives is None else scene.lives.copy()
    for place, ask in asks.items():
        lives[ask.id] += 1
        spec = scene.specs.get(ask.name)
        yield NewCall(
            id=rt.new_id(), place=place, ask_id=ask.id, generation=lives[ask.id], tool=ask.name,
            arguments=ask.arguments or {}, status=CallStatus.NEW,
            effect=spec.effect if spec else Effect.PURE,  # one that is unknown never runs
        )  # fmt: skip


def _judged(rt: Runtime, scene: Scene, heard: Hearing, call: NewCall, ask: ToolAsk) -> NewCall:
    """The order is the contract: blocked, supplied, unknown, out of scope, bad arguments, suspended, runnable. So bad
    arguments beat approval.
    """
    shown = phasing.shown_call(call.id, call.ask_id, call.tool, call.arguments, call.effect)
    gate_says = phasing.gate(heard, shown)
    call = replace(call, arguments=gate_says.arguments(call.arguments))
    shown = replace(shown, arguments=call.arguments)
    match gate_says.verdict:
        case Block(reason=reason):
            settled = _refused(call, gate_says.code or "blocked", reason)
        case SupplyResult(content=content):
            settled = replace(call, status=CallStatus.SUCCEEDED, content=content)
        case verdict:
            refusal = _refusal(rt, scene, ask, call.arguments)
            if refusal is None:
                return _put_aside(rt, call, verdict.question) if isinstance(verdict, SuspendCall) else call
            settled = _refused(call, *refusal)
    told = phasing.after_tool(heard, shown, settled.content or "", settled.code, None)
    return replace(settled, content=told)


def _put_aside(rt: Runtime, call: NewCall, question: Question) -> NewCall:
    return replace(call, status=CallStatus.SUSPENDED, question=question, suspension_id=rt.new_id())


def _refusal(rt: Runtime, scene: Scene, ask: ToolAsk, arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Why a call cannot run, in words for the model."""
    if ask.name in scene.withheld:
        return "out_of_scope", f"The tool {ask.name!r} may not be used here. Tools you may use: {_offered(scene)}."
    if ask.name not in scene.specs:
        return "unknown_tool", f"There is no tool {ask.name!r}. Tools you may use: {_offered(scene)}."
    if ask.arguments is None:
        return "invalid_arguments", f"The arguments are not a JSON object: {ask.raw[:200]}"
    wrong = offering.invalid(rt, scene.agent, ask.name, arguments)
    return ("invalid_arguments", wrong) if wrong else None


def _offered(scene: Scene) -> str:
    return ", ".join(sorted(scene.specs)) or "none"


def _ask_to_repair(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, why: str) -> Crossing:
    """Once: the note in the journal, in the commit of the reply it is about, is what tells that it was given."""
    run = at.run
    note = journal.entry(run.thread_id, run.id, at.step, Checkpoint.OUTPUT_REFUSED, {"why": why}, rt.now())
    crossing = _ask_again(tx, rt, at, scene, judged, rounds=0, notes=[note])
    if crossing.ours and judged.reply.asks:
        _close_unrun(tx, rt, at, scene, judged.reply)
    return crossing


def _finish(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, how: Ending) -> Crossing:
    """A run that would end of itself goes on instead, if a message waits to be taken in."""
    if how.reason is not Reason.NATURAL_END:
        return _end(tx, rt, at, scene, judged, how)
    crossing = _end(tx, rt, at, scene, judged, how, unless_steered=True)
    if crossing.ours or (waiting := steering.who_waits(tx, rt, at, scene.agent.limits)) is None:
        return crossing
    return _go_on_with(tx, rt, at, scene, judged, waiting) if waiting else _end(tx, rt, at, scene, judged, how)


def _go_on_with(tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, waiting: Sequence[Turn]) -> Crossing:
    reply = judged.reply
    behind = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    first = at.step + 1 + bool(reply.asks)  # asks that are not carried out have their step too
    crossing = steering.take_in(tx, rt, at, waiting, first=first, behind=behind, rounds=1, usage=reply.usage)
    if crossing.ours and reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    return crossing


def _end(
    tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, how: Ending, *, unless_steered: bool = False
) -> Crossing:
    reply = judged.reply
    if resting.is_held_up(tx, at.run, how):  # so this is not the answer, and need not fit
        return _finish_later(tx, rt, at, scene, judged, how, unless_steered=unless_steered)
    match judged.output:
        case Refused(why=why):
            if unless_steered and steering.who_waits(tx, rt, at, scene.agent.limits):
                return resting.NOT_OURS  # a message waits, so this is not the answer either
            repair = _in_time(at.run, scene.agent, Infer(), rt.now())
            if not isinstance(repair, Finish):
                return _ask_to_repair(tx, rt, at, scene, judged, why)
            how = repair.ending
        case Ended(ending=ended):
            how = ended
    if not claims.finish(tx, at, how, usage=reply.usage, now=rt.now(), unless_steered=unless_steered):
        return resting.NOT_OURS
    if at.run.suspended:  # such an end waits for nobody
        ending.close_open_calls(tx, rt, at.run, code="run_ended", content=NOT_RUN)
    if reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    text = None if scene.asks_planner else reply.text
    told = {} if scene.planning is None else planning.told(scene.planning)
    told |= judged.output.told() if isinstance(judged.output, Accepted) else {}
    return Crossing(intents=ending.close_turn(tx, rt, at.run, at.step, how, rows, text=text, told=told), ended=True)


def _finish_later(
    tx: Tx, rt: Runtime, at: Position, scene: Scene, judged: Judged, how: Ending, *, unless_steered: bool
) -> Crossing:
    """The reply would end the run, and calls of it still wait for a decision: it is kept, and the run waits with
    them.
    """
    reply = judged.reply
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, scene, judged)]
    crossing = resting.rest(
        tx, rt, at, to=at.step + 1, kept=how, rows=rows, mode=scene.agent.tool_mode, usage=reply.usage, rounds=1,
        unless_steered=unless_steered,
    )  # fmt: skip
    if crossing.ours and reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    return crossing


def _close_unrun(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply) -> None:
    """A reply that was cut, refused or came too late may hold half a call: closed as not run, never carried out."""
    asked = [
        replace(call, status=CallStatus.CANCELLED, code="not_run", content=NOT_RUN)
        for call in _new_calls(rt, at.run, scene, dict(enumerate(reply.asks)))
    ]
    now = rt.now()
    calls.open_round(tx, at.run, at.step + 1, asked, now=now, lease_until=now)


def _reply_row(rt: Runtime, at: Position, scene: Scene, judged: Judged) -> journal.Row:
    run = at.run
    body = {**body_of(judged.reply), "worker": rt.worker}
    kind = Checkpoint.REPLY_HELD if judged.held else Checkpoint.ASSISTANT_TURN
    if judged.plan is not None and scene.planning is not None:
        kind, body = Checkpoint.PLAN, {**body, **state.body_of(scene.planning, judged.plan)}
    return journal.entry(run.thread_id, run.id, at.step, kind, body, rt.now())


def _round_rows(tx: Tx, rt: Runtime, at: Position, scene: Scene) -> list[journal.Row]:
    return resting.rows_before(tx, rt, at.run, scene.known)
