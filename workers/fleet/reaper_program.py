"""Outlives the fleet by a moment and ends the processes it left behind.

`reaper.py` starts it as a process of its own, with Python's standard library alone. Its arguments and the lines of its
standard input name the processes to watch and to release. The end of input means that the fleet has ended, also where
it was killed. Then the watched processes are stopped in the order of their ranks, the broker last. The reaper shares
the fleet's lock, so no second fleet starts meanwhile.

A process is identified by its number and its start time, because the system reuses numbers.

It cannot clean up when it is killed together with the fleet.
"""

import contextlib
import importlib
import itertools
import os
import signal
import sys
import time
from typing import Any

NEEDED = "process_identity"  # a module that needs nothing else; the package is not on the path
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), *["..", "..", "orchestrator", "system"])  # noqa: PTH100, PTH118, PTH120 - as few imports as possible
sys.path.append(FOLDER)
process_identity: Any = importlib.import_module(NEEDED)

GRACE = 8.0

Watched = dict[int, tuple[int, str]]  # rank and start time, by process number


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: Watched = {}
    for line in itertools.chain(sys.argv[1:], sys.stdin):
        follow(line.split(), watched)
    for rank in sorted({rank for rank, _ in watched.values()}):
        end([(pid, born) for pid, (its_rank, born) in watched.items() if its_rank == rank])


def follow(words: list[str], watched: Watched) -> None:
    match words:
        case ["watch", pid, rank, born]:
            watched[int(pid)] = int(rank), born
        case ["watch", pid, rank]:  # written by the process itself, before it runs its program
            watched[int(pid)] = int(rank), process_identity.start_time_of_child(int(pid))
        case ["release", pid]:
            watched.pop(int(pid), None)


def end(leaders: list[tuple[int, str]]) -> None:
    """Each leads a process group. SIGTERM goes to the leader; after the grace, SIGKILL to what is left of the group."""
    for pid, born in leaders:
        if process_identity.is_alive(pid, born):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    process_identity.wait_until(lambda: not any(process_identity.is_alive(*leader) for leader in leaders), until)
    for pid, born in leaders:
        process_identity.kill_group(pid, born)


if __name__ == "__main__":
    main()
