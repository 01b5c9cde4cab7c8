"""`chordage worker`, on a machine of its own as far as others can tell. A test's program, run by the rig."""

from __future__ import annotations

import os

from chordage.workers import presence, timers


def main() -> None:
    name = f"far away, process {os.getpid()}"
    presence.machine = timers.machine = lambda: name

    from chordage.workers.cli import main as chordage
    from support import chaos_worker

    chaos_worker.take_part()
    chordage(prog_name="chordage")


if __name__ == "__main__":
    main()
