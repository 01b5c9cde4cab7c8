"""The calls of a message in a stepped run: judged before the transaction that opens them, and sent from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.approvals import Question, Why, denial
from chordage.orchestrator.core.intents import Advance, CallTools, Intent
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.core.records import Answer, Call, Entry, NewCall, Phase, Run
from chordage.orchestrator.core.rounds import spread
from chordage.orchestrator.core.settling import NOT_RUN_CAP
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.core.transcript import NOT_RUN, build
from chordage.orchestrator.run import model_request, plugins, waiting
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome
from chordage.orchestrator.run.rounds import beyond_the_limit, not_run, open_calls, pass_some
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies import shipped

CLIENT_SUPPLIED = "client_supplied"
HELD_BACK = Question(why=Why.GATE, prompt="The consumer of this run holds the call back: may it be carried out?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The history of the thread, and every call of the run, also those that never became history."""

    entries: list[Entry] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def known(rt: Runtime, run: Run) -> Known:
    with rt.store.read() as tx:
        past = journal.history(tx, run.thread_id, plans_of=run.id if shipped.plans(run.strategy) else None)
        own = calls.of_run(tx, run.id)
    others = [one for one in past.calls if one.run_id != run.id]
    return Known(entries=past.entries, answers=[*others, *map(_answer, own)])


def _answer(call: Call) -> Answer:
    return Answer(
        id=call.id, run_id=call.run_id, step=call.step, place=call.place, ask_id=call.ask_id, status=call.status,
        code=call.code, content=call.content, replayed_at=call.replayed_at,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Calls to be opened at `step`, behind the message that asks for them."""

    judged: ReplyOutcome
    step: int
    scene: ModelRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """Behind which step calls are opened, and what is known there."""

    behind: RunClaim
    scene: ModelRequest

    def opening(self, found: ReplyOutcome) -> Opening:
        return Opening(judged=found, step=self.behind.step + 1, scene=self.scene)


def at_step(rt: Runtime, seen: SteppedRows, step: int, agent: AgentSpec, found: Known) -> At:
    """As it was when the model replied: what was kept from it then is kept from it now."""
    assert seen.run is not None
    withheld = frozenset(seen.row.withheld)
    terms = RequestTerms(row=seen.row, sent="")
    offered = {name: spec for name, spec in model_request.specs(rt, agent, found.answers).items() if terms.offers(name)}
    offered = {name: spec for name, spec in offered.items() if name not in withheld}
    said = build(found.entries, found.answers)
    heard = plugins.session(rt, seen.run, agent, step, said=said)
    as_it_was = ModelRequest(agent=agent, specs=offered, withheld=withheld, known=found.answers, hearing=heard)
    return At(behind=RunClaim(run=seen.run, step=step, token=None), scene=as_it_was)


def judged(
    rt: Runtime,
    seen: SteppedRows,
    at: At,
    asks: Mapping[int, ToolAsk],
    wanted: Collection[str],
    *,
    are_new: bool = True,
) -> ReplyOutcome:
    """Those that are wanted; what the consumer has said about one counts before anything else. Calls that are carried
    out once more are not new, and do not count again.
    """
    counted = {place: ask for place, ask in asks.items() if are_new and ask.id in wanted}
    beyond, over = beyond_the_limit(rt, at.behind.run, at.scene.agent, counted)

    def said(call: NewCall) -> NewCall | None:
        if call.place in beyond:
            return not_run(call)
        return _as_said(call, seen.row.verdicts.get(call.ask_id)) if call.ask_id in wanted else None

    found = pass_some(rt, at.behind, at.scene, asks, said)
    return replace(found, asked=[_held_back(rt, call, seen.row.verdicts) for call in found.asked], keeps=over)


def _as_said(call: NewCall, verdict: Mapping[str, Any] | None) -> NewCall:
    match verdict:
        case {"kind": "deny", "reason": reason}:
            return replace(call, status=CallStatus.CANCELLED, code="denied", content=denial(Why.GATE, reason))
        case {"kind": "result", "content": content, "is_error": is_error}:
            status = CallStatus.FAILED if is_error else CallStatus.SUCCEEDED
            return replace(call, status=status, code=CLIENT_SUPPLIED, content=content)
        case _:
            return call


def _held_back(rt: Runtime, call: NewCall, verdicts: Mapping[str, Any]) -> NewCall:
    if call.status is not CallStatus.NEW or verdicts.get(call.ask_id, {}).get("kind") != "hold":
        return call
    return replace(call, status=CallStatus.SUSPENDED, question=HELD_BACK, suspension_id=rt.new_id())


def closed(rt: Runtime, at: At, asks: Mapping[int, ToolAsk], wanted: Collection[str], code: str) -> ReplyOutcome:
    """None of them is carried out."""
    content = "This call did not run: the limit of iterations was reached." if code == NOT_RUN_CAP else NOT_RUN

    def said(call: NewCall) -> NewCall | None:
        shut = replace(call, status=CallStatus.CANCELLED, code=code, content=content)
        return shut if call.ask_id in wanted else None

    return pass_some(rt, at.behind, at.scene, asks, said)


def send(tx: Tx, rt: Runtime, run: Run, opening: Opening, *, rounds: int, rested_ms: int) -> list[Intent]:
    """From held to the round. Where the run stands behind that step already, they join as calls of a replay do."""
    is_first = opening.step > run.step
    to = (opening.step, Phase.TOOL_ROUND) if is_first else (run.step + 1, Phase.REPLAY)
    replay_from = None if is_first else opening.step
    owed = waiting.owed_rows(tx, rt, run)
    runs.resume_held(
        tx, run, to=to, rounds=rounds, rested_ms=rested_ms, lease_until=rt.leases.until(rt.now()),
        replay_from=replay_from,
    )  # fmt: skip
    journal.append(tx, owed)
    asked, begun = open_calls(tx, rt, run, opening.scene, opening.step, opening.judged)
    if opening.judged.keeps is not None:
        runs.keep_ending(tx, run.id, opening.judged.keeps)
    if not is_first:
        calls.join_replay(tx, [call.id for call in asked], step=to[0])
    runnable = [call.id for call in asked if call.status is CallStatus.NEW and not call.parked]
    if not runnable:
        return [*begun, Advance(run_id=run.id, group=run.group, of=run.subject)]
    at_once = 1 if opening.scene.agent.tool_mode is ToolMode.SEQUENTIAL else opening.scene.agent.concurrency
    batches = spread(runnable, at_once)
    fan_out = CallTools(
        run_id=run.id, thread_id=run.thread_id, step=to[0], batches=batches, group=run.group, of=run.subject,
        tools={call.id: call.tool for call in asked},
    )  # fmt: skip
    return [*begun, fan_out]
