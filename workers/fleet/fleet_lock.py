"""One fleet per state directory.

The lock is a flock that the fleet and its keeper share: it lasts until the last process of the fleet is gone, also
where the fleet itself was killed and the keeper is still cleaning up after it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import state_lock

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
            state_lock.write_holder(file, os.getpid())
            return file


def is_held(state: Path) -> bool:
    try:
        with (state / f"{NAME}.lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holder_lives(state: Path) -> bool:
    """Otherwise it is the keeper that holds the lock, and not for long."""
    try:
        os.kill(int((state / f"{NAME}.lock").read_text()), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
