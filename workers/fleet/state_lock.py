"""One server per state directory, because two would destroy each other's files.

The lock is a flock on a file whose descriptor the server inherits. So it holds for as long as the server lives, even
where whoever started it was killed, and it cannot outlive the server.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from chordage.orchestrator.core.errors import ConfigError, Unavailable


def lock(state_dir: Path, server: str) -> IO[str]:
    """The locked file; pass its descriptor on to the server and close it here. Makes the directory if need be."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        file = (state_dir / f"{server}.lock").open("a+")
    except OSError as error:
        raise ConfigError(f"{state_dir} cannot hold the files of {server}: {error.strerror}; choose another") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(file)
        raise Unavailable(f"{state_dir} is in use by {server}, process {holder}: stop it: `kill {holder}`") from error
    return file


def write_holder(file: IO[str], pid: int, born: str | None = None) -> None:
    """Leave the server's process id, and when it began, for whoever finds the door locked."""
    file.truncate(0)
    file.write(f"{pid} {born or ''}".rstrip() + "\n")
    file.flush()


def _holder(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read().partition(" ")[0].strip()
