"""Files and folders of our own: nobody but their owner may read, write or enter them.

They hold messages, results, addresses with passwords. The mode is given when a file is made, not afterwards: in between
somebody else could open it. What an earlier version, or somebody's hand, has left open is closed by `tighten`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077
UMASK = 0o077  # of servers that make files by themselves


def opener(path: str, flags: int) -> int:
    """For the built-in `open`."""
    return os.open(path, flags, FILE)


def folder(path: Path) -> Path:
    """Made if it is not there, and those above it as well. One that is there stays as it is."""
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=FOLDER)
        except FileNotFoundError:
            folder(path.parent)
            path.mkdir(mode=FOLDER)
    return path


def write(path: Path, text: str) -> None:
    """Whole or not at all. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(new, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def tighten(paths: Iterable[Path]) -> list[Path]:
    """Those of them that others could use, and now cannot. Links are not followed; what is not ours stays as it is."""
    return [path for path in paths if _tighten(path)]


def _tighten(path: Path) -> bool:
    try:
        found = path.lstat()
        shared = stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid()
        if shared or not found.st_mode & OTHERS:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
    except FileNotFoundError:  # it was there a moment ago
        return False
    return True
