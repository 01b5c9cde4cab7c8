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
        """Where its turns are advanced and its models called."""
        return self.value

    @property
    def tools_queue(self) -> str:
        """Where its tools run: users' code, kept apart from the work that only waits on the network."""
        return f"{self.value}.tools"


SYSTEM_QUEUE = "system"
DELIVERY_QUEUE = "delivery"  # apart from `system`, because whoever delivers waits for receivers
DEFAULT_BUDGETS = {Group.CHAT: 64, Group.TASK: 8, Group.CHORE: 2, Group.WILL: 1}

# The order of consumption. `system` first: its work is tiny, and rescue must not starve behind what it rescues.
TURN_QUEUES = tuple(group.queue for group in Group)
TOOL_QUEUES = tuple(group.tools_queue for group in Group)
ALL_QUEUES = (SYSTEM_QUEUE, DELIVERY_QUEUE, *(queue for group in Group for queue in (group.queue, group.tools_queue)))
