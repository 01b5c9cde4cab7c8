"""One server of a kind per state directory, because two would destroy each other's files.

The lock is a flock on a file whose descriptor the server inherits. So it holds for as long as the server lives, even
where the process that started it was killed, and it cannot outlive the server. The lock named "fleet" is shared by the
fleet and its reaper: it lasts until the last process of the fleet has ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.system import private_files, process_identity

FLEET = "fleet"
PATIENCE = 20.0


def lock(state_dir: Path, server: str) -> IO[str]:
    """The locked file; pass its descriptor on to the server and close it here. Makes the directory if need be."""
    try:
        private_files.folder(state_dir)
        file = open(_path(state_dir, server), "a+", opener=private_files.opener)  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise ConfigError(f"{state_dir} cannot hold the files of {server}: {error.strerror}; choose another") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        pid = _text(state_dir, server).partition(" ")[0]
        raise Unavailable(f"{state_dir} is in use by {server}, process {pid}: stop it: `kill {pid}`") from error
    return file


def write_holder(file: IO[str], pid: int, born: str | None) -> None:
    """Store the server's process id and start time, for processes that find the lock taken."""
    file.truncate(0)
    file.write(f"{pid} {born or ''}".rstrip() + "\n")
    file.flush()


def is_held(state_dir: Path, server: str) -> bool:
    try:
        with _path(state_dir, server).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holder(state_dir: Path, server: str) -> tuple[int | None, str | None]:
    """Process id and start time as last stored. The process may have ended, and another one have its number."""
    try:
        pid, _, born = _text(state_dir, server).partition(" ")
        return int(pid), born or None
    except (FileNotFoundError, ValueError):
        return None, None


def lock_fleet(state: Path, *, patience: float = PATIENCE) -> IO[str]:
    """Raises Unavailable, naming the process, when a fleet runs here. Waits for the reaper of a killed one."""
    give_up = time.monotonic() + patience
    while True:
        try:
            file = lock(state, FLEET)
        except Unavailable:
            if fleet_holder_is_alive(state) or time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            write_holder(file, os.getpid(), process_identity.start_time(os.getpid()))
            return file


def fleet_is_held(state: Path) -> bool:
    return is_held(state, FLEET)


def fleet_pid(state: Path) -> int | None:
    """The process of the fleet that runs here. None: there is none, or it was killed and its reaper is at work."""
    pid, born = holder(state, FLEET)
    return pid if pid is not None and fleet_is_held(state) and process_identity.is_alive(pid, born) else None


def fleet_holder_is_alive(state: Path) -> bool:
    """Otherwise the reaper holds the lock, and not for long."""
    pid, born = holder(state, FLEET)
    return pid is not None and process_identity.is_alive(pid, born)


def _path(state_dir: Path, server: str) -> Path:
    return state_dir / f"{server}.lock"


def _text(state_dir: Path, server: str) -> str:
    return _path(state_dir, server).read_text().strip()
