"""A stream of what comes in, and word of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Watched:
    """The package tells of the end only to calls that are under way, and the next must not go down a dead line."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def receive(self) -> Any:
        return await self._stream.receive()

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *how: object) -> bool | None:
        found: bool | None = await self._stream.__aexit__(*how)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # such as `last_context`, which only some have
