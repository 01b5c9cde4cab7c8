"""The process of `chordage poll`: the poll loop over the channels of the room, and a stats file for each of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import ConfigError, RoomError, UserError
from chordage.orchestrator.gateways.channels.room_channels import FILE
from chordage.orchestrator.loops.poll import Poller, PollOutcome, poll_once, release_leases, renew_leases
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.system import private_files
from chordage.tasks.courier import Courier
from chordage.workers import connections, team_app
from chordage.workers.app import make_app
from chordage.workers.bootstrap import channels_from, runtime_from

log = structlog.get_logger()

FILE_CHECK = 1.0  # seconds between two looks at channels.toml
MIRROR_FOLDER = "poll"  # in the room
MIRRORED = (
    "cursor", "looked_at", "stored_at", "holder", "failures", "error", "next_look", "taken", "doubled", "refused",
    "passed_over",
)  # fmt: skip
QUIET = 5.0  # seconds between two writes of the mirror of a channel on which nothing happens


def run(settings: Settings) -> None:
    """Until a signal ends it. Raises ConfigError where there is no channels.toml. It is read again when it changes."""
    connections.check(settings, connections.of_server(settings))
    team_app.make_current(settings)
    rt, courier, stop = runtime_from(settings, serves=True), Courier(make_app(settings)), _stop_signal()
    file = settings.room_path / FILE
    while not stop.is_set():
        stamp = _stamp(file)
        rt = replace(rt, channels=channels_from(settings))
        names = usable(rt, settings.room_path)
        poller = poller_of(rt, courier, settings.room_path, names)
        poller.start()
        log.info("polling", channels=names)
        while not stop.wait(FILE_CHECK) and _stamp(file) == stamp:
            pass
        poller.stop(partial(_close_channels, rt))
    log.info("polling has ended")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads that wait for a channel or the database


def usable(rt: Runtime, room: Path) -> list[str]:
    """The bindings that can be polled; the faults of the others are logged. Raises ConfigError if there is no file.

    A file without bindings, such as the one that `chordage init` writes, is no fault: it is read again when it changes.
    """
    faults = rt.channels.faults()
    names = [name for name in rt.channels.names() if _is_usable(rt, name)]
    if not names and not faults:
        if not (room / FILE).exists():
            raise ConfigError(f"there is nothing to poll: write {room / FILE}")
        log.info("no channel is bound yet; waiting for the file to change", file=FILE)
    for fault in faults:
        log.error("a channel is not polled until it is repaired", fault=str(fault))
    return names


def _is_usable(rt: Runtime, name: str) -> bool:
    try:
        rt.channels.get(name)
    except RoomError:
        return False
    return True


def poller_of(rt: Runtime, courier: Courier, room: Path, names: list[str]) -> Poller:
    mirrors = ChannelMirrors(rt, room)

    def poll(name: str) -> float:
        result = poll_once(rt, name, courier.send)
        mirrors.update(name, result.outcome)
        return result.wait

    return Poller(
        names,
        poll=poll,
        renew=lambda some: renew_leases(rt, some),
        release=lambda some: release_leases(rt, some),
        beat=rt.leases.beat,
    )


class ChannelMirrors:
    """The state of each channel as a file in the room, `poll/<binding>.json`, for people to read."""

    def __init__(self, rt: Runtime, room: Path) -> None:
        self._rt = rt
        self._room = room
        self._written: dict[str, float] = {}
        self._warned: set[str] = set()

    def update(self, name: str, outcome: PollOutcome) -> None:
        """Only the process that polls the channel writes its file."""
        now = time.monotonic()
        is_quiet = outcome in {PollOutcome.NOTHING, PollOutcome.RESTING}
        if is_quiet and now - self._written.get(name, -QUIET) < QUIET:
            return
        if outcome in {PollOutcome.ELSEWHERE, PollOutcome.OVERTAKEN}:
            return
        self._written[name] = now
        row = views.channel_row(self._rt.store, name)
        try:
            if row is not None:
                self._write(name, row)
        except OSError as error:  # messages are fetched all the same, and one warning is enough
            if name not in self._warned:
                log.warning("the mirror of a channel cannot be written", channel=name, error=str(error))
            self._warned.add(name)

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        shown = {"binding": name, **{key: row[key] for key in MIRRORED}}
        text = json.dumps(shown, default=_text, ensure_ascii=False, indent=2)
        private_files.write(private_files.folder(self._room / MIRROR_FOLDER) / f"{name}.json", text + "\n")


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _stop_signal() -> threading.Event:
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    return stop


def _close_channels(rt: Runtime) -> None:
    with contextlib.suppress(UserError):
        rt.channels.close()
