"""Ctrl-C, SIGTERM and the closing of the terminal, for whoever runs a fleet: the first asks to end, the second insists.

The first only leaves a note: an exception could strike between the start of a process and the moment we know of it.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK = 0.1


class Ending:
    def __init__(self) -> None:
        self.asked = False
        self.insisted = False
        self.number = signal.SIGINT  # which it was
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup means it
        self._before = {number: signal.signal(number, self._on_signal) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self.number = signal.Signals(number)
        if self.asked:
            self.insisted = True
            raise KeyboardInterrupt
        self.asked = True

    @property
    def code(self) -> int:
        """As a shell tells that a signal has ended somebody."""
        return 128 + self.number

    def check(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def wait(self) -> None:
        """Until somebody asks."""
        while not self.asked:
            time.sleep(LOOK)
