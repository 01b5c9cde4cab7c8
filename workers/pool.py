"""The pools of a worker: our pool of threads, and how to look into Celery's pool of processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool

from chordage.orchestrator.system import user_code


class ThreadPool(TaskPool):
    """A threads pool that does not delay the end of its process, and loses no slot to what a task raises.

    Celery's own waits for every thread when it stops, however long that takes; `GracefulShutdown` has waited by then.
    And where a task raises SystemExit, Celery's raises it again in the thread that should free the slot: the slot is
    lost, and a worker that has lost all of them is alive and does nothing. In a thread no such error is a signal, so
    here it is a failure of the task.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.running_ids: set[str] = set()  # ids of the tasks in its threads

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
        self.running_ids.add(correlation_id)
        result: Any = super().on_apply(partial(_trace, target), args, kwargs, callback, accept_callback, **more)
        result.f.add_done_callback(lambda _: self.running_ids.discard(correlation_id))
        return result


def _trace(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As Celery's tracer returns it: whether the task failed, its result or error, its seconds."""
    try:
        return user_code.call(lambda: target(*args, **kwargs))
    except user_code.ExitAttempted:
        return True, ExceptionInfo(), 0.0


THREADS = f"{__name__}:{ThreadPool.__name__}"


def processes(pool: Any) -> list[Any] | None:
    """The live processes of a prefork pool, as far as it knows; None for a pool of another kind."""
    inner = getattr(pool, "_pool", None)
    children = getattr(inner, "_pool", None)
    return None if children is None else list(children)


def running_tasks(pool: Any) -> set[str] | None:
    """The ids of the tasks that the pool executes; None for a pool of another kind."""
    if processes(pool) is not None:
        return {job.correlation_id for job in list(pool._pool._cache.values())}  # noqa: SLF001 - no public way
    running = getattr(pool, "running_ids", None)
    return None if running is None else set(running)
