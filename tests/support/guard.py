"""Outlives the test run by a moment and removes what it left behind.

Run as a process of its own. It reads what to watch from its standard input; the end of input means that the test run is
over, also where that was killed and could not say goodbye. What is still watched then is ended and deleted.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE = 3.0


def main() -> None:
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        verb, _, what = line.rstrip("\n").partition(" ")
        match verb:
            case "watch":
                groups.add(int(what))
            case "release":
                groups.discard(int(what))
            case "folder":
                folders.append(what)
    end(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end(groups: set[int]) -> None:
    tell(groups, signal.SIGCONT)
    tell(groups, signal.SIGQUIT)  # PostgreSQL's order to stop at once and to give back shared memory
    until = time.monotonic() + GRACE
    while any(map(alive, groups)) and time.monotonic() < until:
        time.sleep(0.05)
    tell(groups, signal.SIGKILL)


def tell(groups: set[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
