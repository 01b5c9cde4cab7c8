"""How a process is named in the rows it holds, and whether another process of this machine still runs."""

from __future__ import annotations

import os
import socket
import uuid
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.system import process_identity

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_SPACE = Path("/proc/self/ns/pid")


def worker_name(pid: int) -> str:
    """No two processes have the same, also where a container gives each of its workers the same number."""
    return process_of(pid).id


@cache
def _version() -> str:
    return version("chordage")


def process_of(pid: int, queues: tuple[str, ...] | None = None) -> Process:
    born = process_identity.start_time_of_child(pid)
    mark = f"{zlib.crc32(born.encode()) % 16**6:06x}"
    name = f"{socket.gethostname()}/{mark}:{pid}"
    return Process(id=name, machine=machine(), pid=pid, born=born, queues=queues, version=_version())


def is_alive(process: Process) -> bool:
    """Of a process of this machine."""
    return process_identity.is_alive(process.pid, process.born)


@cache
def machine() -> str:
    """The same for two processes that can look each other up by number: they share a kernel, a space of process numbers
    and a user, for a kernel may hide the processes of other users.
    """
    try:
        shared = f"{BOOT_ID.read_text().strip()}:{PID_SPACE.readlink()}"
    except OSError:  # no /proc
        shared = f"{uuid.getnode():x}"
    return f"{socket.gethostname()}:{shared}:{os.getuid()}"
