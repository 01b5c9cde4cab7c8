"""What tells that a file has changed without reading it."""

from __future__ import annotations

from pathlib import Path

Trace = tuple[int, int, int]
Traces = dict[Path, Trace | None]


def trace_of(path: Path) -> Trace | None:
    """None for a file that is not there, so that its coming back is a change."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
