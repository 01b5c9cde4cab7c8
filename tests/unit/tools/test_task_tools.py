"""The tools for an agent's own task: what they pass on, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.ports import TaskText
from chordage.orchestrator.gateways.tools.builtin import task_comment, task_read, task_write
from chordage.orchestrator.gateways.tools.context import Context


class Desk:
    def __init__(self) -> None:
        self.done: list[Any] = []

    def read(self) -> TaskText:
        return TaskText(id="abcd2345", path="tasks/a.md", status="todo", text="Paint.", version="v1")

    def write(self, **given: Any) -> TaskText:
        self.done.append(given)
        return self.read()

    def comment(self, *given: Any) -> TaskText:
        self.done.append(given)
        return self.read()


def test_tools_pass_on_their_arguments():
    desk = Desk()
    ctx = Context(task=desk)

    assert task_read(ctx) == {
        "id": "abcd2345",
        "path": "tasks/a.md",
        "status": "todo",
        "text": "Paint.",
        "version": "v1",
    }
    task_write(ctx, status="done")
    task_comment("half", ctx)
    task_comment("half", ctx)
    assert desk.done[0] == {"body": None, "status": "done", "version": None}
    assert desk.done[1] == desk.done[2], "the same call leaves the same mark"


@pytest.mark.parametrize("call", [task_read, lambda ctx: task_write(ctx, body="x"), lambda ctx: task_comment("x", ctx)])
def test_turn_without_a_task_gets_an_error(call):
    with pytest.raises(NotFound, match="belongs to no task"):
        call(Context())


def test_nothing_to_write_and_a_blank_comment_are_refused():
    with pytest.raises(ValueError, match="give a body"):
        task_write(Context(task=Desk()))
    with pytest.raises(ValueError, match="blank"):
        task_comment(" ", Context(task=Desk()))
