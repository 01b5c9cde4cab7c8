"""A verb of the consumer, from its arrival to its commit.

The turn is read without a lock, the verb is decided outside any transaction (plugins may be asked), and it is written
only if the turn is still at the revision that was read; otherwise all of it is done anew. The response is stored under
the key of the request: a request that comes again under it gets the same response, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import LostRace, RoomError, StepRefused, UnknownAgent
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.reasons import cancelled
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.settling import check_allowed
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.core.stepping import Drive, Standing, StepRequest, Verb, check, check_model, merged
from chordage.orchestrator.run import approvals, endings, waiting
from chordage.orchestrator.run.unit import LiveEvent, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import held_run, planned, settle
from chordage.orchestrator.stages.step.settle import Changes, Settlement
from chordage.orchestrator.store import stepped, threads
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.stepped import SteppedRows, load_view

log = structlog.get_logger()

TRIES = 8
CANCELLED_CALL = "This call was cancelled together with the run that asked for it."
Write = Callable[[Unit, SteppedRows], Changes]
MAY_MOVE_ON = frozenset({Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepping:
    """The response to a verb. `duplicate`: it had been done before under the same key."""

    turn_id: str
    run_id: str | None
    rev: int
    standing: Standing
    duplicate: bool = False


def step(rt: Runtime, request: StepRequest) -> tuple[Stepping, list[Intent]]:
    """All of it, or an error and nothing."""
    check(request, rt.bounds.text_bytes)
    key = request.key or rt.new_id()
    for _ in range(TRIES):
        with rt.store.read() as tx:
            seen = load_view(tx, request.target, space=request.space)
            before = _stored_response(tx, seen, request, key)
        if before is not None:
            return before, []
        _check(request, seen)
        write = _decide(rt, request, seen)
        try:
            return insist(rt, lambda unit: _write(unit, request, key, seen, write))  # noqa: B023 - called at once
        except LostRace:
            continue
    raise StepRefused(f"turn {seen.turn.id} changes too fast: look at it, and try again", code="busy", rev=seen.row.rev)


def _stored_response(tx: Tx, seen: SteppedRows, request: StepRequest, key: str) -> Stepping | None:
    before = stepped.stored_response(tx, seen.turn.id, key)
    if before is None:
        return None
    request_hash, response = before
    if request_hash != request.hash:
        problem = f"the key {key!r} was used for another request about turn {seen.turn.id}: take a new one"
        raise StepRefused(problem, code="key_reused", rev=seen.row.rev, standing=seen.standing.value)
    return Stepping(**{**response, "standing": Standing(response["standing"]), "duplicate": True})


def _check(request: StepRequest, seen: SteppedRows) -> None:
    rev = seen.row.rev
    if request.if_rev is not None and request.if_rev != rev:
        problem = f"turn {seen.turn.id} is at rev {rev}, not {request.if_rev}: look at it again"
        raise StepRefused(problem, code="stale_rev", rev=rev, standing=seen.standing.value)
    check_allowed(request.verb, seen.standing, rev)
    planned.check_verb(request, seen)


def _write(unit: Unit, request: StepRequest, key: str, seen: SteppedRows, write: Write) -> Stepping:
    tx, turn_id = unit.tx, seen.turn.id
    if request.verb is Verb.CANCEL:  # it locks more than we do, and in an order of its own
        changes = write(unit, seen)
        locked = load_view(tx, turn_id)
    else:
        early = write(unit, seen) if request.verb is Verb.COMPACT else None  # a thread is locked before its run
        locked = load_view(tx, turn_id, lock=True)
        if _moved(locked, seen):  # perhaps by this very request: the next look finds its key
            raise LostRace
        changes = write(unit, locked) if early is None else early
    if not stepped.change(tx, locked.row, **changes):
        raise LostRace
    after = load_view(tx, turn_id)
    response = Stepping(turn_id=turn_id, run_id=after.turn.run_id, rev=after.row.rev, standing=after.standing)
    kept = {name: value for name, value in asdict(response).items() if name != "duplicate"}
    stepped.store_response(tx, turn_id, key, request.hash, kept, unit.now)
    if response.run_id is not None and after.run is not None and after.run.status is not RunStatus.DONE:
        stepped_to = {"turn": turn_id, "rev": response.rev}
        unit.announce(LiveEvent(run_id=response.run_id, kind="run.stepped", data=stepped_to), first=True)
    return response


def _moved(now: SteppedRows, seen: SteppedRows) -> bool:
    return (now.row.rev, now.standing, _place(now.run)) != (seen.row.rev, seen.standing, _place(seen.run))


def _place(run: Run | None) -> tuple[Any, ...] | None:
    return (run.id, run.epoch, run.step, run.phase, run.status) if run else None


def _decide(rt: Runtime, request: StepRequest, seen: SteppedRows) -> Write:
    """What the verb writes, decided on what was seen."""
    args = request.args
    match request.verb:
        case Verb.NEXT | Verb.RUN:
            return _move_on(rt, seen, Drive.AUTO if request.verb is Verb.RUN else Drive.ONCE)
        case Verb.MESSAGES:
            return _change(held_run.add_messages(seen, args["messages"]))
        case Verb.STEER:
            return _change({"steers": [*seen.row.steers, args["text"]]})
        case Verb.PARAMS:
            if "model" in args["params"]:
                check_model(_agent(rt, seen), args["params"])
            return _change(held_run.set_to(seen, args))
        case Verb.OPTIONS:
            return _change({"options": merged(seen.row.options, args["options"])})
        case Verb.PLAN:
            return _change(planned.replace_plan(rt, seen, args["plan"]))
        case Verb.COMPACT:
            return _ask_to_compact
        case Verb.HOLD:
            return _change(held_run.held_back(seen, args["ask_ids"]))
        case Verb.PARK:
            return _change({"parked": True, "held_until": None, "drive": Drive.STEP})
        case Verb.TOOL_RESPONSE:
            opening = held_run.opening_of_reply(rt, seen) if seen.standing is not Standing.TOOLING else None
            return lambda unit, now: held_run.open_while_held(unit, now, opening)
        case Verb.RETRY:
            again = held_run.opening_again(rt, seen, args["ask_ids"], force=bool(args.get("force")))
            return lambda unit, now: held_run.open_while_held(unit, now, again)
        case Verb.TOOL_RESULTS:
            held_run.check_results(seen, args["results"])
            return lambda unit, now: held_run.supplied(unit, now, args["results"])
        case Verb.DECIDE:
            return _decide_call(rt, seen, request)
        case Verb.CANCEL:
            return lambda unit, now: _cancel(unit, now, args.get("reason"))


def _change(changes: Changes) -> Write:
    return lambda _unit, _seen: changes


def _move_on(rt: Runtime, seen: SteppedRows, drive: Drive) -> Write:
    """A run that is held moves on at once; any other as soon as it is held."""
    if seen.standing not in MAY_MOVE_ON:
        return _change({"drive": drive})
    settlement = _settlement(rt, seen)

    def write(unit: Unit, now: SteppedRows) -> Changes:
        changes = settle.write(unit, now, settlement)
        return {**changes, "drive": Drive.AUTO} if drive is Drive.AUTO else changes

    return write


def _settlement(rt: Runtime, seen: SteppedRows) -> Settlement:
    return settle.settle(rt, seen) if seen.plan is None else planned.settle_plan(rt, seen)


def _ask_to_compact(unit: Unit, seen: SteppedRows) -> Changes:
    """A summary before the next request. The thread counts requests; this one is its consumer's."""
    return {"compacts": threads.request_compaction(unit.tx, seen.turn.thread_id)}


def _decide_call(rt: Runtime, seen: SteppedRows, verb: StepRequest) -> Write:
    args, by = verb.args, verb.by or Actor(id=held_run.SOURCE)
    suspended = held_run.suspended_calls(rt, seen)
    verdict = held_run.verdict_on(seen, args, suspended)
    if verdict is not None:
        return _change(verdict)
    request, asked = held_run.question_of(rt, seen, args, suspended)

    def write(unit: Unit, _now: SteppedRows) -> Changes:
        approvals.take_decisions(unit, [request], [asked], held_run.SOURCE, by=by)
        return {}

    return write


def _cancel(unit: Unit, seen: SteppedRows, reason: str | None) -> Changes:
    if seen.run is None:
        is_ended = endings.drop_queued(unit, seen.turn.id, Disposition.CANCELLED, reason)
    else:
        is_ended = endings.end_run(unit, seen.run, cancelled(reason), content=CANCELLED_CALL)
    if not is_ended:  # it has started, or ended, meanwhile
        raise LostRace
    return {"held_until": None}


def step_on(rt: Runtime, run_id: str) -> list[Intent]:
    """Move on a held run whose consumer has said in advance what follows. Where another was faster, nothing happens;
    the place that the run left and does not take again is handed on.
    """
    for _ in range(TRIES):
        with rt.store.read() as tx:
            seen = load_view(tx, run_id)
        if seen.row.drive is Drive.STEP or seen.standing not in MAY_MOVE_ON:
            break
        try:
            settlement = _settlement(rt, seen)
            return insist(rt, lambda unit: _step_on(unit, seen, settlement))[1]  # noqa: B023 - called at once
        except LostRace:
            continue
        except StepRefused as refused:
            log.info("a run cannot continue by itself", run=run_id, code=refused.code, why=str(refused))
            with Unit(rt) as unit:  # what its consumer gave cannot be sent as it is
                stepped.change(unit.tx, seen.row, drive=Drive.STEP, held_until=None)
            break
        except (RoomError, UnknownAgent) as error:  # rescue sends for it again
            log.warning("a run cannot continue yet", run=run_id, error=str(error))
            break
    with Unit(rt, rt.store.read) as unit:
        waiting.hand_on_place(unit, seen.turn.group)
    return unit.intents


def _step_on(unit: Unit, seen: SteppedRows, settlement: Settlement) -> None:
    locked = load_view(unit.tx, seen.turn.id, lock=True)
    if _moved(locked, seen):
        raise LostRace
    stepped.change(unit.tx, locked.row, **settle.write(unit, locked, settlement))


def _agent(rt: Runtime, seen: SteppedRows) -> AgentSpec:
    """Of its run, or that with which it would start."""
    return rt.agents.get(seen.turn.agent) if seen.run is None else rt.agent_of(seen.run)
