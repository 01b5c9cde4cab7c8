"""The body of a delivery, read no further than its binding allows."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Receive


class TooLarge(Exception):
    """By what it announces, or by what has come."""


class Broken(Exception):
    """The connection ended before the body did."""


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    """What a length announces is believed when it is too much, and never when it is little."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise TooLarge
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Broken
        chunk: bytes = event.get("body", b"")
        if len(body) + len(chunk) > limit:
            raise TooLarge
        body += chunk
        if not event.get("more_body", False):
            return bytes(body)
