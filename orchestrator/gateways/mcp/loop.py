"""An event loop in a thread of its own, with the links that live in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from chordage.orchestrator.gateways.mcp.address import Address
from chordage.orchestrator.gateways.mcp.link import Link

T = TypeVar("T")

GOODBYE = 9.0  # seconds for all to close


class Loop:
    """Runs from the start until it is closed."""

    def __init__(self, new_link: Callable[[Address], Link]) -> None:
        self.links: dict[Address, Link] = {}  # changed in the loop only
        self._left: list[Link] = []
        self._new_link = new_link
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, name="chordage-mcp", daemon=True)
        self._thread.start()

    def begin(self, address: Address, work: Callable[[Link], Coroutine[Any, Any, T]]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._with_link(address, work), self._loop)

    def leave_all_but(self, addresses: Collection[Address]) -> None:
        def leave() -> None:
            for address in self.links.keys() - set(addresses):
                self._left.append(self.links.pop(address))
                self._left[-1].leave()

        self._loop.call_soon_threadsafe(leave)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(GOODBYE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GOODBYE)

    def let_go(self) -> None:
        """In a forked child, where the thread does not exist. The numbers of the files stay taken: what the objects
        close that still hold them must not be something new.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in self._selector.get_map():
            with contextlib.suppress(OSError):
                os.dup2(nothing, int(str(number)), inheritable=False)
        os.close(nothing)

    async def _with_link(self, address: Address, work: Callable[[Link], Coroutine[Any, Any, T]]) -> T:
        if address not in self.links:
            self.links[address] = self._new_link(address)
        return await work(self.links[address])

    async def _close_all(self) -> None:
        links = [*self.links.values(), *self._left]
        self.links.clear()
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._end_what_is_left()
        finally:
            self._loop.close()

    def _end_what_is_left(self) -> None:
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
