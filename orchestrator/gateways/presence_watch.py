"""Which processes have shown no presence for so long that they count as gone.

The clocks of several machines may differ, so no time that another process wrote is compared with ours: what counts is
for how long, by our own clocks, a presence has not changed. A gap between two looks begins the count anew for all: this
process stood still, or the database was away, and then the others could not show their presence either.

A process counts as gone without being looked up only if its whole machine is silent. As long as one process there
shows its presence, that one sees by itself which of the others has ended, and does not take a process for dead that
was merely stopped, or is kept busy by a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from chordage.orchestrator.core.presence import Presence, Process
from chordage.orchestrator.gateways.steadiness import Clocks, clocks


class PresenceWatch:
    """Used from one thread."""

    def __init__(
        self, machine: str, is_alive: Callable[[Process], bool], *, gone_after: float, of: Clocks | None = None
    ) -> None:
        """`machine`: ours, where `is_alive` can tell. `gone_after`: seconds of silence."""
        self._machine = machine
        self._is_alive = is_alive
        self._gone_after = gone_after
        self._clocks = clocks() if of is None else of
        self._looked: list[float] | None = None
        self._unchanged: dict[str, tuple[datetime, float]] = {}  # what was seen of each, and since when

    def gone(self, present: Sequence[Presence]) -> list[Presence]:
        """Those that are gone. `present` was read after the call of `begin_look`."""
        assert self._looked is not None
        now = self._looked[0]
        known, self._unchanged = self._unchanged, {}
        for one in present:
            before = known.get(one.process.id)
            since = before[1] if before is not None and before[0] == one.seen_at else now
            self._unchanged[one.process.id] = (one.seen_at, since)
        silent = {one.process.id for one in present if now - self._unchanged[one.process.id][1] >= self._gone_after}
        heard = {one.process.machine for one in present if one.process.id not in silent}
        return [one for one in present if self._is_gone(one.process, silent, heard)]

    def begin_look(self) -> None:
        """Before the database is asked: what it answers is at least as new as this."""
        now = [clock() for clock in self._clocks]
        if self._looked is None or any(
            after - before > self._gone_after / 2 for before, after in zip(self._looked, now, strict=True)
        ):
            self._unchanged = {}
        self._looked = now

    def _is_gone(self, process: Process, silent: set[str], heard: set[str]) -> bool:
        if process.machine == self._machine:
            return not self._is_alive(process)
        return process.id in silent and process.machine not in heard
