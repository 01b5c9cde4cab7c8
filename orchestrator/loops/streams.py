"""Live streams of one web process: who follows what, and how the events reach them.

Each run, thread and the fleet that has followers is a topic (`stream_topics.py`). All topics share one connection to
Redis and one copying to the bus. A follower gets the facts behind the last it has from the database, then what is shown
at this moment besides, and then what comes. Nothing is cancelled when a follower goes away.

Everything here belongs to one event loop; the database and Redis are read in threads.

A follower may go away at any `await`. So what it has asked for is written down before the first of them, and taken back
on the way out: otherwise one that goes while it joins leaves a topic that gets no events, for all later followers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
import structlog

from chordage.orchestrator import views
from chordage.orchestrator.core.errors import InvalidMessage, Unavailable
from chordage.orchestrator.core.run_events import RunEvent, position_of
from chordage.orchestrator.faces.fold import TurnFold
from chordage.orchestrator.faces.moments import TurnMoment
from chordage.orchestrator.gateways.run_stream import StreamNote
from chordage.orchestrator.loops.stream_topics import Followed, ReadPage, SharedWork, TooSlow, Topic
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.run_events import BEGINNING, Position, TurnPlace

log = structlog.get_logger()

LOOK_FOR_START = 0.5  # seconds between two looks at a turn that is queued
READS = 4  # of the database at a time: fewer than the connections of a process

T = TypeVar("T")
Moments = AsyncGenerator[TurnMoment, None]


class StreamsStop(Unavailable):
    """The server is stopping. Its words are for clients."""

    def __init__(self) -> None:
        super().__init__("the server is stopping: follow again, behind the last event that came")


class RunStreams(Protocol):
    """Redis (gateways/run_stream.py). Only `wake` and `stop` wait for it."""

    def watch(self, run_id: str, position: int) -> None: ...
    def unwatch(self, run_id: str) -> None: ...
    def watch_fleet(self, position: int) -> None: ...
    def unwatch_fleet(self) -> None: ...
    def wake(self) -> None: ...
    def stop(self) -> None: ...


class StreamHub:
    """Implements `EventStreams` of the API. Call `connect` before the first follower comes."""

    too_slow: type[Exception] = TooSlow

    def __init__(self, store: Store, copy: Callable[[], object]) -> None:
        """`copy`: copies what is new in the journal to the bus. Workers do so too, about once a second."""
        self.store = store
        self.has_redis = True
        self.is_over = False
        self._copy = copy
        self._copying = SharedWork(self._copy_now)
        self._streams: RunStreams | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reads: anyio.CapacityLimiter | None = None
        self._topics: dict[str, Topic] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._routes: dict[str, set[Topic]] = {}
        self._queued: dict[str, set[asyncio.Event]] = {}  # by the turn that has not started
        self._watching_fleet = 0

    def connect(self, streams: RunStreams) -> None:
        self._streams = streams

    def stop(self) -> None:
        """Tell all followers that the server stops. May be called from any thread, and again."""
        self.is_over = True
        self._in_loop(self.end_followers)
        if self._streams is not None:
            self._streams.stop()

    def end_followers(self) -> None:
        """In the event loop. From here on there are no followers."""
        self.is_over = True
        for topic in self._topics.values():
            for followed in topic.followers:
                followed.end(StreamsStop())
        self._wake(*self._queued)

    @property
    def followers(self) -> int:
        return sum(len(topic.followers) for topic in self._topics.values())

    # what topics need

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        if self._reads is None:
            self._reads = anyio.CapacityLimiter(READS)
        return await anyio.to_thread.run_sync(partial(work, *arguments), limiter=self._reads)

    async def copy(self) -> None:
        if self.has_redis:
            await self._copying.done()

    async def _copy_now(self) -> None:
        try:
            await self.in_thread(self._copy)
        except Exception as error:
            log.debug("nothing is copied to the bus", error=repr(error))

    async def route(self, run_id: str, topic: Topic) -> None:
        self._routes.setdefault(run_id, set()).add(topic)
        if self._streams is not None:
            self._streams.watch(run_id, topic.position)
            await self.in_thread(self._streams.wake)

    def unroute(self, run_id: str, topic: Topic) -> None:
        topics = self._routes.get(run_id, set())
        topics.discard(topic)
        if not topics:
            self._routes.pop(run_id, None)
            if self._streams is not None:
                self._streams.unwatch(run_id)

    # what Redis brings, in its thread

    def on_notes(self, notes: list[StreamNote]) -> None:
        self._in_loop(self._hand_on, notes)

    def on_link(self, has_redis: bool) -> None:
        self._in_loop(self._note_link, has_redis)

    def _in_loop(self, work: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(work, *arguments)

    def _hand_on(self, notes: list[StreamNote]) -> None:
        for note in notes:
            for topic in self._routes.get(note.run_id, ()):
                topic.note(note)
            if note.is_of_bus:
                self._wake(note.turn_id)
        rows = {note.thread_id: note.row for note in notes if note.is_of_bus}  # the last of each thread
        for key, topic in self._topics.items() if rows else ():
            if key == "fleet":
                topic.look(max(rows.values()))
            elif topic.thread_id in rows:
                topic.look(rows[topic.thread_id])

    def _wake(self, *turn_ids: str) -> None:
        for turn_id in turn_ids:
            for woken in self._queued.get(turn_id, ()):
                woken.set()

    def _note_link(self, has_redis: bool) -> None:
        self.has_redis = has_redis
        for topic in self._topics.values():
            topic.look()

    # events

    async def run_events(self, run_id: str, after: Position = BEGINNING) -> AsyncGenerator[RunEvent, None]:
        """Of a run, until its turn has ended. Raises TooSlow, Unavailable."""
        read = partial(views.run_events, self.store, run_id)
        turn_id = (await self.in_thread(views.standing, self.store, run_id)).turn_id
        async with aclosing(self._events(f"run:{run_id}", read, after, run_id=run_id)) as events:
            async for event in events:
                yield event
                if event.kind == "turn.ended" and event.turn_id == turn_id:
                    return

    def thread_events(self, thread_id: str, after: Position) -> AsyncGenerator[RunEvent, None]:
        """Without end."""
        read = partial(views.thread_events, self.store, thread_id)
        return self._events(f"thread:{thread_id}", read, after, thread_id=thread_id)

    def fleet_events(self, after: Position) -> AsyncGenerator[RunEvent, None]:
        """As `thread_events`, without texts and notes."""
        return self._events("fleet", partial(views.fleet_events, self.store), after)

    async def turn_events(self, place: TurnPlace, after: Position = BEGINNING) -> AsyncGenerator[RunEvent, None]:
        """Of a turn, and of the run that it is or becomes part of, until that has ended."""
        last = after
        async with aclosing(self._before_start(place, after)) as before:
            async for event in before:
                if isinstance(event, TurnPlace):
                    place = event
                else:
                    last = position_of(event.id) if event.id else last
                    yield event
        if place.run_id is not None:
            async with aclosing(self.run_events(place.run_id, last)) as events:
                async for event in events:
                    yield event

    async def _before_start(self, place: TurnPlace, after: Position) -> AsyncGenerator[RunEvent | TurnPlace, None]:
        """What is on record of the turn besides its run; last the place of that, if there is one."""
        self._begin()
        with self._woken(place.asked_id) as woken:
            await self._watch_fleet()
            try:
                while True:
                    place = await self.in_thread(self._find, place.asked_id)
                    if place.is_done or place.run_id is not None:  # that it was queued comes before its run
                        await self.copy()
                    page = await self.in_thread(views.turn_notes, self.store, {place.asked_id, place.turn_id}, after)
                    for event in page.events:
                        after = position_of(event.id or "")
                        yield event
                        if event.kind == "turn.ended" and event.data.get("into") is None:
                            return
                    if place.run_id is not None:
                        yield place
                        return
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), LOOK_FOR_START)
                    woken.clear()
                    self._begin()
            finally:
                self._unwatch_fleet()

    def _find(self, turn_id: str) -> TurnPlace:
        return views.place_of_turn(self.store, turn_id, space=None)

    @contextlib.contextmanager
    def _woken(self, turn_id: str) -> Iterator[asyncio.Event]:
        """Set when the bus has something about this turn."""
        woken = asyncio.Event()
        waiting = self._queued.setdefault(turn_id, set())
        waiting.add(woken)
        try:
            yield woken
        finally:
            waiting.discard(woken)
            if not waiting and self._queued.get(turn_id) is waiting:
                del self._queued[turn_id]

    async def _watch_fleet(self, position: int | None = None) -> None:
        """Until `_unwatch_fleet`. One that fails or is cancelled watches nothing."""
        if position is None:
            position = await self.in_thread(views.settled_position, self.store)
        self._watching_fleet += 1
        if self._streams is None:
            return
        self._streams.watch_fleet(position)
        try:
            await self.in_thread(self._streams.wake)
        except BaseException:
            self._unwatch_fleet()
            raise

    def _unwatch_fleet(self) -> None:
        self._watching_fleet -= 1
        if not self._watching_fleet and self._streams is not None:
            self._streams.unwatch_fleet()

    async def _events(
        self,
        key: str,
        read: ReadPage,
        after: Position,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """The facts behind `after`, what is shown now besides, and then what comes."""
        followed = Followed()
        topic = await self._join(key, partial(Topic, self, read, run_id=run_id, thread_id=thread_id), followed)
        try:
            followed.clear()  # it is in what is read now
            upto, shown, is_over = topic.position, topic.shown_now(), topic.is_over
            position = after
            while position[0] <= upto:
                page = await self.in_thread(read, position, upto)
                for event in page.events:
                    yield event
                position = (page.upto + 1, -1)
            for event in shown:
                yield event
            while not is_over:
                event = await followed.next()
                if event.id is None or position_of(event.id) > after:
                    yield event
        finally:
            self._leave(key, topic, followed)

    async def _join(self, key: str, new: Callable[[], Topic], followed: Followed) -> Topic:
        self._begin()
        async with self._locks.setdefault(key, asyncio.Lock()):
            topic = self._topics.get(key)
            if topic is None:
                topic = new()
                try:
                    await topic.begin()
                    if not key.startswith("run:"):
                        await self._watch_fleet(topic.position)
                except BaseException:
                    topic.end()
                    raise
                self._topics[key] = topic
            topic.followers.add(followed)
        try:
            await topic.refresh()
        except BaseException:
            self._leave(key, topic, followed)
            raise
        return topic

    def _leave(self, key: str, topic: Topic, followed: Followed) -> None:
        topic.followers.discard(followed)
        if topic.followers or self._topics.get(key) is not topic:
            return
        del self._topics[key]
        self._locks.pop(key, None)
        topic.end()
        if not key.startswith("run:"):
            self._unwatch_fleet()

    def _begin(self) -> None:
        """Raises Unavailable."""
        if self.is_over:
            raise StreamsStop
        self._loop = asyncio.get_running_loop()

    # moments

    async def follow(
        self, turn_id: str, *, space: str | None, after: str | None = None
    ) -> AsyncGenerator[TurnMoment, None]:
        """The moments of a turn, from its beginning or behind the fact `after`; ends with Waiting or TurnEnded.

        Raises NotFound and InvalidMessage before the first moment; Unavailable when the server stops.
        """
        known = BEGINNING if after is None else _position(after)
        place = await self.in_thread(partial(views.place_of_turn, self.store, turn_id, space=space))
        if place.run_id is None:
            fold = TurnFold(place.turn_id)
            for moment in fold.feed(_queued(place)) if not place.is_done else ():
                yield moment
            async with aclosing(self._before_start(place, BEGINNING)) as before:
                async for event in before:
                    if isinstance(event, TurnPlace):
                        place = event
                    elif event.kind != "turn.ended" or event.data.get("into") is None:
                        for moment in fold.feed(event):
                            yield moment
            if place.run_id is None:
                return
        fold = TurnFold(place.turn_id)
        last = BEGINNING
        while not fold.is_over:
            try:
                async with aclosing(self.run_events(place.run_id, last)) as events:
                    async for event in events:
                        last = position_of(event.id) if event.id else last
                        if event.id and last <= known and event.kind != "turn.ended":
                            fold.skip([event])
                            continue
                        for moment in fold.feed(event):
                            yield moment
                        if fold.is_over:
                            break
            except TooSlow:
                continue  # the facts it has are behind it, and the text comes again as a whole


def _queued(place: TurnPlace) -> RunEvent:
    return RunEvent(id=None, kind="turn.queued", thread_id=place.thread_id, turn_id=place.turn_id)


def _position(event_id: str) -> Position:
    try:
        return position_of(event_id)
    except ValueError as error:
        raise InvalidMessage(str(error), field="after") from error
