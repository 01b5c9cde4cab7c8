"""The four groups, their rank and their queues."""

from __future__ import annotations

from chordage.orchestrator.core.groups import (
    ALL_QUEUES,
    DEFAULT_BUDGETS,
    DELIVERY_QUEUE,
    SYSTEM_QUEUE,
    Group,
)

TURN_QUEUES = tuple(group.queue for group in Group)
TOOL_QUEUES = tuple(group.tools_queue for group in Group)


def test_chat_is_served_first_and_will_last():
    assert [group.value for group in sorted(Group, key=lambda group: group.rank)] == ["chat", "task", "chore", "will"]
    assert [group.rank for group in Group] == [0, 1, 2, 3]


def test_every_group_has_a_queue_and_a_twin_for_its_tools():
    assert [(group.queue, group.tools_queue) for group in Group] == [
        ("chat", "chat.tools"),
        ("task", "task.tools"),
        ("chore", "chore.tools"),
        ("will", "will.tools"),
    ]


def test_queues_are_in_the_order_of_rank():
    assert TURN_QUEUES == ("chat", "task", "chore", "will")
    assert TOOL_QUEUES == ("chat.tools", "task.tools", "chore.tools", "will.tools")


def test_system_is_served_before_every_other_queue():
    assert ALL_QUEUES[0] == SYSTEM_QUEUE
    assert sorted(ALL_QUEUES) == sorted({SYSTEM_QUEUE, DELIVERY_QUEUE, *TURN_QUEUES, *TOOL_QUEUES})
    assert [name for name in ALL_QUEUES if name in TURN_QUEUES] == list(TURN_QUEUES)


def test_every_group_has_a_budget_and_chat_the_largest():
    assert list(DEFAULT_BUDGETS) == list(Group)
    assert list(DEFAULT_BUDGETS.values()) == sorted(DEFAULT_BUDGETS.values(), reverse=True)
    assert min(DEFAULT_BUDGETS.values()) >= 1
