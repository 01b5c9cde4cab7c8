"""A fleet in the background: started so that it outlives the terminal, and ended with all of its processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chordage.orchestrator.core.errors import NotFound, Unavailable
from chordage.orchestrator.system import private_files, process_identity
from chordage.workers.fleet import agent_run, state_lock
from chordage.workers.fleet.agent_run import MemberStatus
from chordage.workers.fleet.member import Member, MemberRole, wait_until_ready
from chordage.workers.fleet.roles import CHORDAGE

PATIENCE = 150.0  # longer than a fleet waits for its own members, and for the reaper of one that was killed before it
REAPER = 30.0  # how long the reaper of a killed fleet may take: three ranks, and each has its grace


def start(state: Path, options: Sequence[str], environment: Mapping[str, str]) -> Member:
    """Returns when it is ready. Raises Unavailable with the end of its log, and leaves no process behind."""
    private_files.folder(state)
    fleet = Member(
        MemberRole(name="fleet", arguments=(*CHORDAGE, "run", *options), says_ready=True), state, environment
    )
    fleet.start()
    try:
        wait_until_ready([fleet], lambda: None, patience=PATIENCE)
    except BaseException:
        fleet.send_signal(signal.SIGTERM)
        fleet.wait(time.monotonic() + REAPER)
        fleet.kill_group()
        raise
    return fleet


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    pid: int | None  # None: the fleet had ended already, and had left processes behind
    killed: bool  # it did not end within the grace
    left_behind: tuple[MemberStatus, ...]  # the processes that had to be killed


def stop(room: Path, state: Path, grace: float) -> Stopped:
    """Ends the fleet that runs on this state. Raises NotFound when there is neither a fleet nor a process of one.

    SIGTERM first, SIGKILL when it has not ended within `grace`. Its reaper then ends its members. Members that are left
    because the reaper was killed too are killed here.
    """
    pid = state_lock.fleet_pid(state)
    killed = pid is not None and not _terminate(state, pid, grace)
    if pid is not None and killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # The lock is held until the last process of the fleet has ended, its reaper included.
    if not process_identity.wait_until(lambda: not state_lock.fleet_is_held(state), time.monotonic() + REAPER):
        raise Unavailable(f"{state} is still in use after {REAPER:g} s by what is left of a fleet; try again")
    summary = agent_run.corrected(room)
    left = () if summary is None or summary.pid is not None else summary.members
    for member in left:
        assert member.pid is not None
        process_identity.kill_group(member.pid, member.born)
    for file in (state / "ready").glob("*"):
        file.unlink(missing_ok=True)
    agent_run.corrected(room)
    if pid is None and not left:
        raise NotFound(f"no fleet runs on {state}; `chordage start` starts one")
    return Stopped(pid=pid, killed=killed, left_behind=left)


def _terminate(state: Path, pid: int, grace: float) -> bool:
    """Whether it ended within the grace."""
    born = process_identity.start_time(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)

    def has_ended() -> bool:
        is_alive = born is not None and process_identity.is_alive(pid, born)
        return state_lock.fleet_pid(state) != pid and not is_alive

    return process_identity.wait_until(has_ended, time.monotonic() + grace)
