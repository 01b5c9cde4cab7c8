"""What is made once in each process, however many threads ask for it first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OnePerProcess(Generic[T]):
    """A child makes its own: what its parent holds (connections, work in hand, threads) it must not use. It takes a
    lock of its own too, because a fork may happen while another thread of the parent holds that of the parent.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}
        self._making: dict[int, threading.Lock] = {}

    def __call__(self) -> T:
        pid = os.getpid()
        if pid not in self._made:
            with self._making.setdefault(pid, threading.Lock()):
                if pid not in self._made:
                    self._made[pid] = self._make()
        return self._made[pid]
