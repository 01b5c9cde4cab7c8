"""Pages that change by themselves: a page keeps one stream, and gets the parts of it that are new or different.

A part is an element with an id, rendered by the macro that rendered it for the page. Once a second, or when something
wakes it, a stream renders its parts and sends those that differ from what it has sent. Streams of the same page and
reader share one rendering, so a page that many look at costs as much as one.

The parts hold no attributes of htmx: `hx-csp` takes away those without the nonce of the page, which a stream does not
know. The elements around them, which say where a part belongs, are read by htmx and never inserted.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread
import structlog
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from chordage.orchestrator.api.limits import StreamSlots
from chordage.orchestrator.api.services import EventStreams, services_of
from chordage.orchestrator.api.sessions import caller_of_session
from chordage.orchestrator.api.streams import SEND_WITHIN
from chordage.orchestrator.console.live_text import MarksOf, RunWatch, RunWatches
from chordage.orchestrator.console.pages import HEADERS
from chordage.orchestrator.core import errors
from chordage.orchestrator.core.callers import Caller

log = structlog.get_logger()

EVERY = 1.0  # seconds
AT_REST = 5.0  # seconds, for a run whose rows are watched: what else changes is the time, and why it waits
SHARED_FOR = 0.8  # seconds, for which a rendering serves other streams
HEARTBEAT = 15.0  # seconds
ASK_EVERY = 5.0  # seconds between two looks at whether the session is valid: its key may be revoked
STREAMS_MAX = 1000
OVER = "event: over\ndata: over\n\n"  # the page closes its stream
STREAM_HEADERS = {**HEADERS, "X-Accel-Buffering": "no"}

Parts = Mapping[str, str]  # the HTML of each part by the id of its element, in order


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveParts:
    """What a page shows at a moment. `is_over`: it will not change any more. `run_id`: whose events wake the page; the
    page of a queued turn has none before its run starts. `is_at_rest`: the rows of that run, and of no other, say when
    the page changes.
    """

    parts: Parts
    is_over: bool = False
    run_id: str | None = None
    is_at_rest: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LivePage:
    """What a stream shows. `target`: the id of the element that holds the parts, sorted by their `data-order`.
    `keeps`: parts whose ids begin so stay as they are, since a person may be filling them in. `closed`: what to show in
    the place of such parts when they are over; without it they vanish. `has`: such parts that the page has already, as
    one that comes back from the background. `run_id`: as the page began.
    """

    render: Callable[[RunWatch], LiveParts]
    key: Hashable  # pages with the same key show the same, tokens of forms included
    target: str
    keeps: str | None = None
    closed: Callable[[Sequence[str]], Parts] | None = None
    has: Sequence[str] = ()
    newest_first: bool = False
    run_id: str | None = None


@dataclass(slots=True)
class _Rendering:
    """`watch` and `version`: what was known of the run."""

    shown: LiveParts = field(default_factory=lambda: LiveParts(parts={}))
    at: float = 0.0
    watch: RunWatch | None = None
    version: int = -1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    readers: int = 0


class LiveStreams:
    """Of one event loop."""

    def __init__(self, marks: MarksOf | None = None) -> None:
        self._renderings: dict[Hashable, _Rendering] = {}
        self._watches = RunWatches(marks)
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= STREAMS_MAX

    async def messages(
        self, page: LivePage, events: EventStreams | None, known: str, is_valid: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[str]:
        """`known`: the digest of the parts that the page has; if they are still so, none is sent again. `is_valid`:
        whether its reader is logged in still.
        """
        self._open += 1
        rendering = self._renderings.setdefault(page.key, _Rendering())
        rendering.readers += 1
        try:
            yield "retry: 1000\n\n"
            stream = _PageStream(page, rendering, known, self._watches, is_valid)
            while not stream.is_over:
                async with self._watches.of(events, stream.run_id) as watch:
                    async for message in stream.messages(watch):
                        yield message
        except (errors.UserError, errors.LostRace) as error:
            log.info("a live page ended", error=str(error))
            yield OVER
        finally:
            self._open -= 1
            rendering.readers -= 1
            if not rendering.readers:
                self._renderings.pop(page.key, None)


class _PageStream:
    """What one reader of a page has been sent."""

    def __init__(
        self, page: LivePage, rendering: _Rendering, known: str, watches: RunWatches, is_valid: Callable[[], bool]
    ) -> None:
        self._watches = watches
        self._is_valid = is_valid
        self.is_over = False
        self.run_id = page.run_id
        self._page = page
        self._rendering = rendering
        self._known = known
        self._sent: Parts | None = None
        self._spoke_at = self._asked_at = time.monotonic()

    async def messages(self, watch: RunWatch) -> AsyncIterator[str]:
        """Until the page is over, or shows another run than the one that is watched."""
        while True:
            if time.monotonic() - self._asked_at >= ASK_EVERY:
                if not await anyio.to_thread.run_sync(self._is_valid):
                    self.is_over = True
                    yield OVER
                    return
                self._asked_at = time.monotonic()
            version = watch.version
            shown = await _rendered(self._page, self._rendering, watch)
            if self._sent is None:
                is_known = digest(shown.parts) == self._known and not self._page.has
                self._sent = shown.parts if is_known else dict.fromkeys(self._page.has, "")
            gone = [name for name in self._sent if name not in shown.parts]
            closed: Parts = {}
            if gone and self._page.closed is not None:
                closed = await anyio.to_thread.run_sync(self._page.closed, gone)
            if message := changes(self._sent, shown.parts, self._page, closed):
                yield event(message, ",".join(self._kept(shown.parts)))
                self._spoke_at = time.monotonic()
            elif time.monotonic() - self._spoke_at >= HEARTBEAT:
                yield ": still here\n\n"
                self._spoke_at = time.monotonic()
            self._sent = shown.parts
            if shown.is_over:
                self.is_over = True
                yield OVER
                return
            if shown.run_id != self.run_id:
                self.run_id = shown.run_id
                return
            rests = shown.is_at_rest and self._watches.is_marking
            until_asked = self._asked_at + ASK_EVERY - time.monotonic()
            await watch.wait(version, max(EVERY, min(AT_REST, until_asked)) if rests else EVERY)

    def _kept(self, parts: Parts) -> list[str]:
        """What the page has from now on: its browser names it when it connects again."""
        keeps = self._page.keeps
        return [name for name in parts if keeps is not None and name.startswith(keeps)]


async def _rendered(page: LivePage, rendering: _Rendering, watch: RunWatch) -> LiveParts:
    async with rendering.lock:
        is_known = rendering.watch is watch and rendering.version == watch.version
        if not is_known or time.monotonic() - rendering.at >= SHARED_FOR:
            rendering.watch, rendering.version = watch, watch.version
            rendering.shown = await anyio.to_thread.run_sync(page.render, watch)
            rendering.at = time.monotonic()
        return rendering.shown


class LiveStream(StreamingResponse):
    """One of the open streams of its caller. It ends where its client stops reading, without an error of ours.

    Raises TooManyRequests where the caller has as many open as it may have.
    """

    def __init__(self, messages: AsyncGenerator[str], slots: StreamSlots, caller: Caller) -> None:
        slots.enter(caller)
        self._leave = partial(slots.leave, caller)
        self._messages = messages
        super().__init__(messages, media_type="text/event-stream", headers=STREAM_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(SEND_WITHIN):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            log.info("a live page was not read in time", path=scope["path"], seconds=SEND_WITHIN)
        finally:
            self._leave()
            with anyio.CancelScope(shield=True):
                await self._messages.aclose()


def streaming(request: Request, caller: Caller, page: LivePage) -> Response:
    live: LiveStreams = request.app.state.live
    if live.is_full:
        raise errors.TooManyRequests("too many pages are open: close some, or reload this one by hand", 30.0)
    services, known = services_of(request), request.query_params.get("v", "")
    messages = live.messages(page, services.events, known, lambda: caller_of_session(request) is not None)
    return LiveStream(messages, services.stream_slots, caller)


def digest(parts: Parts) -> str:
    """Of the parts that a page has, for the address of its stream."""
    text = "\x00".join(f"{name}\x01{html}" for name, html in parts.items())
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def changes(before: Parts, after: Parts, page: LivePage, closed: Parts | None = None) -> str:
    """What makes a page with the parts `before` one with the parts `after`, and those of `closed` that are over."""
    new = "".join(html for name, html in after.items() if name not in before)
    kept = [name for name in before if page.keeps is not None and name.startswith(page.keeps)]
    changed = {name: html for name, html in after.items() if name not in kept and before.get(name, html) != html}
    morphed = [
        f'<hx-partial hx-target="#{name}" hx-swap="outerMorph">{html}</hx-partial>'
        for name, html in {**changed, **(closed or {})}.items()
    ]
    gone = [
        f'<hx-partial hx-target="#{name}" hx-swap="delete"><i></i></hx-partial>'
        for name in before
        if name not in after and name not in (closed or {})
    ]
    sort = 'sort="desc"' if page.newest_first else "sort"
    added = f'<hx-upsert hx-target="#{page.target}" key="data-order" {sort}>{new}</hx-upsert>' if new else ""
    return "".join([*morphed, *gone, added])


def event(html: str, event_id: str = "") -> str:
    """One message; each of its lines is a line of the event."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return (f"id: {event_id}\n" if event_id else "") + lines + "\n"
