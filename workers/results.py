"""The result backend as a worker needs it: it joins chords and listens to nothing.

Celery subscribes to the result of every task it sends from a process that may wait for results, header tasks that
ignore theirs included, and never unsubscribes. A worker that fans out rounds all day would collect a channel for
each call.
"""

from __future__ import annotations

from typing import Any

from celery.backends.redis import RedisBackend

PATH = f"{__name__}:JoiningBackend"


class JoiningBackend(RedisBackend):
    """Nobody here waits for a result: rows are the results."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Sending a task subscribes to nothing."""

    def add_pending_result(self, result: Any, weak: bool = False, start_drainer: bool = True) -> Any:  # noqa: ARG002
        """Nor does sending a chord, which would listen for each of its headers."""
        return result
