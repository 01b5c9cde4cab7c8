"""One run of a tool's function: in the side thread, for so long and no longer, given up when the call is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.gateways.tools.around import Around, nothing_around
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.failures import TimedOut
from chordage.orchestrator.gateways.tools.side_thread import SideThreads
from chordage.orchestrator.system import user_code

SLICE = 0.5  # seconds: how late a cancellation may be noticed
UNWIND = 1.0  # seconds a cancelled coroutine has for its `finally` before nobody waits for it any more


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How an attempt ended: with a text (None: a reconcile hook knows of nothing), or with what was raised."""

    text: str | None = None
    error: BaseException | None = None


Letters = SimpleQueue[str | Ended]  # progress notes, and last how it ended


class Attempt:
    """The function with its arguments. `letters` is where its context drops the progress notes."""

    def __init__(
        self,
        call: Callable[[], Any],
        context: Context,
        letters: Letters,
        write: Callable[[Any], str | None],
        *,
        around: Around = nothing_around,
    ) -> None:
        self._call = call
        self._write = write
        self._context = context
        self._letters = letters
        self._around = around
        self._cancel: Callable[[], object] | None = None  # set while a coroutine runs

    def run(self, sides: SideThreads, *, timeout: float, abort: Abort, on_progress: Callable[[str], None]) -> Ended:
        """Raises only what comes from outside the tool: Aborted, HandedOver, a time limit of Celery's."""
        abort.check()
        side = sides.take()
        side.give(partial(copy_context().run, self._work))
        try:
            ended = self._attend(time.monotonic() + timeout, abort, on_progress)
        except BaseException:
            self._give_up()
            side.dismiss()
            raise
        if ended:
            sides.give_back(side)
            return ended
        self._give_up()
        side.dismiss()
        return Ended(error=TimedOut())

    def _attend(self, deadline: float, abort: Abort, on_progress: Callable[[str], None]) -> Ended | None:
        """Wait, and pass progress on from here: the engine's connections belong to this thread."""
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                note, ended = self._read(min(left, SLICE))
                if note:
                    on_progress(note)
                if ended:
                    return ended
            abort.check()
        return None

    def _read(self, wait: float) -> tuple[str, Ended | None]:
        """The newest note, or the end, or both. A tool that reports in a tight loop must not hold us up."""
        note, letter = "", self._letters.get(timeout=wait)
        while isinstance(letter, str):
            note = letter
            try:
                letter = self._letters.get_nowait()
            except Empty:
                return note, None
        return note, letter

    def _give_up(self) -> None:
        """Tell the tool. A function has to look at `ctx.cancelled`; a coroutine is cancelled and may clean up."""
        self._context.cancel()
        if self._cancel is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has just ended by itself
                self._cancel()
            self._unwind(time.monotonic() + UNWIND)

    def _unwind(self, deadline: float) -> None:
        with contextlib.suppress(Empty):
            while not isinstance(self._letters.get(timeout=max(0.0, deadline - time.monotonic())), Ended):
                pass  # a note that was written before it was told

    def _work(self) -> None:
        """What runs in the side thread. The text is made here too: a result may be slow to write down."""
        try:
            with user_code.fresh_django_connections(), self._around(self._context):
                text = self._write(self._settled(self._call()))
            self._letters.put(Ended(text=text))
        except BaseException as error:  # also SystemExit: a signal is heard in the main thread, so it is the tool's
            self._letters.put(Ended(error=error))

    def _settled(self, result: Any) -> Any:
        return asyncio.run(self._awaited(result)) if inspect.isawaitable(result) else result

    async def _awaited(self, result: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self._context.cancelled:  # given up before there was anything to cancel
            task.cancel()
        return await result
