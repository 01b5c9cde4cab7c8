"""`agent.run` in the room: what runs there now, for people and programs that ask without a database.

A mirror and no truth: whether a fleet runs is told by its lock (fleet_lock.py). So a summary that says "running" while
nobody holds the lock is of a fleet that was killed, and whoever notices puts it right. It is never history.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.system import private_files
from chordage.workers.fleet import births, fleet_lock

FILE = "agent.run"


class Status(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class Standing(StrEnum):
    RUNNING = "running"
    STARTING = "starting"
    DOWN = "down"  # it ended, and is to be started again


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberLine:
    """A process of the fleet; `born` tells it from a later one that has its number."""

    name: str
    pid: int | None
    state: Standing
    born: str | None = None
    restarts: int = 0  # since the fleet was started
    restarted_at: datetime | None = None  # the last of them

    @property
    def lives(self) -> bool:
        """Without its birth it may be anybody: who is left behind is killed, and nobody else."""
        return self.pid is not None and bool(self.born) and births.lives(self.pid, self.born)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    version: str
    pid: int | None
    status: Status
    loops: tuple[str, ...]
    endpoint: str | None
    room: str
    state: str
    database: str  # without its password
    started_at: datetime | None
    heartbeat_at: datetime | None
    members: tuple[MemberLine, ...] = ()

    @property
    def restarts(self) -> int:
        """How often one of its processes died and was started again."""
        return sum(member.restarts for member in self.members)

    @property
    def restarted_at(self) -> datetime | None:
        return max((member.restarted_at for member in self.members if member.restarted_at), default=None)

    def stopped(self) -> Summary:
        """The same when it runs no more. Of the past it keeps the last sign of life, and who was left behind."""
        left = tuple(member for member in self.members if member.lives)
        return replace(self, pid=None, status=Status.STOPPED, loops=(), endpoint=None, started_at=None, members=left)


def write(room: Path, summary: Summary) -> None:
    """Whole or not at all. Raises OSError where the room cannot be written to."""
    private_files.write(room / FILE, json.dumps(asdict(summary), default=datetime.isoformat, indent=2) + "\n")


def read(room: Path) -> Summary | None:
    """None where there is none, or none that can be read: a mirror is not worth an error, the next fleet writes it."""
    try:
        return _from_json(bounds.loads_json((room / FILE).read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def of_fleet(room: Path, state: Path) -> Summary | None:
    """What `repaired` tells. A room may be read-only, or its file be gone: a fleet writes the same into its state."""
    of_room, of_state = repaired(room), repaired(state)
    return of_room if of_state is None else of_state


def _from_json(told: dict[str, Any]) -> Summary:
    moments = {name: told[name] and datetime.fromisoformat(told[name]) for name in ("started_at", "heartbeat_at")}
    members = tuple(_member(one) for one in told["members"])
    given = {**told, **moments, "members": members, "loops": tuple(told["loops"]), "status": Status(told["status"])}
    return Summary(**given)


def _member(told: dict[str, Any]) -> MemberLine:
    at = told.get("restarted_at")
    read = {"state": Standing(told["state"]), "restarted_at": at and datetime.fromisoformat(at)}
    return MemberLine(**{**told, **read})


def repaired(room: Path) -> Summary | None:
    """The summary as it is true: of a fleet that was killed it says "stopped" from now on."""
    told = read(room)
    if told is None or (told.pid is not None and told.pid == fleet_lock.holder(Path(told.state))):
        return told
    if told.status is Status.STOPPED and all(member.lives for member in told.members):
        return told
    stopped = told.stopped()
    with contextlib.suppress(OSError):  # what cannot be written is told all the same
        write(room, stopped)
    return stopped
