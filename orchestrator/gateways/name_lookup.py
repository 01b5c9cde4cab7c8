"""Host names looked up within a time limit.

The system's lookup cannot be interrupted. So each runs in a thread of its own, and the caller waits as long as it
allows. The number of threads is bounded for the process: a name that does not answer keeps one thread, for all callers
that ask for it, until the system gives up. Where all threads are taken, a further name is refused at once.
"""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any, TypeAlias

AT_ONCE = 64  # names that are looked up at the same time in a process
AddressInfo: TypeAlias = tuple[Any, ...]  # as socket.getaddrinfo has it
_Name: TypeAlias = tuple[str, int]


class Names:
    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._under_way: dict[_Name, Future[list[AddressInfo]]] = {}

    def ask(self, host: str, port: int) -> Future[list[AddressInfo]]:
        """Raises OSError where too many lookups are under way."""
        answer: Future[list[AddressInfo]] = Future()
        if _is_address(host):  # there is nothing to look up
            _answer(answer, (host, port))
            return answer
        if self._pid != os.getpid():  # a fork has none of its parent's threads
            self._begin()
        with self._lock:
            if (same := self._under_way.get((host, port))) is not None:
                return same
            if len(self._under_way) >= self._at_once:
                raise OSError(f"{host} is not looked up: {self._at_once} other names are, and none of them answers")
            self._under_way[host, port] = answer
        threading.Thread(target=self._run, args=((host, port), answer), name="chordage-names", daemon=True).start()
        return answer

    def _run(self, name: _Name, answer: Future[list[AddressInfo]]) -> None:
        try:
            _answer(answer, name)
        finally:
            with self._lock:
                self._under_way.pop(name, None)


def _answer(answer: Future[list[AddressInfo]], name: _Name) -> None:
    try:
        answer.set_result(list(socket.getaddrinfo(*name, type=socket.SOCK_STREAM)))
    except Exception as error:
        answer.set_exception(error)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


NAMES = Names()  # one for the process, or its threads would have no bound
