"""The cancelling of a turn, wherever it is, in a transaction that is open.

A queued turn is done at once. So is a run: its epoch is raised, so that work still going on for it finds nothing to
write to, and the next heartbeat makes those workers stop.
"""

from __future__ import annotations

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import LostRace, NotFound
from chordage.orchestrator.core.reasons import cancelled
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.run import endings
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.store import children, runs, turns
from chordage.orchestrator.store.database import Tx

CALL_CANCELLED = "This call was cancelled together with the run that asked for it."


def check_reach(tx: Tx, turn_id: str, space: str) -> None:
    """What decides it never changes while a turn lives, so it may be asked before the turn is locked."""
    turn = turns.load(tx, turn_id)
    if turn is None or not (message.holds(space, turn.home_thread) or children.is_given_up(tx, turn_id)):
        raise not_there(turn_id)


def not_there(turn_id: str) -> NotFound:
    return NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")


def cancel(unit: Unit, turn_id: str, reason: str | None) -> bool:
    """False: it was done already. Raises LostRace where a turn starts at this moment: undo everything and try again."""
    turn = turns.load(unit.tx, turn_id)
    if turn is None:
        raise not_there(turn_id)
    if turn.status is TurnStatus.DONE:
        return False
    kin, ending = turn.kin if turn.status is TurnStatus.QUEUED else None, cancelled(reason)
    if endings.drop_queued(unit, turn_id, Disposition.CANCELLED, ending.detail, kin=kin):
        return True
    if kin is not None:
        # It has started meanwhile. Its run is locked before that of its parent, which we hold by now: release both.
        raise LostRace
    turn = turns.load(unit.tx, turn_id)  # again: it may have started since we first looked
    run = runs.lock(unit.tx, turn.run_id) if turn and turn.run_id else None
    return run is not None and endings.end_run(unit, run, ending, content=CALL_CANCELLED)
