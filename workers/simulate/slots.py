"""The slots of a fleet and the queues before them: served in strict order of the groups, as workers serve theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from chordage.orchestrator.core.groups import Group

J = TypeVar("J")


class Slots(Generic[J]):
    """`reserve` of them take work of chat alone; those are used last."""

    def __init__(self, size: int, *, reserve: int = 0) -> None:
        self.size = size
        self.free = size
        self._reserve = reserve
        self._queues: dict[Group, deque[J]] = {group: deque() for group in Group}
        self.longest = dict.fromkeys(Group, 0)

    def put(self, group: Group, job: J) -> None:
        queue = self._queues[group]
        queue.append(job)
        self.longest[group] = max(self.longest[group], len(queue))

    def give_back(self) -> None:
        self.free += 1

    def take(self) -> Iterator[J]:
        """Whatever may begin now, each with a slot of its own."""
        for group, queue in self._queues.items():
            keep = 0 if group is Group.CHAT else self._reserve
            while queue and self.free > keep:
                self.free -= 1
                yield queue.popleft()
