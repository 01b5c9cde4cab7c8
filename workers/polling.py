"""The poll loop of a process: bindings of the room, looked at through the engine, with their mirrors in the room."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from chordage.orchestrator import polling, views
from chordage.orchestrator.core.errors import ConfigError, RoomError
from chordage.orchestrator.gateways.channels import mirror
from chordage.orchestrator.gateways.channels.reading import FILE
from chordage.orchestrator.loops.poll import Poller
from chordage.orchestrator.polling import Outcome
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier

log = structlog.get_logger()

QUIET = 5.0  # seconds between two mirrors of a channel on which nothing happens


def usable(rt: Runtime, room: Path) -> list[str]:
    """Those that can be looked at; what is wrong with the others is said. Raises ConfigError where there is no file.

    A file that binds nothing so far, such as the one that `chordage init` writes, is waited for: it is read again when
    it changes.
    """
    faults = rt.channels.faults()
    names = [name for name in rt.channels.names() if _fault_of(rt, name) is None]
    if not names and not faults:
        if not (room / FILE).exists():
            raise ConfigError(f"there is nothing to poll: write {room / FILE}")
        log.info("nothing is bound so far: it is waited for", file=FILE)
    for fault in faults:
        log.error("a channel is not polled until it is put right", fault=str(fault))
    return names


def _fault_of(rt: Runtime, name: str) -> RoomError | None:
    try:
        rt.channels.get(name)
    except RoomError as fault:
        return fault
    return None


def poller(rt: Runtime, courier: Courier, room: Path, names: list[str]) -> Poller:
    mirrors = Mirrors(rt, room)

    def look(name: str) -> float:
        looked = polling.look(rt, name, courier.send)
        mirrors.after(name, looked.outcome)
        return looked.wait

    return Poller(
        names,
        look=look,
        renew=lambda some: polling.renew(rt, some),
        let_go=lambda some: polling.let_go(rt, some),
        beat=rt.leases.beat,
    )


class Mirrors:
    def __init__(self, rt: Runtime, room: Path) -> None:
        self._rt = rt
        self._room = room
        self._written: dict[str, float] = {}
        self._told: set[str] = set()

    def after(self, name: str, outcome: Outcome) -> None:
        """Whoever does not look writes nothing: another process does."""
        now = time.monotonic()
        quiet = outcome in {Outcome.NOTHING, Outcome.RESTING} and now - self._written.get(name, -QUIET) < QUIET
        if quiet or outcome in {Outcome.ELSEWHERE, Outcome.OVERTAKEN}:
            return
        self._written[name] = now
        self._write(name)

    def _write(self, name: str) -> None:
        """A room that cannot be written to is no reason to fetch no messages; it is said once."""
        row = views.channel_row(self._rt.store, name)
        try:
            if row is not None:
                mirror.write(self._room, name, row)
        except OSError as error:
            if name not in self._told:
                log.warning("the mirror of a channel cannot be written", channel=name, error=str(error))
            self._told.add(name)
