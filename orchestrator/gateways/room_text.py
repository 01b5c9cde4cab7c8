"""The text of a file of the room, as long as it is a file and no longer than one is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from chordage.orchestrator.core import bounds


def read(path: Path) -> str:
    """Raises OSError and UnicodeDecodeError. A mark at the beginning is left out."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody writes to would be waited for
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is no file: put a text file here", str(path))
        raw = file.read(bounds.TEXT_BYTES + 1)
    if len(raw) > bounds.TEXT_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {bounds.TEXT_BYTES} bytes: make it shorter", str(path))
    return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
