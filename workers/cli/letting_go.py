"""Somebody pressed Ctrl-C: what this process has in hand is told to end, and has a moment to do so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chordage.orchestrator.runtime import Runtime

LONG = 5.0  # seconds
TICK = 0.05


def let_go(rt: Runtime) -> None:
    """Told again at every look: what stands behind a call in its batch starts when that has ended."""
    until = threading.Event()
    for _ in range(int(LONG / TICK)):
        if not (hands := rt.in_flight.all()):
            return
        rt.in_flight.abort(hands)
        until.wait(TICK)
