"""Not in the line of a turn: tell other processes how long tools take, and learn it from them."""

from __future__ import annotations

from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import durations
from chordage.orchestrator.store.database import Store


def share_durations(rt: Runtime, *, through: Store | None = None) -> None:
    """To be called every few seconds. A process that neither places calls nor measures any asks for nothing.
    `through`: not the connection of the heartbeat.
    """
    if not rt.durations.is_due:
        return
    store = through or rt.heart or rt.store
    if measured := rt.durations.unshared():
        with Unit(rt, store.single) as unit:
            durations.store(unit.tx, measured, unit.now)
            durations.forget(unit.tx, unit.now)
    with store.read() as tx:
        rt.durations.share(durations.load(tx))
