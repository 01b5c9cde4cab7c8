"""Files and folders that only their owner may read, write or enter, and files that are replaced in one move.

They hold messages, results and addresses with passwords. The mode is given when a file is made, not afterwards: in
between another user could open it. `tighten` closes what an earlier version, or a person, has left open.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077
UMASK = 0o077  # of servers that make files by themselves


def opener(path: str, flags: int) -> int:
    """For the built-in `open`."""
    return os.open(path, flags, FILE)


def folder(path: Path) -> Path:
    """Make the folder, and those above it, where they do not exist. One that exists stays as it is."""
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=FOLDER)
        except FileNotFoundError:
            folder(path.parent)
            path.mkdir(mode=FOLDER)
    return path


def write(path: Path, text: str) -> None:
    """Replace the file whole or not at all. Raises OSError."""
    with staged(path, text.encode()) as new:
        new.replace(path)


@contextlib.contextmanager
def staged(path: Path, content: bytes, *, sync: bool = False) -> Iterator[Path]:
    """A private file with this content in the folder of `path`, to be moved there. Removed if the caller leaves it.

    `sync`: the content is on the disk before the caller moves it, so that a crash of the machine loses neither version.
    """
    number, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield new
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def tighten(paths: Iterable[Path]) -> list[Path]:
    """Close these paths to other users, and return those that were open.

    Links are not followed; files of other owners and folders with the sticky bit stay as they are.
    """
    return [path for path in paths if _tighten(path)]


def _tighten(path: Path) -> bool:
    try:
        status = path.lstat()
        is_shared = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX or status.st_uid != os.geteuid()
        if is_shared or not status.st_mode & OTHERS:
            return False
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
    except FileNotFoundError:  # removed meanwhile
        return False
    return True
