"""Several short calls one after the other in one side thread: to hand each over by itself costs more than it takes.

Who began them waits for all of them, for a limited time. Then no further call begins, and the one that is under way is
waited for as a call that runs alone: to its timeout, until it is cancelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from chordage.orchestrator.core.errors import Aborted, HandedOver
from chordage.orchestrator.gateways.ports import Abort, ToolOutcome
from chordage.orchestrator.gateways.tools.attempt import AttemptEnd, ToolAttempt
from chordage.orchestrator.system.user_code import SideThreads

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class SeriesStep:
    """A call with its attempt, or with an outcome that is known without one."""

    attempt: ToolAttempt | None = None
    timeout: float = 0.0
    read: Callable[[AttemptEnd], ToolOutcome | None] = lambda _end: None
    outcome: ToolOutcome | None = None


class CallSeries:
    """Implements `ports.Series`. Used by the thread that began it."""

    def __init__(self, steps: Sequence[SeriesStep], sides: SideThreads) -> None:
        self._steps = steps
        self._sides = sides
        self._lock = threading.Lock()  # between two calls: whether the next one begins
        self._over = threading.Event()
        self._stopped = False
        self._at: int | None = None  # the call that is carried out
        self._context = copy_context()
        self._side = sides.take()
        self._side.submit(self._work)

    def wait(self, seconds: float) -> list[ToolOutcome | None]:
        self._over.wait(seconds)
        with self._lock:
            self._stopped = True
        for number, step in enumerate(self._steps):
            if step.attempt is not None and number != self._at and (end := step.attempt.end_so_far()) is not None:
                step.outcome = step.read(end)
        if self._at is None:
            self._sides.give_back(self._side)
        return [step.outcome for step in self._steps]

    @property
    def under_way(self) -> int | None:
        return self._at if self._stopped else None

    def finish(self, *, abort: Abort, on_progress: Callable[[str], None]) -> ToolOutcome | None:
        assert self._at is not None
        step = self._steps[self._at]
        assert step.attempt is not None
        end = step.attempt.await_end(
            self._side, self._sides, timeout=step.timeout, abort=abort, on_progress=partial(pass_on, on_progress)
        )
        return step.read(end)

    def _work(self) -> None:
        """Runs in the side thread."""
        for number, step in enumerate(self._steps):
            if step.attempt is None:
                continue
            with self._lock:
                if self._stopped:
                    return
                self._at = number
            self._context.copy().run(step.attempt.work)
            with self._lock:
                if self._stopped:
                    return  # who waits for this call knows its number
                self._at = None
        self._over.set()


def pass_on(on_progress: Callable[[str], None], note: str) -> None:
    """A call must not fail because a progress note could not be sent."""
    try:
        on_progress(note)
    except (Aborted, HandedOver):
        raise
    except Exception:
        _log.warning("a progress note was lost", exc_info=True)
