"""All connections to MCP servers of this process: an event loop in its own thread, and a link for each address.

A connection must not be used on both sides of a fork, and a mere copy of a pipe in a forked process would keep a server
alive that should end with its parent. So a child forgets the loop it inherits, and closes at once the pipes and sockets
that were open when it was forked. One that was being opened at that very moment is missed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import CancelledError, Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from chordage.orchestrator.gateways.mcp import servers
from chordage.orchestrator.gateways.mcp.errors import SHUTTING_DOWN, Unreachable
from chordage.orchestrator.gateways.mcp.link import Link, LinkRules, ServerHealth
from chordage.orchestrator.gateways.mcp.offers import ToolList
from chordage.orchestrator.gateways.mcp.servers import Address, Environ, McpServer
from chordage.orchestrator.gateways.tools.context import Context

T = TypeVar("T")
LinkWork = Callable[[Link], Coroutine[Any, Any, T]]

CLOSING_SECONDS = 9.0  # for all connections together


class Connections:
    """What a server is asked for, from any thread. Connects when it must."""

    def __init__(self, room: Path, environ: Environ, rules: LinkRules | None = None) -> None:
        self._room = room
        self._environ = environ
        self._rules = rules or LinkRules()
        self._checked: set[McpServer] = set()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: _LoopThread | None = None
        self._inherited: list[_LoopThread] = []  # kept: the garbage collector would close files that are not ours
        self._has_hooks = False

    def check(self, server: McpServer) -> None:
        """Whether it can work, as far as that shows without connecting. Raises ConfigError."""
        servers.check(server, self._environ, self._room)
        self._checked.add(server)

    def health(self, server: McpServer) -> ServerHealth:
        """As far as this process knows; does not connect."""
        link = self._link(server.address)
        return link.health if link else ServerHealth()

    def known(self, server: McpServer) -> ToolList | None:
        """The tools it listed last; does not connect."""
        link = self._link(server.address)
        return link.known if link else None

    def listed(self, server: McpServer) -> ToolList:
        """Waits for the list. Raises Unreachable, and the other failures of errors.py."""
        try:
            return self.listing(server).result()
        except CancelledError:
            raise Unreachable(SHUTTING_DOWN) from None

    def listing(self, server: McpServer, *, now: bool = False) -> Future[ToolList]:
        """`now`: an older list will not do."""
        self._check_once(server)
        within, required = server.connect_timeout, server.required
        return self._begin(
            server.address,
            lambda link: link.tool_list_now(within) if now else link.tool_list(within, required=required),
        )

    def call(self, server: McpServer, tool: str, arguments: dict[str, Any], context: Context) -> Future[Any]:
        """To cancel the future cancels the call at the server."""
        self._check_once(server)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if total:
                context.progress(progress / total, message or "")
            else:
                context.progress(message or f"{progress:g}")

        return self._begin(
            server.address,
            lambda link: link.call(
                tool,
                arguments,
                within=server.connect_timeout,
                limit=server.timeout,
                key=context.idempotency_key,
                on_progress=on_progress,
            ),
        )

    def keep(self, configured: Collection[McpServer]) -> None:
        """Leave all servers but these: they are not in the room any more."""
        if (loop := self._loop_of_this_process()) is not None:
            loop.leave_all_but({server.address for server in configured})

    def close(self) -> None:
        """End all connections and the thread. A later call starts anew."""
        self._loop_of_this_process()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def in_forked_child(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        if self._loop is not None:
            self._loop.release_files()
            self._inherited.append(self._loop)
        self._loop = None

    def _link(self, address: Address) -> Link | None:
        """To be read only."""
        loop = self._loop_of_this_process()
        return loop.links.get(address) if loop else None

    def _begin(self, address: Address, work: LinkWork[T]) -> Future[T]:
        self._loop_of_this_process()
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread(self._new_link)
                self._add_hooks()
            return self._loop.begin(address, work)

    def _loop_of_this_process(self) -> _LoopThread | None:
        if self._pid != os.getpid():  # the hook has run already, unless the fork was not Python's
            self.in_forked_child()
        return self._loop

    def _add_hooks(self) -> None:
        """Hooks are never removed, so they hold a weak reference. A child inherits them."""
        if not self._has_hooks:
            self._has_hooks = True
            reference = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _if_alive(reference, Connections.in_forked_child))
            atexit.register(_if_alive, reference, Connections.close)

    def _check_once(self, server: McpServer) -> None:
        if server not in self._checked:
            self.check(server)

    def _new_link(self, address: Address) -> Link:
        """Called in the event loop."""
        from chordage.orchestrator.gateways.mcp.session import Session  # these need the package
        from chordage.orchestrator.gateways.mcp.transports import transport_to

        def new_session(link: Link) -> Session:
            return Session(transport_to(address, self._environ, self._room), link, version=version("chordage"))

        return Link(address.shown, new_session, self._rules, time.monotonic)


def _if_alive(reference: weakref.ref[Connections], do: Callable[[Connections], None]) -> None:
    if (connections := reference()) is not None:
        do(connections)


class _LoopThread:
    """An event loop in its own thread, with the links that live in it. Runs until it is closed."""

    def __init__(self, new_link: Callable[[Address], Link]) -> None:
        self.links: dict[Address, Link] = {}  # changed in the loop only
        self._left: list[Link] = []
        self._new_link = new_link
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, name="chordage-mcp", daemon=True)
        self._thread.start()

    def begin(self, address: Address, work: LinkWork[T]) -> Future[T]:
        async def with_link() -> T:
            if address not in self.links:
                self.links[address] = self._new_link(address)
            return await work(self.links[address])

        return asyncio.run_coroutine_threadsafe(with_link(), self._loop)

    def leave_all_but(self, addresses: Collection[Address]) -> None:
        def leave() -> None:
            for address in self.links.keys() - set(addresses):
                self._left.append(self.links.pop(address))
                self._left[-1].leave()

        self._loop.call_soon_threadsafe(leave)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING_SECONDS)

    def release_files(self) -> None:
        """In a forked child, where the thread does not exist. The file numbers stay taken: objects that still hold
        them will close them, and must not close something new.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in self._selector.get_map():
            with contextlib.suppress(OSError):
                os.dup2(nothing, int(str(number)), inheritable=False)
        os.close(nothing)

    async def _close_all(self) -> None:
        links = [*self.links.values(), *self._left]
        self.links.clear()
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._cancel_rest()
        finally:
            self._loop.close()

    def _cancel_rest(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
