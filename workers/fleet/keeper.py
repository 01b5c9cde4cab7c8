"""The keeper as the fleet sees it: a process that is told whom to end should the fleet not be able to."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from chordage.workers.fleet import births
from chordage.workers.fleet.launching import Launch

PROGRAM = Path(__file__).with_name("keeping.py")
# Its standard input is the keeper's, to write to. The keeper hears of it before it becomes the program, so that none
# runs of which only the fleet knows; without a keeper it is ended by SIGPIPE.
ANNOUNCED = """echo "watch $$ $0" >&0; exec "$@" </dev/null"""


class Keeper:
    def __init__(self, lock: IO[str]) -> None:
        self._lock = lock
        self._watched: dict[int, str] = {}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        """One that comes later knows from its start whom it watches: the fleet may be killed a moment after."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), *self._watched.values()],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[self._lock.fileno()],
        )

    def launch(self, rank: int) -> Launch:
        """For processes that are watched from their first moment. Rank 0 is ended first."""

        def launched(command: Sequence[str], /, **how: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                ["/bin/sh", "-c", ANNOUNCED, str(rank), *command],
                stdin=self._process.stdin,
                start_new_session=True,
                **how,
            )
            self.watch(process.pid, rank)
            return process

        return launched

    def watch(self, pid: int, rank: int) -> None:
        """A process that the caller has just started."""
        self._watched[pid] = f"watch {pid} {rank} {births.born_now(pid)}"
        self._say(self._watched[pid])

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
