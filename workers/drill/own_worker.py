"""A worker that belongs to a drill. It carries out the turns that it is given, and nothing that is due for others.

To the fleet it is one process more: its presence and its leases are rows like those of any worker. So what it holds
when it is killed is found and continued by the fleet, and nothing of anyone else is ever in its hands. It takes no
message and sends none. Its clock may be wrong, which moves what it writes and what it judges.

It reads one line of JSON for each thread, a list of turns, and ends with its input: also when the drill was killed.
What it holds then is the fleet's, at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from chordage.config import log as logging_config
from chordage.config.settings import load
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.timers import PresenceTimer

log = structlog.get_logger()

MODULE = "chordage.workers.drill.own_worker"
LOOK = 0.5  # seconds between two looks whether the presence is due


def main() -> None:
    """The argument: by how many seconds the clock is wrong."""
    wrong_by = timedelta(seconds=float(sys.argv[1]))
    settings = load()
    logging_config.configure("WARNING", settings.log_format)
    rt = replace(runtime_from(settings, carries_out=True), clock=lambda: datetime.now(UTC) + wrong_by)
    presence = PresenceTimer(settings, lambda: rt, lambda: None)
    presence.begin()
    threading.Thread(target=_keep_present, args=(presence,), daemon=True).start()
    with local.heartbeat(rt, settings.beat):
        for line in sys.stdin:
            threading.Thread(target=_carry_out, args=(rt, json.loads(line)), daemon=True).start()
        presence.end()
        os._exit(0)


def _keep_present(presence: PresenceTimer) -> None:
    pause = threading.Event()
    while not pause.wait(LOOK):
        try:
            presence.tick([os.getpid()])
        except ChordageError as error:
            log.warning("presence not shown", error=str(error))


def _carry_out(rt: Runtime, turn_ids: list[str]) -> None:
    """One after the other, as their thread has them."""
    try:
        for turn_id in turn_ids:
            local.complete(rt, turn_id, on_wait=lambda _turn: None)
    except ChordageError as error:
        log.warning("a canary is left to the fleet", error=str(error))


if __name__ == "__main__":
    main()
