"""Server-sent events out of the chunks of a response.

Lines are split on bytes and only at line feeds: str.splitlines would also cut at U+2028, which may stand unescaped
inside a JSON string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chordage.orchestrator.gateways.models.shape import malformed

LINE_LIMIT = 16 * 2**20


def data_of_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete event. One without its closing blank line was cut off and is dropped."""
    data: list[str] = []
    for line in _lines(chunks):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > LINE_LIMIT:
            raise malformed(f"a line of the stream is longer than {LINE_LIMIT} bytes")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
