"""Ids: UUIDv7, so that rows made one after the other are neighbours in every index."""

from __future__ import annotations

import os
import threading
import time


class Ids:
    """Ids of one process grow strictly, also within a millisecond."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        # 48 bits of milliseconds, then 12 bits of the millisecond's fraction in place of random bits.
        nanoseconds = time.time_ns()
        tick = (nanoseconds // 1_000_000 << 12) | (nanoseconds % 1_000_000 << 12) // 1_000_000
        with self._lock:
            self._last = tick = max(tick, self._last + 1)
        random = int.from_bytes(os.urandom(8), "big") >> 2
        digits = f"{(tick >> 12) << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 2 << 62 | random:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
