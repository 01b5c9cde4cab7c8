"""What a consumer does with a run it holds without moving it on: words, settings, and the calls of the reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Suspension
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.intents import CommitRound, Intent
from chordage.orchestrator.core.moves import RunTools
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_CALL, CallStatus
from chordage.orchestrator.core.stepping import merged, tuned
from chordage.orchestrator.run import subagents, transitions
from chordage.orchestrator.run.approvals import check_decisions
from chordage.orchestrator.run.waiting import may_go_on, wake
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening as opening_
from chordage.orchestrator.stages.step import settle
from chordage.orchestrator.stages.step.opening import CLIENT_SUPPLIED, Opening
from chordage.orchestrator.stages.step.settle import Done
from chordage.orchestrator.store import calls
from chordage.orchestrator.store.approvals import close_of_calls
from chordage.orchestrator.store.database import Tx
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
    agent = tuned(rt.agents.get(seen.run.agent), seen.row)
    if not isinstance(transitions.next_move(settle.run_of(rt, seen), agent, reply, rt.now()), RunTools):
        return None  # the reply was cut or refused: nothing of it is carried out
    at = opening_.at_step(rt, seen, seen.call_step - 1, agent, opening_.known(rt, seen.run))
    judged = opening_.judged(rt, seen, at, dict(enumerate(reply.asks)), {ask.id for ask in reply.asks})
    return at.opening(judged)


def open_while_held(tx: Tx, rt: Runtime, seen: SteppedRows, opening: Opening | None) -> Done:
    """Carried out now; the history is what it was, and the run comes back to its consumer."""
    if opening is None:
        return Done(changes={}, intents=_move_on(tx, rt, seen))
    run = seen.run
    assert run is not None
    intents = opening_.send(tx, rt, run, opening, rounds=0, rested_ms=settle.rested_ms(rt, run))
    return Done(changes={"parked": False, "error": None, "held_until": None}, intents=intents)


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
            told = f"call {ask_id!r} of tool {call.tool!r} is {call.effect.value} and may have taken effect: say force"
            raise _refused(seen, "needs_force", told)
    assert seen.run is not None
    assert seen.reply is not None
    agent = tuned(rt.agents.get(seen.run.agent), seen.row)
    at = opening_.at_step(rt, seen, seen.call_step - 1, agent, opening_.known(rt, seen.run))
    judged = opening_.judged(rt, seen, at, dict(enumerate(seen.reply.asks)), set(ask_ids), are_new=False)
    return at.opening(judged)


def _named(ask_ids: Sequence[Any], known: Collection[str], field: str) -> Sequence[str]:
    if not ask_ids:
        raise InvalidMessage("name at least one call", field=field)
    for place, ask_id in enumerate(ask_ids):
        if ask_id not in known:
            there = ", ".join(sorted(known)) or "none"
            told = f"{ask_id!r} is no call of what is held; there are: {there}"
            raise InvalidMessage(told, field=f"{field}.{place}")
    return ask_ids


def _refused(seen: SteppedRows, code: str, told: str) -> StepRefused:
    return StepRefused(told, code=code, rev=seen.row.rev, standing=seen.standing.value)


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


def supplied(tx: Tx, rt: Runtime, seen: SteppedRows, results: Sequence[Mapping[str, Any]]) -> Done:
    """The consumer gives results. A call that is being carried out loses its claim; the first terminal write counts."""
    given = {one["ask_id"]: one for one in results}
    by_ask = {call.ask_id: call for call in seen.calls}
    early = {ask_id: _verdict(one) for ask_id, one in given.items() if ask_id not in by_ask}
    given_up: list[Intent] = []
    for ask_id in given.keys() & by_ask.keys():
        _supply(tx, rt, seen, by_ask[ask_id], given[ask_id])
        if seen.run is not None and seen.run.children:
            given_up += subagents.given_up(tx, call_id=by_ask[ask_id].id)
    changes = {"verdicts": {**seen.row.verdicts, **early}} if early else {}
    return Done(changes=changes, intents=[*given_up, *_commit(seen), *_move_on(tx, rt, seen)])


def _move_on(tx: Tx, rt: Runtime, seen: SteppedRows) -> list[Intent]:
    """What stood behind a call that is settled now, or was decided meanwhile, goes on; the run comes back then."""
    run = seen.run
    if run is None or not run.suspended or run.reason is not Reason.HELD:
        return []
    mode = rt.agents.get(run.agent).tool_mode
    return [wake(tx, rt, run)] if may_go_on(tx, run, mode) else []


def check_results(seen: SteppedRows, results: Sequence[Any]) -> None:
    for place, one in enumerate(results):
        match one:
            case {"ask_id": str(), "content": str(), **rest} if not rest.keys() - {"is_error"}:
                pass
            case _:
                told = f'give {{"ask_id", "content", "is_error"?}}; got {one!r:.120}'
                raise InvalidMessage(told, field=f"results.{place}")
    _named([one["ask_id"] for one in results], _asks(seen), "results")


def _verdict(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "result", "content": one["content"], "is_error": bool(one.get("is_error"))}


def _supply(tx: Tx, rt: Runtime, seen: SteppedRows, call: Call, one: Mapping[str, Any]) -> None:
    assert seen.run is not None
    status = CallStatus.FAILED if one.get("is_error") else CallStatus.SUCCEEDED
    if call.status is CallStatus.SUSPENDED:
        calls.resume(tx, call.id, step=seen.run.step, arguments=None, lease_until=None)
        close_of_calls(tx, [call.id])
    if not calls.supply_result(tx, call, status=status, code=CLIENT_SUPPLIED, content=one["content"], now=rt.now()):
        raise _refused(seen, "settled", f"call {call.ask_id!r} is {call.status.value} already: its result stands")


def _commit(seen: SteppedRows) -> list[Intent]:
    """Whoever settles the last call of a round asks for its commit."""
    run = seen.run
    assert run is not None
    is_out = any(call.status in IN_FLIGHT_CALL for call in seen.calls)
    return [CommitRound(run_id=run.id, step=run.step, group=run.group, of=run.subject)] if is_out else []


def waiting(rt: Runtime, seen: SteppedRows) -> dict[str, Call]:
    """The calls of the run that somebody is asked about, of whichever round, by the model's ids. Where a provider has
    used one again, the newest.
    """
    if seen.run is None or not seen.run.suspended:
        return {}
    with rt.store.read() as tx:
        open_calls = calls.unsettled(tx, seen.run.id)
    return {call.ask_id: call for call in open_calls if call.status is CallStatus.SUSPENDED}


def verdict_on(seen: SteppedRows, args: Mapping[str, Any], asked: Collection[str]) -> dict[str, Any] | None:
    """What is said of a call before it is opened. None: it is open, and its question is answered. `asked`: calls that
    wait for somebody, whatever is held.
    """
    ask_id, opened = args["ask_id"], {call.ask_id for call in seen.calls}
    _named([ask_id], {*_asks(seen), *opened, *asked}, "ask_id")
    if ask_id in opened or (ask_id in asked and ask_id not in _asks(seen)):
        return None
    if args.get("payload") is not None:
        raise InvalidMessage(f"call {ask_id!r} asks for no payload: it has not been opened", field="payload")
    others = {name: one for name, one in seen.row.verdicts.items() if name != ask_id}
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
    (asked,) = check_decisions(rt, [request])
    return request, asked
