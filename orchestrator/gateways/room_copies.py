"""Copies of agent files as they were when they could last be read, in the state folder of the fleet.

A process keeps the last good version of a definition in memory. One that starts while a file is broken has none: it
reads the copy that another process of this machine has made. A copy is replaced as a whole, so that whoever dies while
it writes leaves the one before. Where the folder cannot be written there are no copies, and the agent of a broken file
cannot be used by a process that starts then.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from chordage.orchestrator.system import private_files

log = structlog.get_logger()

SUFFIX = ".toml"


class Copies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, name: str) -> Path | None:
        """The copy of the file that the room calls `name`, if there is one."""
        path = self._folder / name
        return path if path.is_file() else None

    def keep(self, texts: Mapping[str, str], present: set[str]) -> None:
        """`texts`: files that can be read, by name. A file that is not among `present` any more loses its copy."""
        try:
            for name, text in texts.items():
                self._write(self._folder / name, text)
            for path in self._folder.rglob(f"*{SUFFIX}"):
                if path.relative_to(self._folder).as_posix() not in present:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.info("agent files are not copied", folder=str(self._folder), error=str(error))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        with suppress(OSError, UnicodeDecodeError):
            if path.read_text(encoding="utf-8") == text:
                return
        private_files.folder(path.parent)
        private_files.write(path, text)
