"""`chordage worker`, except that it can be made to kill itself at one chosen commit. A test's program, run by the rig.

The order lies in a file that all workers of a rig share, and so do the commits that were counted: the chosen one is met
once, in any process. Heartbeats and sweeps are not counted: they come at any time.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chordage.orchestrator.store.database import Store

ORDER = "RIG_ORDER"  # the variable that names the file
PLACES = {"tools.call": "header", "rounds.commit": "body"}  # a task's name, when its message is about to be sent
AT_WORK = ("ThreadPoolExecutor", "MainThread")  # the threads in which Celery tasks run


def give_order(path: Path, *, at: int, when: str, who: str) -> None:
    """A process dies "before" or "after" the commit number `at` from now: the whole "worker", or the "child" alone.

    Written over the order before: a process that still counts its commits never finds an empty file.
    """
    path.touch()
    with path.open("r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(_line(0, at, when, who).encode())


def is_carried_out(path: Path) -> bool:
    seen, at, _, _ = path.read_text().split()
    return int(seen) >= int(at)


def _line(seen: int, at: int, when: str, who: str) -> str:
    """Of one length, so that it is written over in one go: its writer may be killed by the order it is about."""
    return f"{seen:8} {at:8} {when:8} {who:8}"


def main() -> None:
    file = Path(os.environ[ORDER])
    _watch_commits(file)
    _watch_chords(file)

    from chordage.workers.cli import main as chordage

    chordage(prog_name="chordage")


def _watch_commits(file: Path) -> None:
    """A transaction commits when its block ends, a single statement when it is sent."""
    plain_single = Store.single

    def counting(opened: Any) -> Any:
        @contextmanager
        def counted(self: Store) -> Iterator[Any]:
            with opened(self) as tx:
                yield tx
                _count(file, "before")
            _count(file, "after")

        return counted

    @contextmanager
    def single(self: Store) -> Iterator[Any]:
        _count(file, "before")
        with plain_single(self) as tx:
            yield tx
        _count(file, "after")

    Store.write, Store.single = counting(Store.write), single


def _watch_chords(file: Path) -> None:
    """Where a chord is between two of its steps; `PLACES` in tests/live/faults/test_chord_deaths.py names them."""
    from chordage.orchestrator.stages import tool_call
    from chordage.tasks import prebuilt
    from chordage.workers.chord_backend import JoiningBackend

    plain_part, plain_push, plain_settle = JoiningBackend.on_chord_part_return, prebuilt._push, tool_call._settle

    def part(self: Any, *args: Any, **more: Any) -> Any:
        _count(file, "part")
        return plain_part(self, *args, **more)

    def push(channel: Any, texts: Any) -> None:
        """One by one, as they are sent where others take part: a round may then be sent in part."""
        for queue, text in texts:
            kind = PLACES.get(json.loads(text)["headers"]["task"])
            if kind is not None:
                _count(file, kind)
            plain_push(channel, [(queue, text)])

    def settle(*args: Any) -> None:
        plain_settle(*args)
        _count(file, "tool")

    JoiningBackend.on_chord_part_return, prebuilt._push, tool_call._settle = part, push, settle


def _count(path: Path, when: str) -> None:
    if not threading.current_thread().name.startswith(AT_WORK):
        return
    with path.open("r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        seen, at, of, who = file.read().decode().split()
        if of != when:
            return
        mine = int(seen) + 1
        file.seek(0)
        file.write(_line(mine, int(at), of, who).encode())
    if mine == int(at):
        _die(who)


def _die(who: str) -> None:
    if who == "child":
        os.kill(os.getpid(), signal.SIGKILL)
    os.killpg(os.getpgid(0), signal.SIGKILL)  # the rig starts every worker as the leader of a group


if __name__ == "__main__":
    main()
