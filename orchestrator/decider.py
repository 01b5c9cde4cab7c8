"""The one place that decides what a run does next, and opens it.

Used by every stage at whose end a run stands at a crossing: `advance` when nothing or a settled round lies before it,
`inference` in the very transaction that records the reply. A crossing is so passed and recorded at once; there is no
moment at which a reply is known and what follows from it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from chordage.orchestrator import asking, ending, gate, resting
from chordage.orchestrator.core import storable
from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode, ToolSpec
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.intents import Advance, CallModel, CallTools, Intent
from chordage.orchestrator.core.model import Reply, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, RunTools, View
from chordage.orchestrator.core.reasons import Ending, stopped
from chordage.orchestrator.core.records import Answer, Checkpoint, NewCall, Phase, Run
from chordage.orchestrator.core.rounds import distinct, generations, spread
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import NOT_RUN, body_of
from chordage.orchestrator.resting import Crossing
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, claims, journal
from chordage.orchestrator.store.claims import Position
from chordage.orchestrator.store.tx import Tx
from chordage.orchestrator.strategies import STRATEGIES


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What an inference knew when it asked the model; the reply is judged against the same."""

    agent: AgentSpec
    specs: dict[str, ToolSpec]
    known: Sequence[Answer]


def next_move(run: Run, agent: AgentSpec, reply: Reply | None, now: datetime) -> Move:
    move = STRATEGIES[run.strategy](View(rounds=run.rounds, reply=reply, max_rounds=agent.limits.max_rounds))
    limit = agent.limits.timeout
    if limit is not None and not isinstance(move, Finish) and (now - run.started_at).total_seconds() > limit:
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
        if run.suspended and (held_up := gate.go_through(rt, run, agent)) is not None:
            return held_up
        move = next_move(run, agent, None, rt.now())
    except UserError as error:
        return ending.bear_with_the_room(rt, at, error)
    except Exception:
        ending.count_as_death(rt, run)
        raise
    match move:
        case Infer():
            return [CallModel(run_id=run.id, step=step, group=run.group, seen=run)]
        case Finish(ending=how):
            return ending.end_here(rt, at, how)
        case RunTools():
            raise AssertionError(f"strategy {run.strategy!r} runs tools before the model asked for any")


def after_reply(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply) -> Crossing:
    """Record the reply together with what follows from it. Nothing is written when somebody else was first."""
    reply = storable.reply(reply)
    reply = replace(reply, asks=distinct(reply.asks, at.step))
    match next_move(at.run, scene.agent, reply, rt.now()):
        case Infer():
            return _ask_again(tx, rt, at, scene, reply)
        case RunTools():
            return _open_round(tx, rt, at, scene, reply)
        case Finish(ending=how):
            return _finish(tx, rt, at, scene, reply, how)
        case other:
            assert_never(other)


def _ask_again(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply) -> Crossing:
    to = (at.step + 1, Phase.INFERENCE)
    if not claims.go_on(tx, at, to=to, rounds=1, usage=reply.usage, lease_until=rt.leases.until(rt.now())):
        return resting.NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, reply)])
    return Crossing(intents=[Advance(run_id=at.run.id, group=at.run.group)])


def _open_round(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply) -> Crossing:
    run, step, now = at.run, at.step + 1, rt.now()
    until = rt.leases.until(now)
    if not claims.go_on(tx, at, to=(step, Phase.TOOL_ROUND), rounds=1, usage=reply.usage, lease_until=until):
        return resting.NOT_OURS
    journal.append(tx, [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, reply)])
    asked = _through_the_gate(rt, run, scene, reply.asks)
    calls.open_round(tx, run, step, asked, now=now, lease_until=until)
    _ask_about(tx, rt, run, step, asked)
    runnable = [call.id for call in asked if call.status is CallStatus.NEW and not call.parked]
    if not runnable:
        return Crossing(intents=[Advance(run_id=run.id, group=run.group)])
    at_once = 1 if scene.agent.tool_mode is ToolMode.SEQUENTIAL else scene.agent.concurrency
    batches = spread(runnable, at_once)
    fan_out = CallTools(run_id=run.id, thread_id=run.thread_id, step=step, batches=batches, group=run.group)
    return Crossing(intents=[fan_out])


def _ask_about(tx: Tx, rt: Runtime, run: Run, step: int, asked: Sequence[NewCall]) -> None:
    """A question for each call that was put aside before it started."""
    suspended = [call for call in asked if call.question is not None]
    if suspended:
        claims.note_suspension(tx, run.id)
    for call in suspended:
        asking.ask_before(tx, rt, run, step, call)


def _through_the_gate(rt: Runtime, run: Run, scene: Scene, asks: Sequence[ToolAsk]) -> list[NewCall]:
    """Each call in the model's order: runnable, or settled at once with a result that tells the model why it is not."""
    lives = generations(run.id, scene.known)
    asked = []
    for place, ask in enumerate(asks):
        lives[ask.id] += 1
        code, content = _refusal(rt, scene, ask) or (None, None)
        spec = scene.specs.get(ask.name)
        call = NewCall(
            id=rt.new_id(), place=place, ask_id=ask.id, generation=lives[ask.id], tool=ask.name,
            arguments=ask.arguments or {}, code=code, content=content,
            status=CallStatus.FAILED if code else CallStatus.NEW,
            effect=spec.effect if spec else Effect.PURE,  # one that is unknown never runs
        )  # fmt: skip
        asked.append(call)
    return asked


def _refusal(rt: Runtime, scene: Scene, ask: ToolAsk) -> tuple[str, str] | None:
    """Why a call cannot run, in words for the model. The order is the contract: unknown tool, then arguments."""
    if ask.name not in scene.specs:
        offered = ", ".join(sorted(scene.specs)) or "none"
        return "unknown_tool", f"There is no tool {ask.name!r}. Tools you may use: {offered}."
    if ask.arguments is None:
        return "invalid_arguments", f"The arguments are not a JSON object: {ask.raw[:200]}"
    wrong = rt.tools.invalid(scene.agent, ask.name, ask.arguments)
    return ("invalid_arguments", wrong) if wrong else None


def _finish(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply, how: Ending) -> Crossing:
    if resting.is_held_up(tx, at.run, how):
        return _finish_later(tx, rt, at, scene, reply, how)
    if not claims.finish(tx, at, how, usage=reply.usage, now=rt.now()):
        return resting.NOT_OURS
    if reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, reply)]
    return Crossing(intents=ending.close_turn(tx, rt, at.run, at.step, how, rows, text=reply.text), ended=True)


def _finish_later(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply, how: Ending) -> Crossing:
    """The reply would end the run, and calls of it still wait for a decision: it is kept, and the run waits with
    them.
    """
    rows = [*_round_rows(tx, rt, at, scene), _reply_row(rt, at, reply)]
    crossing = resting.rest(
        tx, rt, at, to=at.step + 1, kept=how, rows=rows, mode=scene.agent.tool_mode, usage=reply.usage, rounds=1
    )
    if crossing.ours and reply.asks:
        _close_unrun(tx, rt, at, scene, reply)
    return crossing


def _close_unrun(tx: Tx, rt: Runtime, at: Position, scene: Scene, reply: Reply) -> None:
    """A reply that was cut, refused or came too late may hold half a call: closed as not run, never carried out."""
    asked = [
        replace(call, status=CallStatus.CANCELLED, code="not_run", content=NOT_RUN)
        for call in _through_the_gate(rt, at.run, scene, reply.asks)
    ]
    now = rt.now()
    calls.open_round(tx, at.run, at.step + 1, asked, now=now, lease_until=now)


def _reply_row(rt: Runtime, at: Position, reply: Reply) -> journal.Row:
    run = at.run
    body = {**body_of(reply), "worker": rt.worker}
    return journal.entry(run.thread_id, run.id, at.step, Checkpoint.ASSISTANT_TURN, body, rt.now())


def _round_rows(tx: Tx, rt: Runtime, at: Position, scene: Scene) -> list[journal.Row]:
    """The checkpoint of the round or replay before, if it has none yet: it rides in the next commit of the run."""
    run = at.run
    match run.phase:
        case Phase.INFERENCE:
            return []
        case Phase.REPLAY:
            return resting.owed_rows(tx, rt, run)
        case Phase.TOOL_ROUND:
            settled = [call for call in scene.known if call.run_id == run.id and call.step == run.step]
            return [resting.round_row(rt, run, settled)]
