"""`chordage worker` without one guard: an unsafe call whose worker died is sent again like an idempotent one. A test's
program, run by the rig.
"""

from __future__ import annotations

import importlib
from collections import Counter


def main() -> None:
    from chordage.orchestrator.run.unit import Unit
    from chordage.workers.cli import main as chordage

    rescue = importlib.import_module("chordage.orchestrator.stages.rescue")  # the package has a function of that name

    def send_again(rt, run, call):
        with Unit(rt) as unit:
            rescue._wake_call(unit, call, run, unit.now, Counter())
        return unit.intents

    rescue._close_unknown = send_again
    chordage(prog_name="chordage")


if __name__ == "__main__":
    main()
