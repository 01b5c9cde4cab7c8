"""`chordage poll`, life after life, each killed by itself at a chosen commit of its looks. A test's program.

Everything is imported once; each life is a fork that knows nothing of those before it. `ORDERS` is a list of "n before"
and "n after", commits being counted within a life. Behind the last of them a life continues until it is ended.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chordage.config import log
from chordage.config.settings import load
from chordage.orchestrator.store.database import Store
from chordage.workers import poll

ORDERS = "POLL_ORDERS"  # the variable that has them, with commas
LIFE = 8.0  # seconds; one in which nothing is committed any more is killed all the same


def main() -> None:
    settings = load()
    log.configure("INFO", "text")
    for order in filter(None, os.environ[ORDERS].split(",")):
        print(f"life that ends at {order}:", _lived(settings, order), flush=True)
    poll.run(settings)


def _lived(settings: Any, order: str) -> str:
    at, when = order.split()
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, LIFE)  # SIGALRM kills a process that does not handle it
        _watch(int(at), when)
        poll.run(settings)
    _, status = os.waitpid(pid, 0)
    return {signal.SIGKILL: "killed there", signal.SIGALRM: "killed late"}.get(os.WTERMSIG(status), "?")


def _watch(at: int, when: str) -> None:
    """Commits in the threads that look; those of the leases' keeper come at any time."""
    numbers = itertools.count(1)
    plain_write, plain_single = Store.write, Store.single

    def counted(moment: str) -> None:
        looks = threading.current_thread().name.startswith("poll ") and "leases" not in threading.current_thread().name
        if looks and moment == when and next(numbers) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def write(self: Store) -> Iterator[Any]:
        with plain_write(self) as tx:
            yield tx
            counted("before")
        counted("after")

    @contextmanager
    def single(self: Store) -> Iterator[Any]:
        counted("before")
        with plain_single(self) as tx:
            yield tx
        counted("after")

    Store.write, Store.single = write, single  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
    sys.exit(0)
