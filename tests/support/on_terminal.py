"""Commands on a terminal of their own, 80 columns wide."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

COMMAND = [sys.executable, "-m", "chordage.workers.cli"]
END = "\x1e"  # behind each of several commands, with its exit code
ONE_AFTER_ANOTHER = f"""
import json, sys
from chordage.workers.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as ended:
        print({END!r}, ended.code or 0, {END!r}, sep="", end="", flush=True)
"""


def on_a_terminal(room: Path, *arguments: str, codes: Collection[int] = (0,)) -> list[str]:
    """The lines it shows; `codes`: with which it may end."""
    code, shown = _shown(room, [*COMMAND, *arguments])
    assert code in codes
    return _lines(shown)


def one_after_another(room: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, list[str]]]:
    """The exit code of each command and the lines it shows, all from one process: importing takes longer than most."""
    code, shown = _shown(room, [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(commands)])
    *parts, rest = shown.split(END)
    assert (code, rest, len(parts)) == (0, "", 2 * len(commands)), shown
    return [(int(number), _lines(text)) for text, number in zip(parts[::2], parts[1::2], strict=True)]


def _shown(room: Path, words: Sequence[str]) -> tuple[int, str]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(room)
        os.execv(words[0], words)
    shown = b""
    with suppress(OSError):  # Linux's way to report that no writer is left
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def _lines(shown: str) -> list[str]:
    return shown.replace("\r\n", "\n").removesuffix("\n").split("\n")
