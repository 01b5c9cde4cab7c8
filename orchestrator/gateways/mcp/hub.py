"""All connections to MCP servers that this process has: an event loop in a thread of its own, and a link per address.

A connection must not be used on both sides of a fork, and the mere copy of a pipe in a forked process would keep a
server alive that should end with its parent. So a child forgets what it inherits, and at once lets go of the pipes and
sockets: of those that were open when it was forked. One that was being opened at that very moment is missed.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from chordage.orchestrator.gateways.mcp.address import Address
from chordage.orchestrator.gateways.mcp.link import Link
from chordage.orchestrator.gateways.mcp.loop import Loop

T = TypeVar("T")
Work = Callable[[Link], Coroutine[Any, Any, T]]


class Hub:
    """`new_link` is called in the event loop."""

    def __init__(self, new_link: Callable[[Address], Link]) -> None:
        self._new_link = new_link
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._inherited: list[Loop] = []  # kept: what is collected closes files that are not ours any more
        self._is_hooked = False

    def link(self, address: Address) -> Link | None:
        """If there is one; to be read only."""
        loop = self._of_this_process()
        return loop.links.get(address) if loop else None

    def begin(self, address: Address, work: Work[T]) -> Future[T]:
        """Work with a link, in its event loop. Whoever cancels the future cancels the work."""
        self._of_this_process()
        with self._lock:
            if self._loop is None:
                self._loop = Loop(self._new_link)
                self._hook()
            return self._loop.begin(address, work)

    def keep(self, addresses: Collection[Address]) -> None:
        """Take leave of whatever leads elsewhere: nobody asks for it any more."""
        if (loop := self._of_this_process()) is not None:
            loop.leave_all_but(addresses)

    def close(self) -> None:
        """End all connections and the thread. What comes later starts anew."""
        self._of_this_process()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def in_forked_child(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        if self._loop is not None:
            self._loop.let_go()
            self._inherited.append(self._loop)
        self._loop = None

    def _of_this_process(self) -> Loop | None:
        if self._pid != os.getpid():  # the hook has seen to it, unless the fork was not Python's
            self.in_forked_child()
        return self._loop

    def _hook(self) -> None:
        """Hooks stay for ever, and so must not hold what they are for. A child inherits them."""
        if not self._is_hooked:
            self._is_hooked = True
            known = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _if_there(known, Hub.in_forked_child))
            atexit.register(_if_there, known, Hub.close)


def _if_there(known: weakref.ref[Hub], do: Callable[[Hub], None]) -> None:
    if (hub := known()) is not None:
        do(hub)
