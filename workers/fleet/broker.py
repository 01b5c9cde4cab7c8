"""The broker of the embedded fleet: Valkey on the port it had before, with the password it had before."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import births, found, launching, state_lock
from chordage.workers.fleet.launching import Launch
from chordage.workers.fleet.valkey import NAME, PORT_TAKEN, ValkeyServer

GRACE = 10.0
LOOK = 0.05


def start(state: Path, launch: Launch = launching.alone) -> ValkeyServer:
    """Whoever was told of the port finds it again; only where somebody else has taken it, it is another one.

    The caller holds the fleet's lock. So a server that still runs here has no fleet, and no keeper either: it is ended.
    """
    folder = state / "valkey"
    _end_orphan(folder)
    before = found.last_in(state)
    if before is not None and before.valkey_port is not None:
        server = ValkeyServer(folder, port=before.valkey_port, launch=launch)
        if _could_start(server):
            return server
    server = ValkeyServer(folder, launch=launch)
    server.start()
    return server


def _end_orphan(folder: Path) -> None:
    pid, born = state_lock.holder(folder, NAME)
    if pid is None or born is None or not state_lock.is_held(folder, NAME) or not births.lives(pid, born):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while births.lives(pid, born) and time.monotonic() < until:
        time.sleep(LOOK)
    births.kill_group(pid, born)
    while state_lock.is_held(folder, NAME) and time.monotonic() < until:  # a killed process lets go in a moment
        time.sleep(LOOK)


def _could_start(server: ValkeyServer) -> bool:
    try:
        server.start()
    except Unavailable as error:
        if PORT_TAKEN not in str(error):
            raise
        return False
    return True
