"""The text of replies while they are written, for the pages of runs that are open in a browser.

One reader for each run follows its events, however many pages show it. A delta counts if it begins where the text ends;
a snapshot sets the text. What a worker that died had written of a reply is kept apart and shown as struck out. The text
of a reply on record comes from the database: nothing here is needed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import anyio.to_thread
import structlog

from chordage.orchestrator.api.services import EventStreams
from chordage.orchestrator.core import errors
from chordage.orchestrator.core.run_events import RunEvent

log = structlog.get_logger()

MarksOf = Callable[[Collection[str]], Mapping[str, Hashable]]

DROPPED_MAX = 3  # attempts of a step that are shown
MARKED_EVERY = 1.0  # seconds
GATHERED = 0.15  # seconds: what comes meanwhile is shown together
OVER = frozenset({"model.replied", "plan.made", "run.held"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveText:
    """Of one step. `dropped`: of attempts whose worker died, the oldest first."""

    attempt: int = 0
    text: str = ""
    reasoning: str = ""
    dropped: tuple[str, ...] = ()
    is_over: bool = False  # the reply is on record

    def taking(self, event: RunEvent) -> LiveText:
        data = event.data
        if event.kind in OVER:
            return replace(self, text="", reasoning="", is_over=True)
        if self.is_over:
            return self
        current = self
        attempt = int(data.get("attempt") or 0)
        if event.kind == "live.reset" or attempt != self.attempt:
            lost = self.text or self.reasoning
            dropped = (*self.dropped, lost)[-DROPPED_MAX:] if lost else self.dropped
            current = replace(self, attempt=attempt, text="", reasoning="", dropped=dropped)
        match event.kind:
            case "live.snapshot":
                text, reasoning = (str(data.get(name) or "") for name in ("text", "reasoning"))
                return replace(current, text=text, reasoning=reasoning)
            case "live.reasoning" if data.get("offset") == len(current.reasoning):
                return replace(current, reasoning=current.reasoning + str(data.get("text") or ""))
            case "live.delta" if data.get("offset") in {None, len(current.text)}:
                return replace(current, text=current.text + str(data.get("text") or ""))
        return current


class RunWatch:
    """What is known of one run besides its rows. `version` grows with each event."""

    def __init__(self) -> None:
        self.texts: dict[int, LiveText] = {}
        self.version = 0
        self._changed = asyncio.Event()

    def take(self, event: RunEvent) -> None:
        if event.step is not None and (event.kind.startswith("live.") or event.kind in OVER):
            before = self.texts.get(event.step, LiveText())
            self.texts[event.step] = before.taking(event)
        self.wake()

    def wake(self) -> None:
        """Something has changed: the pages of the run look at its rows."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Until something has happened since the version `seen`, or for so many seconds."""
        if self.version == seen:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        if self.version != seen:
            await asyncio.sleep(min(GATHERED, seconds))


class RunWatches:
    """Of one event loop: one watch for each run that a page shows. `marks`: what the rows of some runs say now. They
    are asked for once a second, of all runs together.
    """

    def __init__(self, marks: MarksOf | None = None) -> None:
        self._read_marks = marks
        self._marks: Mapping[str, Hashable] = {}
        self._marking: asyncio.Task[None] | None = None
        self._watches: dict[str, tuple[RunWatch, asyncio.Task[None]]] = {}
        self._readers: dict[str, int] = {}
        self.is_marking = False
        self._quiet = RunWatch()  # one for all: pages with the same watch share their renderings

    @asynccontextmanager
    async def of(self, events: EventStreams | None, run_id: str | None) -> AsyncIterator[RunWatch]:
        """Without streams the watch gets no events, and its pages are read again once a second."""
        if events is None or run_id is None:
            yield self._quiet
            return
        if run_id not in self._watches:
            fresh = RunWatch()
            self._watches[run_id] = fresh, asyncio.create_task(_follow(events, run_id, fresh))
        watch, task = self._watches[run_id]
        self._readers[run_id] = self._readers.get(run_id, 0) + 1
        if self._marking is None and self._read_marks is not None:
            self._marking = asyncio.create_task(self._mark(self._read_marks))
        try:
            yield watch
        finally:
            self._readers[run_id] -= 1
            if not self._readers[run_id]:
                del self._readers[run_id]
                self._watches.pop(run_id, None)
                task.cancel()
            if not self._watches and self._marking is not None:
                self._marking.cancel()
                self._marking, self.is_marking = None, False

    async def _mark(self, read: MarksOf) -> None:
        while True:
            try:
                marks = await anyio.to_thread.run_sync(read, list(self._watches))
            except errors.UserError as error:
                self.is_marking = False  # each page looks for itself again
                log.info("the rows of runs cannot be read", error=str(error))
            else:
                for run_id, mark in marks.items():
                    # The first mark too: something may have changed since its page was made.
                    if run_id in self._watches and self._marks.get(run_id) != mark:
                        self._watches[run_id][0].wake()
                self._marks, self.is_marking = marks, True
            await asyncio.sleep(MARKED_EVERY)


async def _follow(events: EventStreams, run_id: str, watch: RunWatch) -> None:
    try:
        async with aclosing(events.run_events(run_id)) as run_events:
            async for event in run_events:
                watch.take(event)
    except (errors.UserError, events.too_slow) as error:
        log.info("a run is not followed any more", run=run_id, error=str(error))
