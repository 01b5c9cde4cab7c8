"""A verb, from its arrival to its commit.

Looked at without a lock, decided outside any transaction (plugins may be heard), and written only if the turn is still
at the revision that was looked at; else all of it is done anew. What was answered is kept under the key of the request:
whoever asks again under it gets the same answer, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import structlog

from chordage.orchestrator.core.errors import LostRace, RoomError, StepRefused, UnknownAgent
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.reasons import cancelled
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.settling import check_allowed
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.stepping import Drive, Standing, StepRequest, Verb, check, check_model, merged
from chordage.orchestrator.run import approvals, endings
from chordage.orchestrator.run.waiting import hand_on
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import held_run, planned, settle
from chordage.orchestrator.stages.step.settle import Done
from chordage.orchestrator.store import stepped, threads
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.stepped import SteppedRows, load_view

log = structlog.get_logger()

TRIES = 8
CANCELLED_CALL = "This call was cancelled together with the run that asked for it."
Write = Callable[[Tx, SteppedRows], Done]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepping:
    """What a verb came to. `duplicate`: it had been done before under the same key."""

    turn_id: str
    run_id: str | None
    rev: int
    standing: Standing
    duplicate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    answer: Stepping
    intents: list[Intent]
    ended: Run | None = None


def step(rt: Runtime, request: StepRequest) -> tuple[Stepping, list[Intent]]:
    """All of it, or an error and nothing."""
    check(request, rt.bounds.text_bytes)
    key = request.key or rt.new_id()
    for _ in range(TRIES):
        with rt.store.read() as tx:
            seen = load_view(tx, request.target, space=request.space)
            before = _done_before(tx, seen, request, key)
        if before is not None:
            return before, []
        _check(request, seen)
        write = _decided(rt, request, seen)
        try:
            written = rt.store.insist(partial(_written, rt=rt, request=request, key=key, seen=seen, write=write))
        except LostRace:
            continue
        _tell(rt, written)
        return written.answer, written.intents
    raise StepRefused(f"turn {seen.turn.id} changes too fast: look at it, and try again", code="busy", rev=seen.row.rev)


def _done_before(tx: Tx, seen: SteppedRows, request: StepRequest, key: str) -> Stepping | None:
    before = stepped.stored_response(tx, seen.turn.id, key)
    if before is None:
        return None
    asked, response = before
    if asked != request.hash:
        told = f"the key {key!r} was used for another request about turn {seen.turn.id}: take a new one"
        raise StepRefused(told, code="key_reused", rev=seen.row.rev, standing=seen.standing.value)
    return Stepping(**{**response, "standing": Standing(response["standing"]), "duplicate": True})


def _check(request: StepRequest, seen: SteppedRows) -> None:
    rev = seen.row.rev
    if request.if_rev is not None and request.if_rev != rev:
        told = f"turn {seen.turn.id} is at rev {rev}, not {request.if_rev}: look at it again"
        raise StepRefused(told, code="stale_rev", rev=rev, standing=seen.standing.value)
    check_allowed(request.verb, seen.standing, rev)
    planned.check_verb(request, seen)


def _written(tx: Tx, rt: Runtime, request: StepRequest, key: str, seen: SteppedRows, write: Write) -> _Written:
    if request.verb is Verb.CANCEL:  # it locks more than we do, and in an order of its own
        done, locked = write(tx, seen), load_view(tx, seen.turn.id)
    else:
        early = write(tx, seen) if request.verb is Verb.COMPACT else None  # a thread is locked before its run
        locked = load_view(tx, seen.turn.id, lock=True)
        if _moved(locked, seen):  # perhaps by this very request: the next look finds its key
            raise LostRace
        done = early or write(tx, locked)
    if not stepped.change(tx, locked.row, **done.changes):
        raise LostRace
    now_seen = load_view(tx, seen.turn.id)
    answer = Stepping(
        turn_id=seen.turn.id, run_id=now_seen.turn.run_id, rev=now_seen.row.rev, standing=now_seen.standing
    )
    kept = {name: value for name, value in asdict(answer).items() if name != "duplicate"}
    stepped.store_response(tx, seen.turn.id, key, request.hash, kept, rt.now())
    return _Written(answer=answer, intents=done.intents, ended=seen.run if done.ended else None)


def _moved(now: SteppedRows, seen: SteppedRows) -> bool:
    return (now.row.rev, now.standing, _place(now.run)) != (seen.row.rev, seen.standing, _place(seen.run))


def _place(run: Run | None) -> tuple[Any, ...] | None:
    return (run.id, run.epoch, run.step, run.phase, run.status) if run else None


def _tell(rt: Runtime, written: _Written) -> None:
    if written.ended is not None:
        endings.tell_the_end(rt, written.ended)
    elif written.answer.run_id is not None:
        rt.events.emit(written.answer.run_id, "run.stepped", turn=written.answer.turn_id, rev=written.answer.rev)


def _change(changes: dict[str, Any]) -> Write:
    return lambda _tx, _seen: Done(changes=changes, intents=[])


def _decided(rt: Runtime, request: StepRequest, seen: SteppedRows) -> Write:
    """What the verb writes, decided on what was seen."""
    args = request.args
    match request.verb:
        case Verb.NEXT | Verb.RUN:
            return _onward(rt, seen, Drive.AUTO if request.verb is Verb.RUN else Drive.ONCE)
        case Verb.MESSAGES:
            return _change(held_run.add_messages(seen, args["messages"]))
        case Verb.STEER:
            return _change({"steers": [*seen.row.steers, args["text"]]})
        case Verb.PARAMS:
            if "model" in args["params"]:
                check_model(rt.agents.get(seen.turn.agent), args["params"])
            return _change(held_run.set_to(seen, args))
        case Verb.OPTIONS:
            return _change({"options": merged(seen.row.options, args["options"])})
        case Verb.PLAN:
            return _change(planned.given(rt, seen, args["plan"]))
        case Verb.COMPACT:
            return _ask_to_compact
        case Verb.HOLD:
            return _change(held_run.held_back(seen, args["ask_ids"]))
        case Verb.PARK:
            return _change({"parked": True, "held_until": None, "drive": Drive.STEP})
        case Verb.TOOL_RESPONSE:
            opening = held_run.opening_of_reply(rt, seen) if seen.standing is not Standing.TOOLING else None
            return lambda tx, now: held_run.open_while_held(tx, rt, now, opening)
        case Verb.RETRY:
            again = held_run.opening_again(rt, seen, args["ask_ids"], force=bool(args.get("force")))
            return lambda tx, now: held_run.open_while_held(tx, rt, now, again)
        case Verb.TOOL_RESULTS:
            held_run.check_results(seen, args["results"])
            return lambda tx, now: held_run.supplied(tx, rt, now, args["results"])
        case Verb.DECIDE:
            return _decide(rt, seen, args)
        case Verb.CANCEL:
            return lambda tx, now: _cancel(tx, rt, now, args.get("reason"))


def _onward(rt: Runtime, seen: SteppedRows, drive: Drive) -> Write:
    """A run that is held goes on at once; any other as soon as it comes to be held."""
    if seen.standing not in {Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED}:
        return _change({"drive": drive})
    plan = _plan(rt, seen)

    def write(tx: Tx, now: SteppedRows) -> Done:
        done = settle.write(tx, rt, now, plan)
        changes = {**done.changes, "drive": Drive.AUTO} if drive is Drive.AUTO else done.changes
        return Done(changes=changes, intents=done.intents, ended=done.ended)

    return write


def _plan(rt: Runtime, seen: SteppedRows) -> settle.Plan:
    return settle.plan(rt, seen) if seen.plan is None else planned.plan(rt, seen)


def _ask_to_compact(tx: Tx, seen: SteppedRows) -> Done:
    """A summary before the next request. The thread counts requests; this one is its consumer's."""
    return Done(changes={"compacts": threads.request_compaction(tx, seen.turn.thread_id)}, intents=[])


def _decide(rt: Runtime, seen: SteppedRows, args: Any) -> Write:
    waiting = held_run.waiting(rt, seen)
    verdict = held_run.verdict_on(seen, args, waiting)
    if verdict is not None:
        return _change(verdict)
    request, asked = held_run.question_of(rt, seen, args, waiting)

    def write(tx: Tx, _now: SteppedRows) -> Done:
        return Done(changes={}, intents=approvals.take_decisions(tx, rt, [request], [asked], held_run.SOURCE)[1])

    return write


def _cancel(tx: Tx, rt: Runtime, seen: SteppedRows, reason: str | None) -> Done:
    if seen.run is None:
        freed = endings.drop_queued(tx, rt, seen.turn.id, Disposition.CANCELLED, reason)
        if freed is None:  # it has started meanwhile
            raise LostRace
        return Done(changes={"held_until": None}, intents=freed)
    ended = endings.end_run(tx, rt, seen.run, cancelled(reason), content=CANCELLED_CALL)
    if ended is None:
        raise LostRace
    return Done(changes={"held_until": None}, intents=ended, ended=True)


def step_on(rt: Runtime, run_id: str) -> list[Intent]:
    """A held run whose consumer has said what follows. Nothing happens to it where somebody was faster; the place that
    it left and does not take again is handed on.
    """
    for _ in range(TRIES):
        with rt.store.read() as tx:
            seen = load_view(tx, run_id)
        is_due = seen.row.drive is not Drive.STEP and seen.standing in {
            Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED,
        }  # fmt: skip
        if not is_due:
            break
        try:
            return _step_on(rt, seen)
        except LostRace:
            continue
        except StepRefused as refused:
            log.info("a run cannot go on by itself", run=run_id, code=refused.code, why=str(refused))
            _leave_to_consumer(rt, seen)
            break
        except (RoomError, UnknownAgent) as error:  # rescue sends for it again
            log.warning("a run cannot go on yet", run=run_id, error=str(error))
            break
    with rt.store.read() as tx:
        return hand_on(tx, seen.turn.group)


def _step_on(rt: Runtime, seen: SteppedRows) -> list[Intent]:
    plan = _plan(rt, seen)

    def work(tx: Tx) -> tuple[Done, Run | None]:
        locked = load_view(tx, seen.turn.id, lock=True)
        if _moved(locked, seen):
            raise LostRace
        done = settle.write(tx, rt, locked, plan)
        stepped.change(tx, locked.row, **done.changes)
        return done, locked.run

    done, run = rt.store.insist(work)
    if done.ended and run is not None:
        endings.tell_the_end(rt, run)
    return done.intents


def _leave_to_consumer(rt: Runtime, seen: SteppedRows) -> None:
    """What its consumer gave cannot be sent as it is."""
    with rt.store.write() as tx:
        stepped.change(tx, seen.row, drive=Drive.STEP, held_until=None)
