"""The text of a file that a user wrote, where it is a file and no longer than one may be."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from chordage.orchestrator.core import bounds


def read(path: Path) -> str:
    """Raises OSError and UnicodeDecodeError. A byte order mark is left out."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without it, opening a pipe waits for a writer
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is no file: put a text file here", str(path))
        raw = file.read(bounds.TEXT_BYTES + 1)
    if len(raw) > bounds.TEXT_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {bounds.TEXT_BYTES} bytes: make it shorter", str(path))
    return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
