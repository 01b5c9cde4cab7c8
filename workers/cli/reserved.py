"""`chordage worker --reserved` where nothing is reserved: it stays, and does nothing, until it is told to end.

So a Procfile or a compose file may always name it, and the setting `reserve` alone says whether there is such a worker.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from chordage.orchestrator import private_files
from chordage.workers.cli.output import say

ENDS = (signal.SIGTERM, signal.SIGINT)


def idle(ready_file: Path | None) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        say("chordage: reserve is 0, so no slots are kept for chat and this worker has nothing to do", err=True)
        if ready_file:
            private_files.write(ready_file, f"{os.getpid()}\n")
        signal.sigwait(ENDS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
