"""`chordage worker --reserved` where nothing is reserved: it stays, and does nothing, until it is told to end.

So a Procfile or a compose file may always name it, and the setting `reserve` alone says whether there is such a worker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from chordage.orchestrator.system import private_files

ENDS = (signal.SIGTERM, signal.SIGINT)


NOTHING_TO_DO = "reserve is 0, so no slots are kept for chat and this worker has nothing to do"


def idle(ready_file: Path | None, tell: Callable[[str], object]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        tell(NOTHING_TO_DO)
        if ready_file:
            private_files.write(ready_file, f"{os.getpid()}\n")
        signal.sigwait(ENDS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
