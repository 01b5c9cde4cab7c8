"""When a process began: a number that the system gives to another process later is told from the one we meant."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # behind the name, which may hold anything
GONE = "gone"  # the birth of a process that had ended before it was asked for


def birth_of(pid: int, proc: Path = PROC) -> str | None:
    """A word that no other process of this number will ever have. None: there is no such process, or only its row."""
    if not (proc / "self" / "stat").exists():
        return _asked_of_ps(pid)
    try:
        told = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if told[_STATE] in {b"Z", b"X"} else told[_STARTED].decode()


def _asked_of_ps(pid: int) -> str | None:
    """Where there is no /proc."""
    if pid <= 0:
        return None
    environment = {**os.environ, "LC_ALL": "C"}
    said = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, env=environment, check=False
    ).stdout.split()
    return "-".join(said[1:]) if said and not said[0].startswith("Z") else None


def lives(pid: int, born: str | None) -> bool:
    """Whether it is still that process. Without its birth, any of that number will do."""
    now = birth_of(pid)
    return now is not None and born in {None, "", now}


def born_now(pid: int) -> str:
    """To be asked by whoever has just started it: no other process can have its number yet."""
    return birth_of(pid) or GONE


def kill_group(pid: int, born: str | None) -> None:
    """SIGKILL for the group that the process led, also where the process itself is gone.

    A group keeps its number while one process is left in it, and no process gets that number meanwhile. So where
    another process has it now, the group is empty. Between this look and the signal the last of the group may end, and
    the number be given away: no system call closes that gap for groups.
    """
    if birth_of(pid) in {None, born}:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter of a group of zombies, on macOS
            os.killpg(pid, signal.SIGKILL)
