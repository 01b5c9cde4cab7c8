"""The bindings of hooks.toml, read again when the file changes: which one takes a delivery."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from chordage.orchestrator.core.webhooks import Binding
from chordage.orchestrator.gateways.room.files import stamp_of
from chordage.orchestrator.gateways.webhooks import file
from chordage.orchestrator.gateways.webhooks.file import HooksFile

log = structlog.get_logger()

REFRESH_SECONDS = 1.0  # between two looks at the file


@dataclass(frozen=True, slots=True)
class WrongMethod:
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The path may have a binding, and it cannot be used."""


class WebhookBindings:
    """Safe to share between threads."""

    def __init__(self, room: Path, environ: Mapping[str, str], *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self._room = room
        self._environ = environ
        self._refresh_seconds = refresh_seconds
        self._lock = threading.Lock()
        self._refreshed_at = time.monotonic()
        self.current = self._read()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._refreshed_at >= self._refresh_seconds

    def refresh(self) -> None:
        """Read the file again if it has changed; this imports the code that it names."""
        with self._lock:
            if not self.is_due:
                return
            if self.current.stamps != {path: stamp_of(path) for path in self.current.stamps}:
                self.current = self._read()
            self._refreshed_at = time.monotonic()

    def find(self, path: str, method: str) -> Binding | WrongMethod | Closed | None:
        current = self.current
        by_method = {binding.method: binding for binding in current.bindings if binding.path == path}
        if method in by_method:
            return by_method[method]
        if current.unreadable or any(broken.path == path for broken in current.broken):
            return Closed()
        return WrongMethod(tuple(by_method)) if by_method else None

    def _read(self) -> HooksFile:
        content = file.read(self._room, self._environ)
        for fault in content.faults:
            event = f"{fault}\nit answers 503 until that is repaired"
            log.error(event)
        return content
