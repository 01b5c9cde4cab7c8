"""Tells a process from a later one with the same number, by when it started.

Standard library only: `reaper_program.py` imports this module by its path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # fields behind the name, which may hold anything
CHECK = 0.05  # seconds between two looks while waiting
GONE = "gone"  # the start time of a process that had ended before it was read


def start_time(pid: int, proc: Path = PROC) -> str | None:
    """A string that no other process of this number will ever have. None: there is no such process, or a zombie."""
    if not (proc / "self" / "stat").exists():
        return _start_time_from_ps(pid)
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in {b"Z", b"X"} else fields[_STARTED].decode()


def _start_time_from_ps(pid: int) -> str | None:
    """For systems without /proc."""
    if pid <= 0:
        return None
    environment = {**os.environ, "LC_ALL": "C"}
    words = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, env=environment, check=False
    ).stdout.split()
    return "-".join(words[1:]) if words and not words[0].startswith("Z") else None


def start_time_of_child(pid: int) -> str:
    """For a process that the caller has just started: no other process can have its number yet."""
    return start_time(pid) or GONE


def is_alive(pid: int, born: str | None) -> bool:
    """Whether the process that started at `born` still runs. Without `born`, any process of that number counts."""
    now = start_time(pid)
    return now is not None and born in {None, "", now}


def wait_until(is_so: Callable[[], bool], until: float) -> bool:
    """Whether it became so before that moment of the monotonic clock."""
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(CHECK)
    return True


def kill_group(pid: int, born: str | None) -> None:
    """SIGKILL for the group that the process led, also where the process itself has ended.

    A group keeps its number while one process is left in it, and no process gets that number meanwhile. So where
    another process has the number now, the group is empty. Between this check and the signal the last of the group may
    end, and the number be given away: no system call closes that gap for groups.
    """
    if start_time(pid) in {None, born}:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter of a group of zombies, on macOS
            os.killpg(pid, signal.SIGKILL)
