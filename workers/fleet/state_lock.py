"""One server per state directory, because two would destroy each other's files.

The lock is a flock on a file whose descriptor the server inherits. So it holds for as long as the server lives, even
where whoever started it was killed, and it cannot outlive the server.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.system import private_files


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
        holder = _written(state_dir, server).partition(" ")[0]
        raise Unavailable(f"{state_dir} is in use by {server}, process {holder}: stop it: `kill {holder}`") from error
    return file


def write_holder(file: IO[str], pid: int, born: str | None) -> None:
    """Leave the server's process id, and when it began, for whoever finds the door locked."""
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
    """As it was written down; the process may be gone, and another one have its number."""
    try:
        pid, _, born = _written(state_dir, server).partition(" ")
        return int(pid), born or None
    except (FileNotFoundError, ValueError):
        return None, None


def _path(state_dir: Path, server: str) -> Path:
    return state_dir / f"{server}.lock"


def _written(state_dir: Path, server: str) -> str:
    return _path(state_dir, server).read_text().strip()
