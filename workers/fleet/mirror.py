"""Keeps agent.run true while a fleet runs: at its start, when a member changes, every few seconds, and at its end."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

from chordage.config.settings import Settings
from chordage.workers.fleet import agent_run, births
from chordage.workers.fleet.agent_run import MemberLine, Standing, Status, Summary
from chordage.workers.fleet.member import Member
from chordage.workers.fleet.valkey import ValkeyServer

HEARTBEAT = 5.0
BROKER = "valkey"


class Mirror:
    def __init__(
        self,
        settings: Settings,
        members: Sequence[Member],
        valkey: ValkeyServer | None,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._members = members
        self._valkey = valkey
        self._say = say
        self._born: dict[int, str | None] = {}
        self._restarted: dict[str, tuple[int, datetime]] = {}  # how often, and when last
        self._told: Summary | None = None
        self._told_at = 0.0

    def begin(self) -> None:
        self._write(self._summary())

    def look(self) -> None:
        """Called often; writes when there is something to tell."""
        if self._told is None:
            return
        members = self._lines()
        if members != self._told.members or time.monotonic() - self._told_at >= HEARTBEAT:
            self._write(replace(self._told, members=members, heartbeat_at=datetime.now(UTC)))

    def end(self) -> None:
        if self._told is not None:
            self._write(replace(self._told, heartbeat_at=datetime.now(UTC)).stopped())
            self._told = None

    def _write(self, summary: Summary) -> None:
        first = self._told is None
        self._told, self._told_at = summary, time.monotonic()
        with contextlib.suppress(OSError):  # told below, if the room cannot be written either
            agent_run.write(self._settings.state_path, summary)
        try:
            agent_run.write(self._settings.room_path, summary)
        except OSError as error:
            if first:  # a room may be read-only; what runs in it runs all the same
                self._say(f"{self._settings.room_path / agent_run.FILE} cannot be written: {error.strerror}")

    def _summary(self) -> Summary:
        now = datetime.now(UTC)
        settings = self._settings
        return Summary(
            version=version("chordage"),
            pid=os.getpid(),
            status=Status.RUNNING,
            loops=settings.loops,
            endpoint=next((member.role.url for member in self._members if member.role.url), None),
            room=str(settings.room_path),
            state=str(settings.state_path),
            database=without_password(settings.database),
            started_at=now,
            heartbeat_at=now,
            members=self._lines(),
        )

    def _lines(self) -> tuple[MemberLine, ...]:
        broker = [self._line(BROKER, self._valkey.pid, self._valkey.starts, ready=True)] if self._valkey else []
        members = [
            self._line(member.name, member.pid if member.running else None, member.starts, ready=member.was_ready)
            for member in self._members
        ]
        return (*broker, *members)

    def _line(self, name: str, pid: int | None, starts: int, *, ready: bool) -> MemberLine:
        restarts, at = self._restarts(name, starts)
        if pid is None:
            return MemberLine(name=name, pid=None, state=Standing.DOWN, restarts=restarts, restarted_at=at)
        if pid not in self._born:
            self._born[pid] = births.birth_of(pid)
        standing = Standing.RUNNING if ready else Standing.STARTING
        return MemberLine(name=name, pid=pid, state=standing, born=self._born[pid], restarts=restarts, restarted_at=at)

    def _restarts(self, name: str, starts: int) -> tuple[int, datetime | None]:
        """Who looks this often sees each of them at the moment it happens."""
        before, at = self._restarted.get(name, (0, None))
        if starts - 1 <= before:
            return before, at
        self._restarted[name] = starts - 1, datetime.now(UTC)
        return self._restarted[name]


def without_password(url: str) -> str:
    """Up to the last @, for a password may hold one; it may also stand behind the question mark."""
    shown = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&][a-z_]*password=)[^&]*", r"\1***", shown)
