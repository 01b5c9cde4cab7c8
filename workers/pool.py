"""A threads pool that does not hold its process back, and that loses no slot to what a task raises.

Celery's own waits for every thread when it stops, however long that takes; `Leaving` has done the waiting by then. And
where a task raises SystemExit, Celery's raises it again in the thread that should give the slot back: the slot is lost,
and a worker that has lost all of them is alive and does nothing. In a thread no such error is a signal, so here it is a
failure of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool

from chordage.orchestrator.system import user_code


class PatientlyStopped(TaskPool):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_work: set[str] = set()  # ids of the tasks in its threads

    def on_stop(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)  # type: ignore[attr-defined]  # the stubs lack it

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        correlation_id: str = "",
        **more: Any,
    ) -> Any:
        self.at_work.add(correlation_id)
        result: Any = super().on_apply(partial(carried_out, target), args, kwargs, callback, accept_callback, **more)
        result.f.add_done_callback(lambda _: self.at_work.discard(correlation_id))
        return result


def carried_out(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What Celery's tracer says of the task: whether it failed, its result or error, its seconds."""
    try:
        return user_code.call(lambda: target(*args, **kwargs))
    except user_code.ExitAttempted:
        return True, ExceptionInfo(), 0.0


THREADS = f"{__name__}:{PatientlyStopped.__name__}"
