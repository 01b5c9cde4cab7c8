"""One attempt to run a tool's function: in a thread beside the worker's, for a limited time, until it is cancelled.

A tool runs apart from the thread that waits for it, so that the wait can end at the timeout or when the call is
cancelled: in a prefork child as well as in a threads pool, without signals. The side thread is kept for the next call
(starting one costs more than all else the executor does) and is abandoned when its tool does not return. Python cannot
end a thread: such a tool runs until it ends, or until Celery's hard time limit ends the prefork child.

A team may wrap each attempt in a context manager of its own (setting `around_tools`): it is entered in the side thread
and left after the attempt, with the exception if there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from typing import Any

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.outcomes import ToolTimeout
from chordage.orchestrator.system import user_code
from chordage.orchestrator.system.user_code import SideThread, SideThreads

CHECK_EVERY = 0.5  # seconds: how late a cancellation may be noticed
CLEAN_UP_SECONDS = 1.0  # that a cancelled coroutine has for its `finally` before it is abandoned

Around = Callable[[Context], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """How an attempt ended: with a text (None: a reconcile hook knows of no result), or with an error."""

    text: str | None = None
    error: BaseException | None = None
    seconds: float | None = None  # that it took


Reports = SimpleQueue[str | AttemptEnd]  # progress notes, and last the end


class ToolAttempt:
    """The function with its arguments. `reports` is where its context puts the progress notes."""

    def __init__(
        self,
        call: Callable[[], Any],
        context: Context,
        reports: Reports,
        write: Callable[[Any], str | None],
        *,
        around: Around,
    ) -> None:
        self._call = call
        self._write = write
        self._context = context
        self._reports = reports
        self._around = around
        self._cancel: Callable[[], object] | None = None  # set while a coroutine runs

    def run(
        self, sides: SideThreads, *, timeout: float, abort: Abort, on_progress: Callable[[str], None]
    ) -> AttemptEnd:
        """Raises only what comes from outside the tool: Aborted, HandedOver, a time limit of Celery's."""
        abort.check()
        side = sides.take()
        side.submit(partial(copy_context().run, self.work))
        return self.await_end(side, sides, timeout=timeout, abort=abort, on_progress=on_progress)

    def await_end(
        self,
        side: SideThread,
        sides: SideThreads,
        *,
        timeout: float,
        abort: Abort,
        on_progress: Callable[[str], None],
    ) -> AttemptEnd:
        """`side` works on it. What it raises is as for `run`."""
        try:
            end = self._wait(time.monotonic() + timeout, abort, on_progress)
        except BaseException:
            self._give_up()
            side.dismiss()
            raise
        if end:
            sides.give_back(side)
            return end
        self._give_up()
        side.dismiss()
        return AttemptEnd(error=ToolTimeout())

    def _wait(self, deadline: float, abort: Abort, on_progress: Callable[[str], None]) -> AttemptEnd | None:
        """Progress is passed on from this thread: the engine's connections belong to it."""
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                note, end = self._newest(min(left, CHECK_EVERY))
                if note:
                    on_progress(note)
                if end:
                    return end
            abort.check()
        return None

    def _newest(self, wait: float) -> tuple[str, AttemptEnd | None]:
        """The newest note, or the end, or both. A tool that reports in a tight loop must not delay its end."""
        note, report = "", self._reports.get(timeout=wait)
        while isinstance(report, str):
            note = report
            try:
                report = self._reports.get_nowait()
            except Empty:
                return note, None
        return note, report

    def _give_up(self) -> None:
        """A function has to look at `ctx.cancelled`; a coroutine is cancelled and may clean up."""
        self._context.cancel()
        if self._cancel is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has just ended by itself
                self._cancel()
            deadline = time.monotonic() + CLEAN_UP_SECONDS
            with contextlib.suppress(Empty):
                while not isinstance(self._reports.get(timeout=max(0.0, deadline - time.monotonic())), AttemptEnd):
                    pass  # a note that was written before the cancellation

    def end_so_far(self) -> AttemptEnd | None:
        """None: it has not ended."""
        with contextlib.suppress(Empty):
            while not isinstance(report := self._reports.get_nowait(), AttemptEnd):
                pass  # a note of a call that is over
            return report
        return None

    def work(self) -> None:
        """Runs in the side thread. The text is made here too: a result may be slow to write down."""
        began = time.perf_counter()
        try:
            with user_code.fresh_django_connections(), self._around(self._context):
                result = self._call()
                text = self._write(asyncio.run(self._awaited(result)) if inspect.isawaitable(result) else result)
            self._reports.put(AttemptEnd(text=text, seconds=time.perf_counter() - began))
        except BaseException as error:  # also SystemExit: signals reach the main thread only, so it is the tool's
            self._reports.put(AttemptEnd(error=error, seconds=time.perf_counter() - began))

    async def _awaited(self, result: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self._context.cancelled:  # given up before there was anything to cancel
            task.cancel()
        return await result


def nothing_around(_context: Context) -> AbstractContextManager[Any]:
    return nullcontext()


class NamedAround:
    """The team's function `module:function`, imported when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _function(self) -> Callable[[Context], Any]:
        try:
            return user_code.load_function(self._name, what="around_tools")
        except user_code.NotLoaded as error:
            raise RoomError(f"setting around_tools ({self._name}): {error}") from error

    def check(self) -> None:
        """Raises RoomError where it cannot be imported."""
        _ = self._function

    @contextmanager
    def __call__(self, context: Context) -> Iterator[None]:
        manager = self._function(context)
        if not isinstance(manager, AbstractContextManager):
            raise TypeError(
                f"around_tools ({self._name}) must return a context manager, not {type(manager).__name__}: "
                "put @contextlib.contextmanager above a function that yields"
            )
        raised: BaseException | None = None
        with manager:
            try:
                yield
            except BaseException as error:
                raised = error
                raise
        if raised is not None:
            raise raised  # a tool's exception may be a question or an order to stop: a wrapper must not swallow it
