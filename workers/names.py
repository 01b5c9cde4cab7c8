"""A name of its own for each worker of a machine, the same again after a restart.

Workers of one name are one worker to Celery: Flower shows one row, and `inspect` takes the first reply for all. So each
takes the lowest number that is free. It is held by a lock on a file, which the kernel lets go when the worker is gone,
however it ended: whoever is started in its place has its name, and monitors collect no dead ones.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

import structlog

from chordage.orchestrator.system import private_files

log = structlog.get_logger()

FOLDER = "workers"
MOST = 1000

_held: list[IO[str]] = []  # until this process is gone


def of_worker(given: str, folder: Path, *, numbered: bool) -> str:
    """The whole name, with the host's. `given`: with an @ it is whole already; not `numbered`: somebody chose it."""
    if "@" in given:
        return given
    name = _numbered(given, folder / FOLDER) if numbered else given
    return f"{name}@{socket.gethostname()}"


def _numbered(role: str, folder: Path) -> str:
    try:
        private_files.folder(folder)
        for number in range(1, MOST):
            if (file := _locked(folder / f"{role}-{number}.lock")) is not None:
                _held.append(file)
                return f"{role}-{number}"
    except OSError as error:
        log.info("no number for the name of this worker; it has that of its process", why=str(error))
    return f"{role}-{os.getpid()}"


def _locked(path: Path) -> IO[str] | None:
    file = open(path, "a", encoding="utf-8", opener=private_files.opener)  # noqa: SIM115 - open as long as it is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        file.close()
        raise
    return file
