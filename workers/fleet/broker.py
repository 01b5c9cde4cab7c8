"""The broker of the embedded fleet: Valkey on the port it had before."""

from __future__ import annotations

from pathlib import Path

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import found
from chordage.workers.fleet.valkey import PORT_TAKEN, ValkeyServer


def start(state: Path) -> ValkeyServer:
    """Whoever was told of the port finds it again; only where somebody else has taken it, it is another one."""
    folder = state / "valkey"
    before = found.last_in(state)
    if before is not None and before.valkey_port is not None:
        server = ValkeyServer(folder, port=before.valkey_port)
        if _could_start(server):
            return server
    server = ValkeyServer(folder)
    server.start()
    return server


def _could_start(server: ValkeyServer) -> bool:
    try:
        server.start()
    except Unavailable as error:
        if PORT_TAKEN not in str(error):
            raise
        return False
    return True
