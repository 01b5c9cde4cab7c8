"""The bindings as hooks.toml has them, read again when it changes: who takes a delivery, and why nobody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from chordage.orchestrator.core.webhooks import Binding
from chordage.orchestrator.gateways.hooks import file
from chordage.orchestrator.gateways.hooks.file import HooksFile
from chordage.orchestrator.gateways.room.files import stamp_of

log = structlog.get_logger()

LOOK_AGAIN = 1.0  # seconds between two looks at the file


@dataclass(frozen=True, slots=True)
class WrongMethod:
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """There may be a binding, and it cannot be used."""


class HookBook:
    """Safe to share between threads."""

    def __init__(self, room: Path, environ: Mapping[str, str], *, look_again: float = LOOK_AGAIN) -> None:
        self._room = room
        self._environ = environ
        self._look_again = look_again
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self.now = self._read()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._looked_at >= self._look_again

    def look(self) -> None:
        """Whether the file has changed; if so it is read, and code that it names is imported."""
        with self._lock:
            if not self.is_due:
                return
            if self.now.traces != {path: stamp_of(path) for path in self.now.traces}:
                self.now = self._read()
            self._looked_at = time.monotonic()

    def find(self, path: str, method: str) -> Binding | WrongMethod | Closed | None:
        now = self.now
        there = {one.method: one for one in now.bindings if one.path == path}
        if method in there:
            return there[method]
        if now.unreadable or any(one.path == path for one in now.broken):
            return Closed()
        return WrongMethod(tuple(there)) if there else None

    def _read(self) -> HooksFile:
        found = file.read(self._room, self._environ)
        for fault in found.faults:
            told = f"{fault}\nit answers 503 until that is put right"
            log.error(told)
        return found
