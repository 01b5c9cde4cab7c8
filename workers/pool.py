"""A threads pool that does not hold its process back: by the time it is stopped, what could be waited for is over."""

from __future__ import annotations

from celery.concurrency.thread import TaskPool


class PatientlyStopped(TaskPool):
    """Celery's own waits for every thread when it stops, however long that takes. `Leaving` has done the waiting."""

    def on_stop(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)  # type: ignore[attr-defined]  # the stubs lack it


THREADS = f"{__name__}:{PatientlyStopped.__name__}"
