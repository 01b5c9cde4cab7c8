"""The keeper as the fleet sees it: a process that is told whom to end should the fleet not be able to."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import IO

PROGRAM = Path(__file__).with_name("keeping.py")


class Keeper:
    def __init__(self, lock: IO[str]) -> None:
        self._lock = lock
        self._watched: dict[int, int] = {}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        """One that comes later knows from its start whom it watches: the fleet may be killed a moment after."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), *(f"{pid}:{rank}" for pid, rank in self._watched.items())],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[self._lock.fileno()],
        )

    def watch(self, pid: int, rank: int) -> None:
        """Rank 0 is ended first."""
        self._watched[pid] = rank
        self._say(f"watch {pid} {rank}")

    def release(self, pid: int) -> None:
        if self._watched.pop(pid, None) is not None:
            self._say(f"release {pid}")

    def see_to(self) -> None:
        """A keeper that is gone is replaced: somebody must always be there."""
        if self._process.poll() is None:
            return
        self._hang_up()
        self._process = self._start()

    def close(self) -> None:
        """It ends whatever is still watched, and then itself."""
        self._hang_up()
        self._process.wait()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # see_to tells the next one
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
