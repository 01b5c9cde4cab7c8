"""One server over time: a session while it holds, a new one when the next call needs it, and what it offered last.

A server that died is started again by the next call, not by a clock: nobody needs it before. One that keeps failing is
tried more and more seldom, and calls in between are told so at once. Everything here happens in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from chordage.orchestrator.gateways.mcp.backoff import Reconnect, Rules
from chordage.orchestrator.gateways.mcp.failing import CLOSED, Forgotten, Lost, OnTheWay, Unreachable
from chordage.orchestrator.gateways.mcp.health import Health, State
from chordage.orchestrator.gateways.mcp.listing import Listing

if TYPE_CHECKING:  # it needs the package
    from chordage.orchestrator.gateways.mcp.session import Session

_log = logging.getLogger(__name__)


class Progress(Protocol):
    """Told by the server while it works."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Link:
    """`new_session` makes one that is not open yet, and is to be told what to watch."""

    def __init__(
        self, shown: str, new_session: Callable[[Link], Session], rules: Rules, clock: Callable[[], float]
    ) -> None:
        self.health = Health()  # replaced, never changed: other threads read it
        self.known: Listing | None = None  # the same
        self._shown = shown
        self._new_session = new_session
        self._rules = rules
        self._clock = clock
        self._reconnect = Reconnect(rules, clock)
        self._session: Session | None = None  # the one that calls go to
        self._sessions: list[Session] = []  # those that are not over, also such as only wait for calls to end
        self._has_news = False
        self._opening: asyncio.Task[Session] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    async def listing(self, within: float, *, required: bool = True) -> Listing:
        """What it offers; an older list where a newer one cannot be had soon. Raises Unreachable if there is none."""
        if self.known is None and (required or not self._reconnect.has_failed):
            await self._connected(within, self._rules.patience)
        elif self.known is None:
            await self._connected_soon(within)
        elif self._has_news or self._clock() - self.known.at > self._rules.listing_lives:
            await asyncio.wait({self._renewal(within)}, timeout=self._rules.news_patience)
        assert self.known is not None
        return self.known

    async def list_now(self, within: float) -> Listing:
        """A list that is not older than this question."""
        before = self.known
        session = await self._connected(within, self._rules.patience)
        if self.known is None or self.known is before:  # else it was connected just now
            await session.list_again(within)
            self._note_tools(session)
        assert self.known is not None
        return self.known

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        within: float,
        limit: float,
        key: str,
        on_progress: Progress,
    ) -> Any:
        """Raises Unreachable, Lost, TooLate, Refused, Unreadable."""
        for _ in range(2):
            session = await self._connected(within, self._rules.patience)
            try:
                return await session.call(tool, arguments, limit=limit, key=key, on_progress=on_progress)
            except Forgotten:
                _log.info("MCP server %s was restarted and has refused the call unread: sent again", self._shown)
        raise Lost("it does not know the session that it has just opened")

    def leave(self) -> None:
        """Calls that are under way are waited for; there will be no more."""
        if self._session is not None:
            self._session.close()

    async def close(self) -> None:
        """At once."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        await asyncio.gather(*(session.closed() for session in self._sessions if not session.is_over))

    # what a session tells

    def tools_changed(self) -> None:
        self._has_news = True

    def ended(self, session: Session, why: str | None) -> None:
        if why is None:
            self._turn(State.CLOSED)
            return
        self._reconnect.failed(session.lived)
        self._turn(State.LOST, why)
        self._do_beside(self._explain(session, why))

    async def _explain(self, session: Session, why: str) -> None:
        """What a server dies of is known a moment after its death."""
        known = self.health
        told = await session.epitaph() if why == CLOSED else why
        _log.warning("MCP server %s: the connection is given up: %s", self._shown, told)
        if self.health is known:
            self.health = replace(known, error=told)

    # connecting

    async def _connected(self, within: float, patience: float) -> Session:
        """Raises Unreachable. Whoever is cancelled while it waits leaves the others their connection."""
        until = self._clock() + patience
        while self._session is None or not self._session.usable:
            if self._opening is not None and not self._opening.done():
                return await asyncio.shield(self._opening)
            if wait := self._reconnect.wait:
                if self._clock() + wait > until:
                    raise Unreachable(self.health.error or "it keeps failing", again_in=wait)
                await asyncio.sleep(wait)  # somebody else may open it meanwhile, or fail to
            else:
                self._opening = asyncio.create_task(self._open(within))
                self._opening.add_done_callback(_looked_at)
        return self._session

    async def _connected_soon(self, within: float) -> None:
        """For whoever can do without: one that hangs must not hold up every turn."""
        try:
            await asyncio.wait_for(self._connected(within, 0.0), self._rules.news_patience)
        except TimeoutError:
            raise Unreachable("it is being connected to, and takes its time") from None

    async def _open(self, within: float) -> Session:
        session = self._new_session(self)
        self._sessions = [*(one for one in self._sessions if not one.is_over), session]
        try:
            await session.open(within)
        except Unreachable as error:
            self._reconnect.failed()
            self._turn(State.UNREACHABLE, str(error))
            _log.warning("MCP server %s cannot be reached: %s", self._shown, error)
            raise
        self._session = session
        self._note_tools(session)
        self._turn(State.CONNECTED)
        self.health = replace(
            self.health, version=session.version, protocol=session.protocol, connections=self.health.connections + 1
        )
        return session

    # listing

    def _renewal(self, within: float) -> asyncio.Task[None]:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(within))
            self._renewing.add_done_callback(_looked_at)
        return self._renewing

    async def _renew(self, within: float) -> None:
        before, self._has_news = self.known, False  # what changes from now on is news again
        try:
            session = await self._connected(within, 0.0)
            if self.known is before:  # it was connected already
                await session.list_again(within)
                self._note_tools(session)
        except OnTheWay as error:
            self._has_news = True
            _log.info("MCP server %s: the tools of before are offered: %s", self._shown, error)

    def _note_tools(self, session: Session) -> None:
        self.known = Listing(tools=session.tools, at=self._clock())
        self.health = replace(self.health, tools=len(session.tools))

    # health

    def _turn(self, state: State, error: str | None = None) -> None:
        self.health = replace(
            self.health, state=state, since=datetime.now(UTC), error=error if error is not None else self.health.error
        )

    def _do_beside(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Whoever began it may have gone: then its failure is none to complain of."""
    if not task.cancelled():
        task.exception()
