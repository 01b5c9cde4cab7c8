"""Outlives the fleet by a moment and ends what it left behind.

Run as a process of its own, without anything but Python. It is started with what to watch, and reads from its standard
input what else is to be watched, and what no more. The end of input means that the fleet is gone, also where it was
killed and could not say goodbye. Then the members are stopped in order, the broker last. It shares the fleet's lock, so
nobody starts a second fleet meanwhile.

It does not survive being killed together with the fleet and a member that is left alone: then nobody is left to see it.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

GRACE = 8.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = {int(pid): int(rank) for pid, _, rank in (word.partition(":") for word in sys.argv[1:])}
    for line in sys.stdin:
        match line.split():
            case ["watch", pid, rank]:
                watched[int(pid)] = int(rank)
            case ["release", pid]:
                watched.pop(int(pid), None)
    for rank in sorted(set(watched.values())):
        end([pid for pid in watched if watched[pid] == rank])


def end(leaders: list[int]) -> None:
    """Each leads a group of its own. The leader is asked; its group is killed when it does not listen."""
    for pid in leaders:
        tell(os.kill, pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while any(map(is_there, leaders)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in leaders:
        tell(os.killpg, pid, signal.SIGKILL)


def tell(how: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        how(pid, number)


def is_there(pid: int) -> bool:
    """A zombie is as good as gone: where nobody buries orphans it would be waited for in vain."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - as few imports as possible
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except OSError:  # no /proc here, or no right to look: it is there
        return True


if __name__ == "__main__":
    main()
