"""Processes that tests start: each leads a group of its own, and none outlives the test run, however that ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from support import warm
from support.waiting import PATIENCE

GUARD = Path(__file__).with_name("guard.py")
Process = subprocess.Popen[bytes] | warm.WarmProcess


class Guard:
    """The process that cleans up after us. It learns of our end by the end of its input."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def watch(self, pid: int) -> None:
        self._say("watch", pid)

    def release(self, pid: int) -> None:
        self._say("release", pid)

    def folder(self, path: Path) -> None:
        self._say("folder", path)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _say(self, verb: str, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {what}\n")
        self._process.stdin.flush()


@functools.cache
def guard() -> Guard:
    """The guard of this process; the first call starts it."""
    one = Guard()
    atexit.register(one.close)
    return one


def scratch_folder(prefix: str) -> Path:
    """A folder with a short path outside pytest's, deleted after the run."""
    folder = Path(tempfile.mkdtemp(prefix=f"chordage-{prefix}-"))
    guard().folder(folder)
    return folder


def spawn(argv: Sequence[str | Path], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to the end of `log`."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
    guard().watch(process.pid)
    return process


def spawn_warm(arguments: Sequence[str | Path], log: Path, **places: Any) -> warm.WarmProcess:
    """`python ARGUMENTS`, with `env` and `cwd`, where nothing depends on what it has imported before."""
    process = warm.nursery().start([str(word) for word in arguments], log, **places)
    guard().watch(process.pid)
    return process


def stop(process: Process, number: int = signal.SIGTERM, patience: float = PATIENCE) -> int:
    """Send the signal, wait, kill the tree when that takes too long. Returns the exit code."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            kill_tree(process)
    guard().release(process.pid)
    return process.wait()


def descendants(pid: int) -> list[psutil.Process]:
    """None, where the process has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_tree(process: Process) -> None:
    """SIGKILL to the process, its group and all that it started, at once, as when a machine is lost."""
    if process.poll() is None:
        children = descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()  # it may lead a group of its own
    process.wait()
    guard().release(process.pid)
