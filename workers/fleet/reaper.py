"""Starts processes that lead a group of their own, and the reaper that ends them if the fleet is killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from chordage.orchestrator.system import process_identity

PROGRAM = Path(__file__).with_name("reaper_program.py")
# The shell's standard input is the reaper's, to write to. It names itself to the reaper before it becomes the program,
# so there is no moment in which only the fleet knows of it; without a reaper it is ended by SIGPIPE.
ANNOUNCED = """echo "watch $$ $0" >&0; exec "$@" </dev/null"""


class Launch(Protocol):
    """Raises OSError when the program cannot be started."""

    def __call__(self, command: Sequence[str], /, **options: Any) -> subprocess.Popen[bytes]: ...


def launch_unwatched(command: Sequence[str], /, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)


class Reaper:
    def __init__(self, lock: IO[str]) -> None:
        self._lock = lock
        self._watched: dict[int, str] = {}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        """Pass the watched processes on the command line: the fleet may be killed a moment later."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), *self._watched.values()],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[self._lock.fileno()],
        )

    def launch(self, rank: int) -> Launch:
        """For processes that are watched from their first moment. Rank 0 is ended first."""

        def launch_watched(command: Sequence[str], /, **options: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                ["/bin/sh", "-c", ANNOUNCED, str(rank), *command],
                stdin=self._process.stdin,
                start_new_session=True,
                **options,
            )
            self.watch(process.pid, rank)
            return process

        return launch_watched

    def watch(self, pid: int, rank: int) -> None:
        """A process that the caller has just started."""
        self._watched[pid] = f"watch {pid} {rank} {process_identity.start_time_of_child(pid)}"
        self._write(self._watched[pid])

    def release(self, pid: int) -> None:
        if self._watched.pop(pid, None) is not None:
            self._write(f"release {pid}")

    def restart_if_dead(self) -> None:
        if self._process.poll() is None:
            return
        self._close_input()
        self._process = self._start()

    def close(self) -> None:
        """The process ends what is still watched, and then itself."""
        self._close_input()
        self._process.wait()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next one starts with all of them
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
