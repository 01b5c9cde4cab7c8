"""Beside the line: a turn is told to stop, wherever it is.

A queued turn is done at once. A run is done at once too: its epoch is bumped, so what is still being worked on for it
finds nothing to write to, and the next heartbeat tells those workers to stop.
"""

from __future__ import annotations

from chordage.orchestrator.core import kinship, message
from chordage.orchestrator.core.errors import Conflict, LostRace, NotFound
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.reasons import cancelled
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.run import endings
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import children, runs, turns
from chordage.orchestrator.store.database import Tx

TRIES = 8
CALL_CANCELLED = "This call was cancelled together with the run that asked for it."


def cancel_turn(
    rt: Runtime, turn_id: str, reason: str | None = None, *, space: str | None = None
) -> tuple[bool, list[Intent]]:
    """Whether this ended the turn; False when it was done already. `space`: of a caller, who may end its own turns, and
    those that nobody waits for any more.
    """
    if space is not None:
        _check_reach(rt, turn_id, space)
    run, intents = _cancelled(rt, turn_id, reason)
    if run is not None:
        endings.tell_the_end(rt, run)
    elif intents is not None:
        rt.events.turn_done(turn_id)
        endings.log_unstarted(turn_id, Disposition.CANCELLED)
    return intents is not None, intents or []


def _check_reach(rt: Runtime, turn_id: str, space: str) -> None:
    """What decides it never changes while a turn lives, so it may be asked before the turn is locked."""
    with rt.store.read() as tx:
        turn = turns.load(tx, turn_id)
        if turn is None or not (
            message.holds(space, kinship.home_of(turn.thread_id, turn.kin)) or children.is_given_up(tx, turn_id)
        ):
            raise _not_there(turn_id)


def _not_there(turn_id: str) -> NotFound:
    return NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")


def _cancelled(rt: Runtime, turn_id: str, reason: str | None) -> tuple[Run | None, list[Intent] | None]:
    for _ in range(TRIES):
        try:
            return rt.store.insist(lambda tx: _cancel(tx, rt, turn_id, reason))
        except LostRace:
            continue
    raise Conflict(f"turn {turn_id!r} changes too fast to be cancelled: try again")


def _cancel(tx: Tx, rt: Runtime, turn_id: str, reason: str | None) -> tuple[Run | None, list[Intent] | None]:
    turn = turns.load(tx, turn_id)
    if turn is None:
        raise _not_there(turn_id)
    if turn.status is TurnStatus.DONE:
        return None, None
    kin = turn.kin if turn.status is TurnStatus.QUEUED else None
    if (freed := endings.drop_queued(tx, rt, turn_id, Disposition.CANCELLED, reason, kin=kin)) is not None:
        return None, freed
    if kin is not None:
        # It has started meanwhile. Its run is locked before that of its parent, which we hold by now: let all go.
        raise LostRace
    run = _run_of(tx, turn_id)
    ended = endings.end_run(tx, rt, run, cancelled(reason), content=CALL_CANCELLED) if run else None
    return (run if ended is not None else None), ended


def _run_of(tx: Tx, turn_id: str) -> Run | None:
    """Asked anew: the turn may have started since we first looked."""
    turn = turns.load(tx, turn_id)
    return runs.lock(tx, turn.run_id) if turn and turn.run_id else None
