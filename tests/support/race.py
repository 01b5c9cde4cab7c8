"""Several connections at one barrier: who wins is the database's business, that one wins is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from chordage.orchestrator.store.database import Store, Tx
from support.waiting import PATIENCE

T = TypeVar("T")


def race(store: Store, racers: Sequence[Callable[[Tx], T]], *, single: bool = False) -> list[T | BaseException]:
    """Each racer in a transaction (or for a `single` statement a connection) of its own, all let go together."""
    barrier = threading.Barrier(len(racers))

    def run(racer: Callable[[Tx], T]) -> T | BaseException:
        barrier.wait(PATIENCE)
        try:
            with store.single() if single else store.write() as tx:
                return racer(tx)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(racers)) as pool:
        return list(pool.map(run, racers))
