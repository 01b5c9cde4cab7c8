"""How long the calls of each tool take, as this process knows it: what it has measured, and what others have stored.

In memory only. The heartbeat's thread stores what is new and reads what others have measured, a few seconds late at
most (stages/measure.py): no turn waits for it, and what is lost is measured again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from chordage.orchestrator.core.placement import Duration, noted

Key = tuple[str, str]  # agent and tool


class ToolDurations:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._known: dict[Key, Duration] = {}
        self._shared: Mapping[Key, Duration] = {}  # as others can read it
        self._fresh: set[Key] = set()  # measured here since the last look
        self._lock = threading.Lock()
        self._is_due = True  # the first look is at what others know

    def of(self, agent: str, tool: str) -> Duration | None:
        """None: it was never measured, as far as is known here."""
        self._is_due = True
        return self._known.get((agent, tool))

    def note(self, agent: str, tool: str, seconds: float | None) -> None:
        """A call has ended. None: it was not measured."""
        if seconds is None:
            return
        key = (agent, tool)
        with self._lock:
            known = self._known[key] = noted(self._known.get(key), seconds)
            self._fresh.add(key)
            self._is_due = self._is_due or known.differs_from(self._shared.get(key))

    @property
    def is_due(self) -> bool:
        """Since the last look, something was asked for, or was measured that others should know."""
        return self._is_due

    def unshared(self) -> dict[Key, Duration]:
        """What was measured here and differs from what others can read by so much that they should know."""
        with self._lock:
            self._is_due = False
            fresh, self._fresh = self._fresh, set()
            return {key: self._known[key] for key in fresh if self._known[key].differs_from(self._shared.get(key))}

    def share(self, stored: Mapping[Key, Duration]) -> None:
        """All that is stored. What was measured here meanwhile is newer."""
        with self._lock:
            self._shared = stored
            self._known = {**self._known, **stored, **{key: self._known[key] for key in self._fresh}}
