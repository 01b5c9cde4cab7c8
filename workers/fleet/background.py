"""A fleet in the background: started so that it outlives the terminal, and ended so that nothing is left of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from chordage.orchestrator.core.errors import NotFound, Unavailable
from chordage.orchestrator.system import private_files
from chordage.workers.fleet import agent_run, births, fleet_lock
from chordage.workers.fleet.agent_run import MemberLine
from chordage.workers.fleet.member import Member, Role
from chordage.workers.fleet.readiness import wait_until_ready
from chordage.workers.fleet.roles import CHORDAGE

PATIENCE = 150.0  # longer than a fleet waits for its own members, and for one that was killed before it
KEEPER = 30.0  # how long cleaning up after a killed fleet may take: three ranks, and each has its grace
LOOK = 0.05


class End(StrEnum):
    STOPPED = "stopped"
    KILLED = "killed"


def start(state: Path, options: Sequence[str], environment: Mapping[str, str]) -> Member:
    """Returns when it is ready. Raises Unavailable with what it said, and leaves nothing behind."""
    private_files.folder(state)
    fleet = Member(Role(name="fleet", arguments=(*CHORDAGE, "run", *options), says_ready=True), state, environment)
    fleet.start()
    try:
        wait_until_ready([fleet], _nothing, patience=PATIENCE)
    except BaseException:
        _break_off(fleet)
        raise
    return fleet


def _nothing() -> None:
    """Whoever presses Ctrl-C interrupts the waiting itself."""


def _break_off(fleet: Member) -> None:
    if fleet.running:
        fleet.tell(signal.SIGTERM)
        fleet.wait(time.monotonic() + KEEPER)
    fleet.sweep_up()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    pid: int | None  # None: it was gone already, and had left somebody behind
    end: End
    left_behind: tuple[MemberLine, ...]  # whom we had to kill


def stop(room: Path, state: Path, grace: float) -> Stopped:
    """Ends the fleet that runs on this state. Raises NotFound when there is none, and nothing of one.

    It is asked first, and killed when it has not ended within `grace`. Its keeper then ends its members, and where
    that is gone as well, we do.
    """
    pid = fleet_lock.holder(state)
    end = End.STOPPED if pid is None or _asked(state, pid, grace) else _killed(pid)
    if not _gone(state, time.monotonic() + KEEPER):
        raise Unavailable(f"{state} is still in use after {KEEPER:g} s by what is left of a fleet; try again")
    left = _left_behind(room)
    for member in left:
        _kill_group(member)
    for file in (state / "ready").glob("*"):
        file.unlink(missing_ok=True)
    agent_run.repaired(room)
    if pid is None and not left:
        raise NotFound(f"no fleet runs on {state}; `chordage start` starts one")
    return Stopped(pid=pid, end=end, left_behind=left)


def _left_behind(room: Path) -> tuple[MemberLine, ...]:
    summary = agent_run.repaired(room)
    return () if summary is None or summary.pid is not None else summary.members


def _asked(state: Path, pid: int, grace: float) -> bool:
    born = births.birth_of(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + grace
    while fleet_lock.holder(state) == pid or (born is not None and births.lives(pid, born)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True


def _killed(pid: int) -> End:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return End.KILLED


def _gone(state: Path, until: float) -> bool:
    """Whether the last process of the fleet has ended, its keeper included."""
    while fleet_lock.is_held(state):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True


def _kill_group(member: MemberLine) -> None:
    """Each leads a group of its own, with its children in it."""
    assert member.pid is not None
    births.kill_group(member.pid, member.born)
