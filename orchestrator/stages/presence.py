"""Not in the line of a turn: show that the processes of this worker live, and see which others are gone.

What a process held that is gone is sent again by rescue without a wait for its leases. A death on this machine is seen
at the next look, because the process is no longer there; a machine is taken for gone after some seconds of silence
(gateways/presence_watch.py). Not promised: that a process which counts as gone has ended. If it comes back, it shows
its presence again, and what it writes about work that others hold meanwhile changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.gateways.presence_watch import PresenceWatch
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import processes
from chordage.orchestrator.store.database import Store

log = structlog.get_logger()


def show_presence(rt: Runtime, present: Sequence[Process], *, through: Store | None = None) -> None:
    """In one statement, over the connection of the heartbeat. `through`: over another."""
    store = through or rt.heart or rt.store
    with Unit(rt, store.single) as unit:
        processes.show(unit.tx, present, unit.now)
    if through is None and rt.steadiness is not None:
        rt.steadiness.answered()


def look_for_gone(rt: Runtime, watch: PresenceWatch, *, through: Store | None = None) -> list[str]:
    """Put on record which processes are gone; those that were not noticed before."""
    store = through or rt.heart or rt.store
    watch.begin_look()
    with store.read() as tx:
        present = processes.present(tx)
    gone = watch.gone(present)
    noticed: list[str] = []
    for one in gone:
        with Unit(rt, store.single) as unit:
            if processes.mark_gone(unit.tx, one, unit.now):
                log.warning("a process is gone; what it held is sent again", process=one.process.id)
                noticed.append(one.process.id)
    return noticed


def left_behind(rt: Runtime) -> list[str]:
    """The processes that went lately."""
    with rt.store.read() as tx:
        return processes.gone(tx)


def end_presence(rt: Runtime, process_ids: Collection[str]) -> None:
    """These processes are about to end."""
    store = rt.heart or rt.store
    with Unit(rt, store.single) as unit:
        processes.mark_ended(unit.tx, process_ids, unit.now)
