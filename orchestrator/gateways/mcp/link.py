"""One server over time: a session while it holds, a new one when the next call needs it, and the last list of tools.

A server that died is started again by the next call and not by a clock: it is not needed before. A server that keeps
failing is tried less and less often, and calls in between are refused at once. All of this runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.gateways.mcp.errors import (
    CLOSED,
    ConnectionLost,
    ServerFailure,
    SessionForgotten,
    Unreachable,
    retrieve_error,
)
from chordage.orchestrator.gateways.mcp.offers import ToolList

if TYPE_CHECKING:  # they need the package
    from mcp.shared.dispatcher import ProgressFnT

    from chordage.orchestrator.gateways.mcp.session import Session

_log = logging.getLogger(__name__)


class ServerState(StrEnum):
    UNUSED = "unused"  # not needed so far
    CONNECTED = "connected"
    CLOSED = "closed"  # in order; the next call connects
    LOST = "lost"  # the connection broke; the next call connects
    UNREACHABLE = "unreachable"  # the last attempt to connect failed


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerHealth:
    """As far as this process knows."""

    state: ServerState = ServerState.UNUSED
    since: datetime | None = None
    error: str | None = None  # the last one, also where it is over
    tools: int | None = None  # that the server lists; None until it has listed them
    version: str | None = None  # the server's own name and version
    protocol: str | None = None
    connections: int = 0  # how often this process has connected

    @property
    def ok(self) -> bool:
        return self.state in {ServerState.UNUSED, ServerState.CONNECTED, ServerState.CLOSED}


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRules:
    """All in seconds."""

    first: float = 1.0  # the wait after a second failure; it doubles with each further one
    longest: float = 30.0
    steady: float = 30.0  # a connection that held so long cancels the failures before it
    patience: float = 3.0  # a call waits so long until it may connect, and is refused where it would be longer
    listing_lives: float = 60.0  # then the tools are listed again
    news_patience: float = 2.0  # a turn waits so long for a newer list of tools when there is an older one


class Reconnect:
    """When a server that keeps failing may be tried again. The first failure costs no time: servers are restarted."""

    def __init__(self, rules: LinkRules, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._backoff = Backoff(first=rules.first, longest=rules.longest, jitter=0.25)
        self._clock = clock
        self._failures = 0
        self._not_before = 0.0

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    @property
    def wait(self) -> float:
        """Seconds until the next attempt is due."""
        return max(0.0, self._not_before - self._clock())

    def failed(self, age: float = 0.0) -> None:
        """The server could not be reached, or the connection broke at this age in seconds."""
        self._failures = 1 if age >= self._rules.steady else self._failures + 1
        if self._failures > 1:
            self._not_before = self._clock() + self._backoff.delay(self._failures - 1, random.random())


class Link:
    """`new_session` makes a session that is not open yet and reports to the link."""

    def __init__(
        self, shown: str, new_session: Callable[[Link], Session], rules: LinkRules, clock: Callable[[], float]
    ) -> None:
        self.health = ServerHealth()  # replaced, never changed: other threads read it
        self.known: ToolList | None = None  # the same
        self._shown = shown
        self._new_session = new_session
        self._rules = rules
        self._clock = clock
        self._reconnect = Reconnect(rules, clock)
        self._session: Session | None = None  # the one that calls use
        self._sessions: list[Session] = []  # all that are not over; some only wait for calls to end
        self._is_outdated = False
        self._opening: asyncio.Task[Session] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def tool_list(self, within: float, *, required: bool = True) -> ToolList:
        """The server's tools; an older list where a newer one cannot be had soon. Raises Unreachable without any."""
        if self.known is None and (required or not self._reconnect.has_failed):
            await self._connected(within, self._rules.patience)
        elif self.known is None:
            await self._connected_soon(within)
        elif self._is_outdated or self._clock() - self.known.at > self._rules.listing_lives:
            await asyncio.wait({self._renewal(within)}, timeout=self._rules.news_patience)
        assert self.known is not None
        return self.known

    async def tool_list_now(self, within: float) -> ToolList:
        """A list that is not older than this request."""
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
        on_progress: ProgressFnT,
    ) -> Any:
        """Raises the failures of errors.py, except SessionForgotten: such a call is sent again."""
        for _ in range(2):
            session = await self._connected(within, self._rules.patience)
            try:
                return await session.call(tool, arguments, limit=limit, key=key, on_progress=on_progress)
            except SessionForgotten:
                _log.info("MCP server %s was restarted and has refused the call unread: sent again", self._shown)
        raise ConnectionLost("it does not know the session that it has just opened")

    def leave(self) -> None:
        """Close after the calls that are under way; there will be no more."""
        if self._session is not None:
            self._session.close()

    async def close(self) -> None:
        """At once."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        await asyncio.gather(*(session.closed() for session in self._sessions if not session.is_over))

    # the observer of its sessions

    def tools_changed(self) -> None:
        self._is_outdated = True

    def ended(self, session: Session, why: str | None) -> None:
        if why is None:
            self._set_state(ServerState.CLOSED)
            return
        self._reconnect.failed(session.age)
        self._set_state(ServerState.LOST, why)
        self._run_in_background(self._explain(session, why))

    async def _explain(self, session: Session, why: str) -> None:
        """What a server died of shows a moment after its death."""
        health = self.health
        cause = await session.cause_of_end() if why == CLOSED else why
        _log.warning("MCP server %s: the connection is given up: %s", self._shown, cause)
        if self.health is health:
            self.health = replace(health, error=cause)

    # connecting

    async def _connected(self, within: float, patience: float) -> Session:
        """Raises Unreachable. A caller that is cancelled while it waits does not take the connection from others."""
        until = self._clock() + patience
        while self._session is None or not self._session.usable:
            if self._opening is not None and not self._opening.done():
                return await asyncio.shield(self._opening)
            if wait := self._reconnect.wait:
                if self._clock() + wait > until:
                    raise Unreachable(self.health.error or "it keeps failing", again_in=wait)
                await asyncio.sleep(wait)  # another caller may connect meanwhile, or fail to
            else:
                self._opening = asyncio.create_task(self._open(within))
                self._opening.add_done_callback(retrieve_error)
        return self._session

    async def _connected_soon(self, within: float) -> None:
        """For an optional server: one that hangs must not delay every turn."""
        try:
            await asyncio.wait_for(self._connected(within, 0.0), self._rules.news_patience)
        except TimeoutError:
            raise Unreachable("it is being connected to, and takes its time") from None

    async def _open(self, within: float) -> Session:
        session = self._new_session(self)
        self._sessions = [*(other for other in self._sessions if not other.is_over), session]
        try:
            await session.open(within)
        except Unreachable as error:
            self._reconnect.failed()
            self._set_state(ServerState.UNREACHABLE, str(error))
            _log.warning("MCP server %s cannot be reached: %s", self._shown, error)
            raise
        self._session = session
        self._note_tools(session)
        self._set_state(ServerState.CONNECTED)
        self.health = replace(
            self.health, version=session.version, protocol=session.protocol, connections=self.health.connections + 1
        )
        return session

    # listing

    def _renewal(self, within: float) -> asyncio.Task[None]:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(within))
            self._renewing.add_done_callback(retrieve_error)
        return self._renewing

    async def _renew(self, within: float) -> None:
        before, self._is_outdated = self.known, False  # a change from now on needs another renewal
        try:
            session = await self._connected(within, 0.0)
            if self.known is before:  # it was connected already
                await session.list_again(within)
                self._note_tools(session)
        except ServerFailure as error:
            self._is_outdated = True
            _log.info("MCP server %s: its last known tools are offered: %s", self._shown, error)

    def _note_tools(self, session: Session) -> None:
        self.known = ToolList(tools=session.tools, at=self._clock())
        self.health = replace(self.health, tools=len(session.tools))

    def _set_state(self, state: ServerState, error: str | None = None) -> None:
        self.health = replace(
            self.health, state=state, since=datetime.now(UTC), error=error if error is not None else self.health.error
        )

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
