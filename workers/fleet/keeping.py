"""Outlives the fleet by a moment and ends what it left behind.

Run as a process of its own, without anything but Python. It is started with what to watch, and reads from its standard
input what else is to be watched, and what no more. The end of input means that the fleet is gone, also where it was
killed and could not say goodbye. Then the members are stopped in order, the broker last. It shares the fleet's lock, so
nobody starts a second fleet meanwhile.

A process is known by its number and by when it began: the number alone may be another process's by then.

It does not survive being killed together with the fleet and a member that is left alone: then nobody is left to see it.
"""

import contextlib
import importlib
import itertools
import os
import signal
import sys
import time
from typing import Any

BESIDE = "births"  # this module's neighbour; their package is not on the path
sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - as few imports as possible
births: Any = importlib.import_module(BESIDE)

GRACE = 8.0

Watched = dict[int, tuple[int, str]]  # by process number: the rank, and when it began


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: Watched = {}
    for line in itertools.chain(sys.argv[1:], sys.stdin):
        follow(line.split(), watched)
    for rank in sorted({rank for rank, _ in watched.values()}):
        end([(pid, born) for pid, (of, born) in watched.items() if of == rank])


def follow(words: list[str], watched: Watched) -> None:
    match words:
        case ["watch", pid, rank, born]:
            watched[int(pid)] = int(rank), born
        case ["watch", pid, rank]:  # it says so itself, and goes on when it has
            watched[int(pid)] = int(rank), births.born_now(int(pid))
        case ["release", pid]:
            watched.pop(int(pid), None)


def end(leaders: list[tuple[int, str]]) -> None:
    """Each leads a group of its own. The leader is asked; its group is killed when it does not listen."""
    for pid, born in leaders:
        if births.lives(pid, born):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while any(births.lives(pid, born) for pid, born in leaders) and time.monotonic() < until:
        time.sleep(0.05)
    for pid, born in leaders:
        births.kill_group(pid, born)


if __name__ == "__main__":
    main()
