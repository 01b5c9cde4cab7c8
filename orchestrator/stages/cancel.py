"""Not in the line of a turn: cancel a turn, wherever it is (run/cancelling.py)."""

from __future__ import annotations

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import Conflict, LostRace
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.run import cancelling
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit

TRIES = 8


def cancel_turn(
    rt: Runtime, turn_id: str, reason: str | None = None, *, space: str | None = None, by: Actor | None = None
) -> tuple[bool, list[Intent]]:
    """Whether this ended the turn; False when it was done already. `space`: of a caller, who may end its own turns, and
    those of sub-agents that were given up. `by`: who cancels it, for the record.
    """
    if space is not None:
        with rt.store.read() as tx:
            cancelling.check_reach(tx, turn_id, space)
    for _ in range(TRIES):
        try:
            return insist(rt, lambda unit: _cancel_and_record(unit, turn_id, reason, by))
        except LostRace:
            continue
    raise Conflict(f"turn {turn_id!r} changes too fast to be cancelled: try again")


def _cancel_and_record(unit: Unit, turn_id: str, reason: str | None, by: Actor | None) -> bool:
    ended = cancelling.cancel(unit, turn_id, reason)
    if ended and by is not None:
        audit.record(unit.tx, by, Audited.CANCELLED, turn_id, now=unit.now)
    return ended
