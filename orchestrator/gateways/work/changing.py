"""Task files are changed here: at the places that are to change, and nowhere else.

A file is replaced in one move, by whoever holds its folder, and only while it is what was read: an editor that saves
in between is not overwritten. Between that look and the move lies a moment that no file system closes.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.gateways.work.documents import Status
from chordage.orchestrator.gateways.work.front_matter import parts_of
from chordage.orchestrator.system import private_files


@contextmanager
def holding(file: Path) -> Iterator[None]:
    """Nobody else of this machine changes a file of that folder meanwhile, unless they use an editor."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace(file: Path, before: bytes, after: bytes) -> None:
    """Raises LostRace when the file is not what it was."""
    file = file.resolve()
    with private_files.staged(file, after, sync=True) as new:
        shutil.copymode(file, new)
        is_same = file.read_bytes() == before
        if is_same:
            new.replace(file)
    if not is_same:
        raise LostRace(f"{file.name} was changed by somebody else")


def id_for(path: str, raw: bytes, changed_ns: int) -> str:
    """The same for all who look at the same file at once, so that it does not matter who writes it."""
    digest = hashlib.sha256(b"\0".join([path.encode(), str(changed_ns).encode(), raw])).digest()
    return base64.b32encode(digest[:5]).decode().lower()


def with_id(text: str, path: str, key: str) -> str:
    return _with_line(text, path, f"id: {key}")


def with_status(text: str, path: str, status: Status) -> str:
    found = parts_of(text, path).keys.get("status")
    if found is None:
        return _with_line(text, path, f"status: {status.value}")
    return f"{text[: found.start]}{status.value}{text[found.end :]}"


def with_body(text: str, path: str, body: str) -> str:
    newline = _newline(text)
    head = text[: len(text) - len(parts_of(text, path).body)]
    return head + body.strip().replace("\r\n", "\n").replace("\n", newline) + newline


def with_comment(text: str, path: str, comment: str) -> str:
    body = parts_of(text, path).body.strip()
    return with_body(text, path, f"{body}\n\n{comment}" if body else comment)


def _with_line(text: str, path: str, line: str) -> str:
    newline = _newline(text)
    fence = parts_of(text, path).fence
    if fence is None:
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        return f"{mark}---{newline}{line}{newline}---{newline}{text.removeprefix(mark)}"
    return f"{text[:fence]}{line}{newline}{text[fence:]}"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
