"""`chordage worker` on a machine whose clock can be moved while it works. A test's program, run by the rig.

The file named by RIG_CLOCK holds the seconds by which the clock is wrong; without the file it is right.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Self

CLOCK = "RIG_CLOCK"


def main() -> None:
    file, right = Path(os.environ[CLOCK]), time.time

    def wrong() -> float:
        try:
            return right() + float(file.read_text() or 0)
        except FileNotFoundError:
            return right()

    class Moved(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(wrong(), tz)

    from chordage.orchestrator.gateways import redis_locks
    from chordage.workers import bootstrap
    from chordage.workers.cli import main as chordage
    from support import chaos_worker

    chaos_worker.take_part()
    time.time = wrong
    bootstrap.datetime = redis_locks.datetime = Moved
    chordage(prog_name="chordage")


if __name__ == "__main__":
    main()
