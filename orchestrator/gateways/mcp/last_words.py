"""What a program says on its standard error: logged, and its end kept, for that is mostly why it died."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

KEPT = 3  # lines
LINE_LIMIT = 300  # characters
PATIENCE = 0.3  # seconds: what a dead process has said is read in less

_log = logging.getLogger(__name__)


class LastWords(asyncio.Protocol):
    """Of one process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._begun = b""
        self._over = asyncio.Event()

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[TextIO]:
        """What is to be its standard error."""
        reader, writer = os.pipe()
        with os.fdopen(writer, "w", encoding="utf-8") as errlog:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(reader, "rb", 0))
            try:
                yield errlog
            finally:
                transport.close()
                await self._over.wait()

    async def words(self) -> str:
        try:
            await asyncio.wait_for(self._over.wait(), PATIENCE)
        except TimeoutError:
            _log.debug("%s still has its standard error open", self._name)
        last = " / ".join(self._lines)
        return f"it said last: {last}" if last else ""

    def data_received(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._begun = self._begun[-LINE_LIMIT:]
        for line in lines:
            self._hear(line)

    def connection_lost(self, _error: Exception | None) -> None:
        self._hear(self._begun)
        self._over.set()

    def _hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if any(map(str.isalnum, text)):  # more than the frame around a traceback
            self._lines.append(text[:LINE_LIMIT])
            _log.debug("MCP server %s: %s", self._name, text)
