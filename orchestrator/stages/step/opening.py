"""The calls of a held reply: checked before the transaction that opens them, and sent from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core import transcript
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.approvals import Question, Why, denial
from chordage.orchestrator.core.records import Answer, Call, Entry, NewCall, Phase, Run
from chordage.orchestrator.core.settling import NOT_RUN_CAP
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.core.transcript import NOT_RUN, build
from chordage.orchestrator.run import checkpoints, client_tools, plugins, rounds
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome, offered_tools
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.runs import RunClaim
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies import shipped

CLIENT_SUPPLIED = "client_supplied"
HELD_BACK = Question(why=Why.GATE, prompt="The consumer of this run holds the call back: may it be carried out?")


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHistory:
    """The history of the thread, and every call of the run, also those that never became history."""

    entries: list[Entry] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def read_history(rt: Runtime, run: Run) -> KnownHistory:
    with rt.store.read() as tx:
        past = journal.history(tx, run.thread_id, plans_of=run.id if shipped.plans(run.strategy) else None)
        own = calls.of_run(tx, run.id)
    others = [answer for answer in past.calls if answer.run_id != run.id]
    return KnownHistory(entries=past.entries, answers=[*others, *map(_answer, own)])


def _answer(call: Call) -> Answer:
    return Answer(
        id=call.id, run_id=call.run_id, step=call.step, place=call.place, ask_id=call.ask_id, status=call.status,
        code=call.code, content=call.content, replayed_at=call.replayed_at,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Calls to be opened behind the message that asks for them."""

    request: ModelRequest
    outcome: ReplyOutcome

    @property
    def step(self) -> int:
        return self.request.step + 1


def request_at(rt: Runtime, seen: SteppedRows, step: int, agent: AgentSpec, history: KnownHistory) -> ModelRequest:
    """As it was when the model replied: what was kept from the model then is kept from it now."""
    assert seen.run is not None
    withheld = frozenset(seen.row.withheld)
    terms = RequestTerms(row=seen.row, sent="")
    own = offered_tools(rt, agent, history.answers)
    brings = transcript.client_tools(seen.run.id, history.entries)
    brought = client_tools.offered(own, brings) if brings else {}
    tools = own | {name: tool.spec for name, tool in brought.items()}
    offered = {name: spec for name, spec in tools.items() if terms.offers(name) and name not in withheld}
    said = build(history.entries, history.answers)
    session = plugins.session(rt, seen.run, agent, step, said=said) if rt.has_plugins(agent) else None
    return ModelRequest(
        claim=RunClaim(run=seen.run, step=step, token=None), agent=agent, specs=offered, withheld=withheld,
        known=history.answers, session=session, client_tools=brought,
    )  # fmt: skip


def check(
    rt: Runtime,
    seen: SteppedRows,
    request: ModelRequest,
    asks: rounds.Asks,
    wanted: Collection[str],
    *,
    are_new: bool = True,
) -> Opening:
    """The asks that are wanted; what the consumer has said about one comes first. Calls that are carried out once more
    are not new, and do not count again.
    """
    verdicts = seen.row.verdicts
    counted = {place: ask for place, ask in asks.items() if are_new and ask.id in wanted}
    beyond, too_many = rounds.beyond_the_limit(rt, request.run, request.agent, counted)

    def settle(call: NewCall) -> NewCall | None:
        if call.place in beyond:
            return rounds.not_run(call)
        return _as_said(call, verdicts.get(call.ask_id)) if call.ask_id in wanted else None

    outcome = rounds.outcome_of(asks, rounds.check_some(rt, request, asks, settle))
    asked = [_held_back(rt, call, verdicts) for call in outcome.asked]
    return Opening(request=request, outcome=replace(outcome, asked=asked, keeps=too_many))


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


def closed(rt: Runtime, request: ModelRequest, asks: rounds.Asks, wanted: Collection[str], code: str) -> Opening:
    """None of them is carried out."""
    content = "This call did not run: the limit of iterations was reached." if code == NOT_RUN_CAP else NOT_RUN

    def settle(call: NewCall) -> NewCall | None:
        shut = replace(call, status=CallStatus.CANCELLED, code=code, content=content)
        return shut if call.ask_id in wanted else None

    return Opening(request=request, outcome=rounds.outcome_of(asks, rounds.check_some(rt, request, asks, settle)))


def send(unit: Unit, run: Run, opening: Opening, *, rounds_made: int, rested_ms: int) -> None:
    """From held to the round. Where the run is behind that step already, they join as calls of a replay do."""
    is_first = opening.step > run.step
    to = (opening.step, Phase.TOOL_ROUND) if is_first else (run.step + 1, Phase.REPLAY)
    checkpoint = checkpoints.of_round(unit, run)
    runs.resume_held(
        unit.tx, run, to=to, rounds=rounds_made, rested_ms=rested_ms, lease_until=unit.lease(),
        replay_from=None if is_first else opening.step,
    )  # fmt: skip
    journal.append(unit.tx, checkpoint)
    asked = rounds.open_calls(unit, opening.request, opening.step, opening.outcome)
    if opening.outcome.keeps is not None:
        runs.keep_ending(unit.tx, run.id, run.thread_id, opening.outcome.keeps)
    if not is_first:
        calls.join_replay(unit.tx, [call.id for call in asked], step=to[0])
    rounds.send_runnable(unit, run, opening.request.agent, to[0], asked)
