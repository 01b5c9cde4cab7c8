"""What a consumer changes of a run it holds without moving it on: messages, settings, and the calls of the reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Suspension
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.intents import commit_round
from chordage.orchestrator.core.moves import RunTools
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_CALL, CallStatus
from chordage.orchestrator.core.stepping import merged, tuned
from chordage.orchestrator.run import approvals, subagents, transitions, waiting
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening as openings
from chordage.orchestrator.stages.step import settle
from chordage.orchestrator.stages.step.opening import CLIENT_SUPPLIED, Opening
from chordage.orchestrator.stages.step.settle import Changes
from chordage.orchestrator.store import approvals as suspensions
from chordage.orchestrator.store import calls
from chordage.orchestrator.store.stepped import SteppedRows

RUNS_AGAIN = frozenset({Effect.PURE, Effect.IDEMPOTENT})
SOURCE = "consumer"


def add_messages(seen: SteppedRows, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The consumer touches the history: what it says is pending until the run moves on."""
    before = seen.row.given
    kept = client_messages.normal(messages, before, seen.reply, seen.reply_id)
    return {"given": [*before, *kept], "mutated": seen.held is not None}


def replace_messages(seen: SteppedRows, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The consumer gives the whole history."""
    kept = client_messages.normal(messages, [], seen.reply, seen.reply_id)
    return {"given": kept, "replaces": True, "mutated": seen.held is not None}


def set_to(seen: SteppedRows, args: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters alone are neutral."""
    history = replace_messages(seen, args["messages"]) if args.get("messages") is not None else {}
    return {**history, "params": merged(seen.row.params, args["params"])}


def opening_of_reply(rt: Runtime, seen: SteppedRows) -> Opening | None:
    """The calls of the reply, as the settle rule would open them. None: there are none, or they are open already."""
    reply = seen.reply
    if reply is None or not reply.asks or seen.calls:
        return None
    assert seen.run is not None
    agent = tuned(rt.agent_of(seen.run), seen.row)
    if not isinstance(transitions.choose_move(settle.working_run(rt, seen), agent, reply, rt.now()), RunTools):
        return None  # the reply was cut or refused: nothing of it is carried out
    history = openings.read_history(rt, seen.run)
    request = openings.request_at(rt, seen, seen.call_step - 1, agent, history)
    return openings.check(rt, seen, request, dict(enumerate(reply.asks)), {ask.id for ask in reply.asks})


def open_while_held(unit: Unit, seen: SteppedRows, opening: Opening | None) -> Changes:
    """Carried out now; the history stays as it was, and the run is held again afterwards."""
    if opening is None:
        _resume_if_possible(unit, seen)
        return {}
    run = seen.run
    assert run is not None
    openings.send(unit, run, opening, rounds_made=0, rested_ms=settle.rested_ms(run, unit.now))
    return {"parked": False, "error": None, "held_until": None}


def opening_again(rt: Runtime, seen: SteppedRows, ask_ids: Sequence[str], *, force: bool) -> Opening:
    """A new life for calls of the reply that have ended."""
    by_ask = {call.ask_id: call for call in seen.calls}
    for ask_id in _named(ask_ids, by_ask, "ask_ids"):
        call = by_ask[ask_id]
        if call.status in OPEN_CALL:
            raise _refused(
                seen, "not_settled", f"call {ask_id!r} is {call.status.value}: only one that ended is retried"
            )
        if call.effect not in RUNS_AGAIN and not force:
            effect = f"call {ask_id!r} of tool {call.tool!r} is {call.effect.value} and may have taken effect"
            raise _refused(seen, "needs_force", f"{effect}: say force")
    assert seen.run is not None
    assert seen.reply is not None
    agent = tuned(rt.agent_of(seen.run), seen.row)
    history = openings.read_history(rt, seen.run)
    request = openings.request_at(rt, seen, seen.call_step - 1, agent, history)
    return openings.check(rt, seen, request, dict(enumerate(seen.reply.asks)), set(ask_ids), are_new=False)


def _named(ask_ids: Sequence[Any], known: Collection[str], field: str) -> Sequence[str]:
    if not ask_ids:
        raise InvalidMessage("name at least one call", field=field)
    for place, ask_id in enumerate(ask_ids):
        if ask_id not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidMessage(f"{ask_id!r} is no call of what is held; there are: {there}", field=f"{field}.{place}")
    return ask_ids


def _refused(seen: SteppedRows, code: str, problem: str) -> StepRefused:
    return StepRefused(problem, code=code, rev=seen.row.rev, standing=seen.standing.value)


def _asks(seen: SteppedRows) -> set[str]:
    return {ask.id for ask in seen.reply.asks} if seen.reply else {call.ask_id for call in seen.calls}


def held_back(seen: SteppedRows, ask_ids: Sequence[str]) -> dict[str, Any]:
    """Calls that have not been opened yet will wait for an explicit yes."""
    _named(ask_ids, _asks(seen), "ask_ids")
    _refuse_opened(seen, ask_ids)
    return {"verdicts": {**seen.row.verdicts, **{ask_id: {"kind": "hold"} for ask_id in ask_ids}}}


def _refuse_opened(seen: SteppedRows, ask_ids: Sequence[str]) -> None:
    if opened := [call.ask_id for call in seen.calls if call.ask_id in ask_ids]:
        raise _refused(seen, "started", f"{', '.join(opened)} cannot be held back any more: the calls were opened")


def supplied(unit: Unit, seen: SteppedRows, results: Sequence[Mapping[str, Any]]) -> Changes:
    """The consumer gives results. A call that is being carried out loses its claim; the first terminal write counts."""
    given = {result["ask_id"]: result for result in results}
    by_ask = {call.ask_id: call for call in seen.calls}
    early = {ask_id: _verdict(result) for ask_id, result in given.items() if ask_id not in by_ask}
    for ask_id in given.keys() & by_ask.keys():
        _supply(unit, seen, by_ask[ask_id], given[ask_id])
        if seen.run is not None and seen.run.children:
            subagents.give_up(unit, call_id=by_ask[ask_id].id)
    if seen.run is not None and any(call.status in IN_FLIGHT_CALL for call in seen.calls):
        unit.follow(commit_round(seen.run))  # the round may be settled by this
    _resume_if_possible(unit, seen)
    return {"verdicts": {**seen.row.verdicts, **early}} if early else {}


def _resume_if_possible(unit: Unit, seen: SteppedRows) -> None:
    """Calls behind one that is settled now, or that were decided meanwhile, continue; the run is held again then."""
    run = seen.run
    if run is None or not run.suspended or run.reason is not Reason.HELD:
        return
    if waiting.may_continue(unit, run, unit.rt.agent_of(run, unit.tx).tool_mode):
        waiting.resume_run(unit, run)


def check_results(seen: SteppedRows, results: Sequence[Any]) -> None:
    for place, result in enumerate(results):
        match result:
            case {"ask_id": str(), "content": str(), **rest} if not rest.keys() - {"is_error"}:
                pass
            case _:
                problem = f'give {{"ask_id", "content", "is_error"?}}; got {result!r:.120}'
                raise InvalidMessage(problem, field=f"results.{place}")
    _named([result["ask_id"] for result in results], _asks(seen), "results")


def _verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "result", "content": result["content"], "is_error": bool(result.get("is_error"))}


def _supply(unit: Unit, seen: SteppedRows, call: Call, result: Mapping[str, Any]) -> None:
    assert seen.run is not None
    status = CallStatus.FAILED if result.get("is_error") else CallStatus.SUCCEEDED
    if call.status is CallStatus.SUSPENDED:
        calls.resume(unit.tx, call, step=seen.run.step, arguments=None, lease_until=None)
        suspensions.close_of_calls(unit.tx, [call.id])
    content = result["content"]
    if not calls.supply_result(unit.tx, call, status=status, code=CLIENT_SUPPLIED, content=content, now=unit.now):
        raise _refused(seen, "settled", f"call {call.ask_id!r} is {call.status.value} already: its result stays")


def suspended_calls(rt: Runtime, seen: SteppedRows) -> dict[str, Call]:
    """The calls of the run that wait for a decision, of whichever round, by the model's ids. Where a provider has used
    one again, the newest.
    """
    if seen.run is None or not seen.run.suspended:
        return {}
    with rt.store.read() as tx:
        open_calls = calls.unsettled(tx, seen.run.id)
    return {call.ask_id: call for call in open_calls if call.status is CallStatus.SUSPENDED}


def verdict_on(seen: SteppedRows, args: Mapping[str, Any], asked: Collection[str]) -> dict[str, Any] | None:
    """What is said of a call before it is opened. None: it is open, and its question is answered. `asked`: calls that
    wait for a decision, whatever is held.
    """
    ask_id, opened = args["ask_id"], {call.ask_id for call in seen.calls}
    _named([ask_id], {*_asks(seen), *opened, *asked}, "ask_id")
    if ask_id in opened or (ask_id in asked and ask_id not in _asks(seen)):
        return None
    if args.get("payload") is not None:
        raise InvalidMessage(f"call {ask_id!r} asks for no payload: it has not been opened", field="payload")
    others = {name: verdict for name, verdict in seen.row.verdicts.items() if name != ask_id}
    return {"verdicts": others if args["allow"] else {**others, ask_id: {"kind": "deny", "reason": args.get("reason")}}}


def question_of(
    rt: Runtime, seen: SteppedRows, args: Mapping[str, Any], asked_of: Mapping[str, Call]
) -> tuple[DecisionRequest, Suspension]:
    by_ask = {**asked_of, **{call.ask_id: call for call in seen.calls}}
    action = Action.RESUME if args["allow"] else Action.CANCEL
    payload = args.get("payload", True if args["allow"] else None)
    request = DecisionRequest(
        target=by_ask[args["ask_id"]].id, action=action, payload=payload, reason=args.get("reason")
    )
    (asked,) = approvals.check_decisions(rt, [request])
    return request, asked
