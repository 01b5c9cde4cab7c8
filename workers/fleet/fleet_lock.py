"""One fleet per state directory.

The lock is a flock that the fleet and its keeper share: it lasts until the last process of the fleet is gone, also
where the fleet itself was killed and the keeper is still cleaning up after it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import births, state_lock

NAME = "fleet"
PATIENCE = 20.0


def take(state: Path, *, patience: float = PATIENCE) -> IO[str]:
    """Raises Unavailable, naming the process, when a fleet runs here. One that was killed is given time to vanish."""
    give_up = time.monotonic() + patience
    while True:
        try:
            file = state_lock.lock(state, NAME)
        except Unavailable:
            if holder_lives(state) or time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            state_lock.write_holder(file, os.getpid(), births.birth_of(os.getpid()))
            return file


def is_held(state: Path) -> bool:
    return state_lock.is_held(state, NAME)


def holder(state: Path) -> int | None:
    """The process of the fleet that runs here. None: there is none, or it was killed and is being cleaned up after."""
    pid, born = state_lock.holder(state, NAME)
    return pid if pid is not None and is_held(state) and births.lives(pid, born) else None


def holder_lives(state: Path) -> bool:
    """Otherwise it is the keeper that holds the lock, and not for long."""
    pid, born = state_lock.holder(state, NAME)
    return pid is not None and births.lives(pid, born)
