"""What a message does to the run that is open on its thread, in the transaction in which it is stored.

Storing it has locked the run that was open then, so one that is just ending is waited for. Another may have started
while it waited. The one that is looked at here is locked in any case, and stays as it is seen until the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chordage.orchestrator import children, ending
from chordage.orchestrator.core import busy
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.reasons import INTERRUPTED, ROLLED_BACK, SUPERSEDED, Ending
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs, steering, turns
from chordage.orchestrator.store.database import Tx

_CUT_OFF = "This call was cut off: a later message came. If it had started, it may have taken effect."
TOLD = {
    SUPERSEDED: "This call was not executed: a later message came before anybody had decided about it.",
    INTERRUPTED: _CUT_OFF,
    ROLLED_BACK: _CUT_OFF,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """What a message has met with on its thread."""

    ended: Run | None = None
    intents: list[Intent] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    turn_id: str
    thread_id: str
    request: TurnRequest
    manner: WhenBusy
    ready: bool  # nothing was open on the thread, and nobody ahead


def meet(tx: Tx, rt: Runtime, agent: AgentSpec, came: Arrival) -> Met:
    if came.ready and came.manner not in busy.AT_ONCE:
        return Met()
    run = runs.lock_open_on(tx, came.thread_id)
    if run is None:
        return Met()
    children_work = children.are_at_work(tx, run)
    how = busy.end_of(run, came.request, agent, came.manner, children_work=children_work)
    if how is not None:
        return _end(tx, rt, run, how, came)
    if came.manner is WhenBusy.STEER:
        steering.mark_pending(tx, run.id)
    return Met()


def _end(tx: Tx, rt: Runtime, run: Run, how: Ending, came: Arrival) -> Met:
    """Who ends a run does not do so for those who were queued behind it: the message comes before them."""
    if came.manner in busy.ENDS_RUNS:
        steering.move_to_front(tx, came.thread_id, came.turn_id)
    ended = ending.end_run(tx, rt, run, how, content=TOLD[how.code or SUPERSEDED])
    if ended is not None:
        return Met(ended=run, intents=ended)
    freed = turns.make_next_ready(tx, came.thread_id, rt.now())
    return Met(intents=[Dispatch(group=freed)] if freed else [])
