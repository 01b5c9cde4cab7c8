"""A command on a terminal of its own, 80 columns wide."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

COMMAND = [sys.executable, "-m", "chordage.workers.cli"]


def on_a_terminal(room: Path, *arguments: str, codes: Collection[int] = (0,)) -> list[str]:
    """The lines it shows; `codes`: with which it may end."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(room)
        os.execv(COMMAND[0], [*COMMAND, *arguments])
    shown = b""
    with suppress(OSError):  # Linux's way to report that no writer is left
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in codes
    return shown.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
