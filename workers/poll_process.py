"""A process that polls, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType

import structlog

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier
from chordage.workers import polling
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from

log = structlog.get_logger()


def run(settings: Settings) -> None:
    """Until it is told to end. Raises RoomError or ConfigError where there is nothing to poll."""
    rt = runtime_from(settings)
    names = polling.usable(rt, settings.room_path)
    ended = _told_to_end()
    poller = polling.poller(rt, Courier(make_app(settings)), settings.room_path, names)
    poller.start()
    log.info("polling", channels=names)
    ended.wait()
    poller.end(lambda: _close(rt))
    log.info("polling has ended")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread that waits for a channel, or for the database, is not waited for


def _told_to_end() -> threading.Event:
    told = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    return told


def _close(rt: Runtime) -> None:
    with contextlib.suppress(UserError):
        rt.channels.close()
