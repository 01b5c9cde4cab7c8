"""Slots of a worker that are taken though nothing is at work in them.

Celery counts a slot as taken from the moment a message comes in until its task has been answered for. What goes wrong
in between (an error in the code that answers, a process of the pool that is not replaced) costs the slot for as long as
the worker lives, and nothing says so. So what is taken is compared with what the pool carries out. The two differ for a
moment whenever a task comes or goes: a slot counts as lost only when the same difference stays.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class LostSlots:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def seconds(self, pool: Any, taken: Collection[str], now: float) -> float:
        """For how long the longest has been lost. `taken`: the tasks that the worker has not answered for."""
        self._since = {one: self._since.get(one, now) for one in _suspects(pool, taken)}
        return max((now - since for since in self._since.values()), default=0.0)


def _suspects(pool: Any, taken: Collection[str]) -> set[str]:
    if processes(pool) is None and not hasattr(pool, "at_work"):
        return set()  # a pool that we do not know
    busy, missing = _at_work(pool)
    has_room = len(busy) + missing < int(pool.num_processes)
    waiting = set(taken) - busy if has_room else set()  # who waits while all are busy has lost nothing
    return waiting | {f"process {number}" for number in range(missing)}


def _at_work(pool: Any) -> tuple[set[str], int]:
    """The ids of the tasks that the pool carries out, and how many of its processes are not there."""
    there = processes(pool)
    if there is None:
        return set(pool.at_work), 0
    busy = {job.correlation_id for job in list(pool._pool._cache.values())}  # noqa: SLF001 - no public way
    return busy, max(0, int(pool.num_processes) - len(there))


def processes(pool: Any) -> list[Any] | None:
    """Those of a prefork pool, as far as it has not missed them; None: it is a pool of another kind."""
    inner = getattr(pool, "_pool", None)
    found = getattr(inner, "_pool", None)
    return None if found is None else list(found)
