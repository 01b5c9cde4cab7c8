"""The four scheduling classes and the queues that serve them."""

from __future__ import annotations

from enum import StrEnum


class Group(StrEnum):
    CHAT = "chat"
    TASK = "task"
    CHORE = "chore"
    WILL = "will"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return list(Group).index(self)

    @property
    def queue(self) -> str:
        """The queue on which its turns are advanced and its models called."""
        return self.value

    @property
    def tools_queue(self) -> str:
        """The queue on which its tools run: users' code, apart from work that only waits for the network."""
        return f"{self.value}.tools"


SYSTEM_QUEUE = "system"
DELIVERY_QUEUE = "delivery"  # apart from `system`, because a delivery waits for its receiver
DEFAULT_BUDGETS = {Group.CHAT: 64, Group.TASK: 8, Group.CHORE: 2, Group.WILL: 1}

# The order of consumption. `system` first: its work is tiny, and rescue must not starve behind what it rescues.
ALL_QUEUES = (SYSTEM_QUEUE, DELIVERY_QUEUE, *(queue for group in Group for queue in (group.queue, group.tools_queue)))
