"""A topic: a run, a thread or the fleet that has followers, read once for all of its followers.

It reads its facts from the database whenever something says that there are new ones: an entry on the bus, a note of a
worker, or some time that has passed. Redis alone brings notes, which are shown between facts. While Redis is away there
are none, the bus does not move, and the database is looked at now and then.

Order. A worker sends notes before its facts are on the bus. So notes about a step that is not known yet wait until
every fact is shown that was on record when they came; the copying to the bus is started for that.

Slow followers. Each has a queue of its own, with bounds. One whose queue is full is given up; the others do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from chordage.orchestrator import views
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.faces.fold import StreamedReply, with_note
from chordage.orchestrator.gateways.run_stream import StreamNote
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.run_events import EventPage, Position, RunStanding

log = structlog.get_logger()

QUEUED_EVENTS = 256
QUEUED_BYTES = 1024 * 1024
LOOK_EVERY = 15.0  # seconds between two looks at the database, where Redis says when to look
LOOK_WITHOUT_REDIS = 2.0
LOOK_AT_FIRST = 0.2
NOT_HEARD_YET = 2.0  # seconds in which workers may not know yet that the run is followed
LOOK_AT_CHILDREN = 1.0  # at a run that waits for sub-agents: their questions are its own
LOOK_BEHIND = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # where facts are on record and not on the bus yet
MOST_HELD = 2_000  # notes that wait for their facts
MOST_PAGES = 5  # of facts at one look
_TEXT = frozenset({"live.delta", "live.reasoning", "live.reset"})
_OF_CALLS = frozenset({"tool.started", "tool.progress"})
_SHOWN_AS = {"model.delta": "live.delta", "model.reasoning": "live.reasoning", "model.reset": "live.reset"}

T = TypeVar("T")
ReadPage = Callable[[Position, int], EventPage]  # of the facts behind a position, up to a row


class TooSlow(ChordageError):
    """The follower did not take its events in time, and has lost some."""


class TopicHub(Protocol):
    """What a topic needs of the process it is in."""

    store: Store
    has_redis: bool

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T: ...
    async def copy(self) -> None:
        """Copy the journal to the bus now, or try to."""
        ...

    async def route(self, run_id: str, topic: Topic) -> None:
        """From now on the topic gets the notes of this run."""
        ...

    def unroute(self, run_id: str, topic: Topic) -> None: ...


class SharedWork:
    """Work that is done once for all who ask for it before it begins."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._next: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    def done(self) -> Awaitable[None]:
        """Once it was done from its beginning to its end. Raises what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._do())
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return asyncio.shield(self._next)

    async def _do(self) -> None:
        async with self._one_at_a_time:
            self._next = None
            await self._work()


class Followed:
    """The queue of one follower."""

    def __init__(self) -> None:
        self._events: deque[tuple[RunEvent, int]] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None

    def put(self, event: RunEvent, size: int) -> None:
        if self._failure is not None:
            return
        if len(self._events) >= QUEUED_EVENTS or (self._events and self._bytes + size > QUEUED_BYTES):
            self.end(TooSlow())
            return
        self._events.append((event, size))
        self._bytes += size
        self._arrived.set()

    def clear(self) -> None:
        self._events.clear()
        self._bytes = 0

    def end(self, failure: Exception) -> None:
        self.clear()
        self._failure = failure
        self._arrived.set()

    async def next(self) -> RunEvent:
        """Raises TooSlow, and Unavailable where the server stops."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        event, size = self._events.popleft()
        self._bytes -= size
        return event


@dataclass(frozen=True, kw_only=True, slots=True)
class _News:
    """What one look at the database has brought."""

    run_id: str | None
    standing: RunStanding | None
    pages: list[EventPage]
    upto: int
    results: list[RunEvent]

    @property
    def is_behind(self) -> bool:
        return self.standing is not None and self.standing.top > self.upto


class Topic:
    """Its task looks for news until it has no followers. `read`: a page of its facts."""

    def __init__(self, hub: TopicHub, read: ReadPage, *, run_id: str | None, thread_id: str | None) -> None:
        """`thread_id`: of a topic that gets the notes of each run on this thread."""
        self._hub = hub
        self._read = read
        self.thread_id = thread_id
        self._first_run = run_id
        self.run_id: str | None = None  # whose notes it gets
        self.followers: set[Followed] = set()
        self.position = 0  # every fact up to this row was shown
        self.is_over = False  # the run has ended, and all of it was shown
        self._streamed: StreamedReply | None = None
        self._waiting: RunEvent | None = None  # that the turn waits for people
        self._results: dict[str, RunEvent] = {}  # of calls whose round is not over
        self._calls: set[str] = set()  # that were asked for
        self._replied = 0  # the step of the last reply that was shown
        self._ready_step = 0  # notes up to this step are shown at once
        self._held: list[RunEvent] = []
        self._expected = 0
        self._looks_behind = 0
        self._waits_for_children = False
        self._wake = asyncio.Event()
        self._refresh = SharedWork(self._look)
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Raises Unavailable."""
        self._heard_at = asyncio.get_running_loop().time() + NOT_HEARD_YET
        self.position = await self._hub.in_thread(views.settled_position, self._hub.store)
        await self._turn_to(self._first_run)
        self._task = asyncio.create_task(self._look_for_ever())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self.run_id is not None:
            self._hub.unroute(self.run_id, self)

    def look(self, row: int = 0) -> None:
        """Soon. `row`: there is news up to it; the bus gets an entry before its position is moved."""
        self._expected = max(row, self._expected)
        self._wake.set()

    def refresh(self) -> Awaitable[None]:
        """All is shown that is on the bus by now. Raises Unavailable."""
        return self._refresh.done()

    def shown_now(self) -> list[RunEvent]:
        """What a follower has to know besides the facts."""
        text = [] if self._streamed is None else [_snapshot(self._streamed)]
        return [*self._results.values(), *text, *([self._waiting] if self._waiting is not None else [])]

    async def _look_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause())
            self._wake.clear()
            try:
                await self.refresh()
            except Exception as error:
                log.warning("a stream could not be read", error=repr(error), again_in=LOOK_WITHOUT_REDIS)
                await asyncio.sleep(LOOK_WITHOUT_REDIS)

    def _pause(self) -> float:
        if not self._hub.has_redis:
            return LOOK_WITHOUT_REDIS
        if self._looks_behind:
            return LOOK_BEHIND[min(self._looks_behind, len(LOOK_BEHIND)) - 1]
        if not self.is_over and asyncio.get_running_loop().time() < self._heard_at:
            return LOOK_AT_FIRST
        return LOOK_AT_CHILDREN if self._waits_for_children else LOOK_EVERY

    async def _look(self) -> None:
        held, self._held = self._held, []
        news = await self._hub.in_thread(self._news)
        if news.is_behind:
            await self._hub.copy()
            news = await self._hub.in_thread(self._news)
        if news.run_id != self.run_id:
            await self._turn_to(news.run_id)
        for page in news.pages:
            for event in page.events:
                self._follow_run(event)
                self._put(event)
            self.position = page.upto
        is_behind = news.is_behind or self.position < max(news.upto, self._expected)
        self._looks_behind = self._looks_behind + 1 if is_behind else 0
        if is_behind:
            self._held = [*held, *self._held]
            return
        for event in news.results:
            self._show_result(event)
        for event in held:
            self._ready_step = max(self._ready_step, event.step or 0)
            self._show_note(event)
        if news.standing is not None:
            self._show_standing(news.standing)

    def _news(self) -> _News:
        """In a thread. The standing comes last: a wait that is over by the facts is not taken for one that lasts."""
        store, run_id, pages = self._hub.store, self.run_id, list[EventPage]()
        if self.thread_id is not None:
            run_id = views.open_run_on(store, self.thread_id)
        upto, after = views.settled_position(store), self.position
        while after < upto and len(pages) < MOST_PAGES:
            pages.append(self._read((after + 1, -1), upto))
            after = pages[-1].upto
        standing = None if run_id is None else views.standing(store, run_id)
        is_at_work = run_id is not None and standing is not None and not standing.is_done
        results = views.new_results(store, run_id, after) if is_at_work and run_id is not None else []
        return _News(run_id=run_id, standing=standing, pages=pages, upto=upto, results=results)

    async def _turn_to(self, run_id: str | None) -> None:
        """Its notes are those of this run from now on."""
        before, self.run_id = self.run_id, run_id
        if before is not None:
            self._hub.unroute(before, self)
        self._streamed, self._waiting, self._results = None, None, {}
        self._replied, self._ready_step, self._calls = 0, 0, set()
        if run_id is not None:
            so_far = await self._hub.in_thread(views.replied_so_far, self._hub.store, run_id, self.position)
            self._replied, self._calls = so_far
            await self._hub.route(run_id, self)

    # what is shown

    def _follow_run(self, event: RunEvent) -> None:
        if event.run_id != self.run_id or event.step is None:
            return
        match event.kind:
            case "model.replied" | "plan.made" | "client.messages":
                self._replied = max(self._replied, event.step)
                self._calls |= {call["id"] for call in event.data.get("calls", ())}
                if self._streamed is not None and self._streamed.step <= event.step:
                    self._streamed = None
            case "tools.settled":
                for call in event.data.get("calls", ()):
                    self._results.pop(call["id"], None)
            case "run.finished":
                self._results, self._streamed = {}, None
            case _:
                pass

    def _show_result(self, event: RunEvent) -> None:
        call = event.data["call"]
        if call in self._calls and call not in self._results:
            self._results[call] = event
            self._put(event)

    def _show_standing(self, standing: RunStanding) -> None:
        """Everything of the run that is on record was shown."""
        self.is_over = standing.is_done and self.thread_id is None
        self._waits_for_children = standing.is_waiting and not standing.rests
        before, self._waiting = self._waiting, views.waiting_note(standing) if standing.rests else None
        if self._waiting is not None and self._waiting != before:
            self._put(self._waiting)

    def note(self, note: StreamNote) -> None:
        """From Redis. What is on record besides is read from there."""
        kind = _SHOWN_AS.get(note.kind, note.kind)
        if note.is_of_bus or kind not in _TEXT | _OF_CALLS:
            self.look(note.row)
            return
        event = RunEvent(id=None, kind=kind, run_id=note.run_id, step=note.data.get("step"), data=dict(note.data))
        if self._is_ready(event):
            self._show_note(event)
        elif len(self._held) < MOST_HELD:
            self._held.append(event)
            self.look()

    def _is_ready(self, event: RunEvent) -> bool:
        """Whether every fact that comes before it was shown."""
        if event.kind in _OF_CALLS:
            return event.data.get("call") in self._calls
        return (event.step or 0) <= max(self._replied, self._ready_step)

    def _show_note(self, event: RunEvent) -> None:
        if event.kind in _OF_CALLS:
            self._put(event)
        elif (event.step or 0) > self._replied and "attempt" in event.data:  # a worker of an older version has none
            self._show_text(event)

    def _show_text(self, event: RunEvent) -> None:
        """Each piece once, and without a gap: what Redis has brought twice, or too late, is left out."""
        before, after = self._streamed, with_note(self._streamed, event)
        self._streamed = after
        if before is None or before.is_older_than(after):
            if before is not None and before.step == after.step:
                self._put(_of_text("live.reset", after))
            before = StreamedReply(step=after.step, attempt=after.attempt)
        if rest := after.reasoning[len(before.reasoning) :]:
            self._put(_of_text("live.reasoning", after, rest, offset=len(before.reasoning)))
        if rest := after.text[len(before.text) :]:
            self._put(_of_text("live.delta", after, rest, offset=len(before.text)))

    def _put(self, event: RunEvent) -> None:
        if self.followers:
            size = _size(event)
            for follower in self.followers:
                follower.put(event, size)


def _of_text(kind: str, streamed: StreamedReply, text: str | None = None, **data: Any) -> RunEvent:
    about = {"step": streamed.step, "attempt": streamed.attempt, **data}
    return RunEvent(
        id=None, kind=kind, step=streamed.step, data=about if text is None else {**about, "text": text}
    )  # fmt: skip


def _snapshot(streamed: StreamedReply) -> RunEvent:
    reasoning = {"reasoning": streamed.reasoning} if streamed.reasoning else {}
    return _of_text("live.snapshot", streamed, streamed.text, **reasoning)


def _size(event: RunEvent) -> int:
    """Of what is sent of it, more or less."""
    if event.kind in {"live.delta", "live.reasoning"}:
        return 100 + len(event.data["text"])
    return 200 + len(json.dumps(event.data, default=str))
