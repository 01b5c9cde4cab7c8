"""`agent.run` in the room: what runs there now, for people and programs that have no access to the database.

It is a copy: whether a fleet runs is decided by its lock (state_lock.py). A file that says "running" while the lock is
free is of a fleet that was killed; the next reader corrects it. The fleet writes it at its start, when a member
changes, every few seconds, and at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter

from chordage.config.settings import Settings
from chordage.orchestrator.system import private_files, process_identity
from chordage.workers.fleet import state_lock
from chordage.workers.fleet.member import Member
from chordage.workers.fleet.valkey import ValkeyServer

FILE = "agent.run"
HEARTBEAT = 5.0
BROKER = "valkey"


class FleetStatus(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class MemberState(StrEnum):
    RUNNING = "running"
    STARTING = "starting"
    DOWN = "down"  # it ended, and is to be started again


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberStatus:
    """A process of the fleet; `born` tells it from a later process with its number."""

    name: str
    pid: int | None
    state: MemberState
    born: str | None = None
    restarts: int = 0  # since the fleet was started
    restarted_at: datetime | None = None  # the last of them

    @property
    def lives(self) -> bool:
        """False without `born`: the number may be another process's, and what is left behind gets killed."""
        return self.pid is not None and bool(self.born) and process_identity.is_alive(self.pid, self.born)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSummary:
    version: str
    pid: int | None
    status: FleetStatus
    loops: tuple[str, ...]
    endpoint: str | None
    room: str
    state: str
    database: str  # without its password
    started_at: datetime | None
    heartbeat_at: datetime | None
    members: tuple[MemberStatus, ...] = ()

    @property
    def restarts(self) -> int:
        """How often one of its processes died and was started again."""
        return sum(member.restarts for member in self.members)

    @property
    def restarted_at(self) -> datetime | None:
        return max((member.restarted_at for member in self.members if member.restarted_at), default=None)

    def stopped(self) -> FleetSummary:
        """The same fleet after its end. Kept are the last heartbeat, and the processes that still run."""
        left = tuple(member for member in self.members if member.lives)
        return replace(
            self, pid=None, status=FleetStatus.STOPPED, loops=(), endpoint=None, started_at=None, members=left
        )


SUMMARY = TypeAdapter(FleetSummary)


def write(room: Path, summary: FleetSummary) -> None:
    """Whole or not at all. Raises OSError where the room cannot be written to."""
    private_files.write(room / FILE, json.dumps(asdict(summary), default=datetime.isoformat, indent=2) + "\n")


def read(room: Path) -> FleetSummary | None:
    """None where there is none, and where it cannot be read: the next fleet writes it again."""
    try:
        return SUMMARY.validate_json((room / FILE).read_bytes())
    except (OSError, ValueError):
        return None


def corrected(room: Path) -> FleetSummary | None:
    """The summary as it is now: the file of a killed fleet says "stopped" from here on."""
    summary = read(room)
    if summary is None or (summary.pid is not None and summary.pid == state_lock.fleet_pid(Path(summary.state))):
        return summary
    if summary.status is FleetStatus.STOPPED and all(member.lives for member in summary.members):
        return summary
    stopped = summary.stopped()
    with contextlib.suppress(OSError):  # the return value is right even where the file cannot be written
        write(room, stopped)
    return stopped


def of_fleet(room: Path, state: Path) -> FleetSummary | None:
    """As `corrected`. The fleet writes to both: a room may be read-only, or its file deleted."""
    of_room, of_state = corrected(room), corrected(state)
    return of_room if of_state is None else of_state


class AgentRunWriter:
    """Keeps agent.run true while a fleet runs."""

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
        self._summary: FleetSummary | None = None  # as last written
        self._written_at = 0.0

    def begin(self) -> None:
        now = datetime.now(UTC)
        settings = self._settings
        self._write(
            FleetSummary(
                version=version("chordage"),
                pid=os.getpid(),
                status=FleetStatus.RUNNING,
                loops=settings.loops,
                endpoint=next((member.role.url for member in self._members if member.role.url), None),
                room=str(settings.room_path),
                state=str(settings.state_path),
                database=without_password(settings.database),
                started_at=now,
                heartbeat_at=now,
                members=self._statuses(),
            )
        )

    def update(self) -> None:
        """Called often; writes when a member has changed or the heartbeat is due."""
        if self._summary is None:
            return
        members = self._statuses()
        if members != self._summary.members or time.monotonic() - self._written_at >= HEARTBEAT:
            self._write(replace(self._summary, members=members, heartbeat_at=datetime.now(UTC)))

    def end(self) -> None:
        if self._summary is not None:
            self._write(replace(self._summary, heartbeat_at=datetime.now(UTC)).stopped())
            self._summary = None

    def _write(self, summary: FleetSummary) -> None:
        first = self._summary is None
        self._summary, self._written_at = summary, time.monotonic()
        with contextlib.suppress(OSError):  # reported below, if the room cannot be written either
            write(self._settings.state_path, summary)
        try:
            write(self._settings.room_path, summary)
        except OSError as error:
            if first:  # a room may be read-only; what runs in it runs all the same
                self._say(f"{self._settings.room_path / FILE} cannot be written: {error.strerror}")

    def _statuses(self) -> tuple[MemberStatus, ...]:
        broker = [_status(BROKER, self._valkey, is_ready=True)] if self._valkey else []
        return (*broker, *(_status(member.name, member, is_ready=member.was_ready) for member in self._members))


def _status(name: str, process: Member | ValkeyServer, *, is_ready: bool) -> MemberStatus:
    restarts, at = max(0, process.starts - 1), process.restarted_at
    if not process.running:
        return MemberStatus(name=name, pid=None, state=MemberState.DOWN, restarts=restarts, restarted_at=at)
    state = MemberState.RUNNING if is_ready else MemberState.STARTING
    return MemberStatus(name=name, pid=process.pid, state=state, born=process.born, restarts=restarts, restarted_at=at)


def without_password(url: str) -> str:
    """Masks up to the last @, for a password may contain one; and a password in the query."""
    masked = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&][a-z_]*password=)[^&]*", r"\1***", masked)
