"""How much of an answer a client reads: a server that sends without an end must not take the memory of a program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx

from chordage.orchestrator.core.errors import AnswerTooLarge

ANSWER_BYTES = 32 * 2**20  # of one answer, or of one event of a stream
_ENCODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})  # of the bytes on the wire


class AnswerBody:
    """Of one answer, while it comes."""

    def __init__(self, response: httpx.Response, most: int) -> None:
        self._response = response
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._check(_announced(response))

    def read(self, chunks: Iterator[bytes]) -> httpx.Response:
        """The answer, whole. Raises AnswerTooLarge."""
        for chunk in chunks:
            self._take(chunk)
        return self._whole()

    async def aread(self, chunks: AsyncIterator[bytes]) -> httpx.Response:
        async for chunk in chunks:
            self._take(chunk)
        return self._whole()

    def _take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._check(self._size)
        self._parts.append(chunk)

    def _check(self, size: int) -> None:
        if size > self._most:
            request = self._response.request
            raise too_large(f"the answer to {request.method} {request.url.copy_with(query=None)}", self._most)

    def _whole(self) -> httpx.Response:
        response = self._response
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _ENCODED]
        return httpx.Response(
            response.status_code, headers=headers, content=b"".join(self._parts), request=response.request,
            extensions=response.extensions,
        )  # fmt: skip


def too_large(what: str, most: int) -> AnswerTooLarge:
    return AnswerTooLarge(f"{what} has more than {most} bytes: ask for less at once, or give a higher max_bytes")


def _announced(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0
