"""A process that polls, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import structlog

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.gateways.channels.reading import FILE
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier
from chordage.workers import connections, polling, team_app
from chordage.workers.app import make_app
from chordage.workers.bootstrap import channels_from, runtime_from

log = structlog.get_logger()

LOOK = 1.0  # seconds between two looks at the file


def run(settings: Settings) -> None:
    """Until it is told to end. Raises ConfigError where there is no channels.toml. It is read again when it changes."""
    connections.check(settings, connections.of_server(settings))
    team_app.make_current(settings)
    rt, courier, ended = runtime_from(settings, serves=True), Courier(make_app(settings)), _told_to_end()
    file = settings.room_path / FILE
    while not ended.is_set():
        stamp = _stamp(file)
        rt = replace(rt, channels=channels_from(settings))
        _poll(rt, courier, settings.room_path, lambda seen=stamp: ended.wait(LOOK) or _stamp(file) != seen)  # type: ignore[misc]
    log.info("polling has ended")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread that waits for a channel, or for the database, is not waited for


def _poll(rt: Runtime, courier: Courier, room: Path, is_over: Callable[[], bool]) -> None:
    names = polling.usable(rt, room)
    poller = polling.poller(rt, courier, room, names)
    poller.start()
    log.info("polling", channels=names)
    while not is_over():
        pass
    poller.end(lambda: _close(rt))


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


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
